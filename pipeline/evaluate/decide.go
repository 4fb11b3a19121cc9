package evaluate

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/pipeline"
)

// run writes under a savepoint named rules, and gives an index into reasons for each candidate. When PostgreSQL refuses
// the data, the transaction is as before.
//
// Each limit has a statement of its own, which is left out where no candidate has that limit; the arithmetic between
// them is done here. One statement for all of it costs PostgreSQL half a millisecond before it decides anything.
// Lock order: timers, keys, subjects, messages, minutes; each sorted.
func (w work) run(ctx context.Context, tx pgx.Tx) ([]int, error) {
	outcomes, err := w.decide(ctx, tx)
	if dataError(err) {
		if _, rollback := tx.Exec(ctx, "rollback to savepoint rules"); rollback != nil {
			return nil, rollback
		}
	}
	return outcomes, err
}

const savepointSQL = "savepoint rules"

func (w work) decide(ctx context.Context, tx pgx.Tx) ([]int, error) {
	b := &pgx.Batch{}
	send := func() error {
		full := b
		b = &pgx.Batch{}
		return tx.SendBatch(ctx, full).Close()
	}
	b.Queue(savepointSQL)
	if len(w.marks) > 0 {
		queueTimers(b, w.marks)
	}
	outcomes := make([]int, len(w.cands))
	var keyed, limited bool
	var now time.Time
	for i, c := range w.cands {
		outcomes[i] = granted
		keyed = keyed || !c.once
		limited = limited || c.limited()
		if now.IsZero() && c.timed() {
			now = time.Unix(0, 0)
			b.Queue(`select now()`).QueryRow(func(row pgx.Row) error { return row.Scan(&now) })
		}
	}
	if keyed {
		queueKeys(b, w.cands, outcomes)
	}
	if limited {
		if keyed {
			if err := send(); err != nil {
				return nil, err
			}
		}
		queueSubjects(b, w.cands, outcomes)
	}
	if len(w.cands) > 0 {
		prefix := ""
		if !keyed && b.Len() == 1 { // the savepoint alone needs no round trip of its own
			prefix = savepointSQL + "; "
			b = &pgx.Batch{}
		} else if err := send(); err != nil {
			return nil, err
		}
		if err := copyMessages(ctx, tx, prefix, w.cands, outcomes, now); err != nil {
			return nil, err
		}
	}
	if len(w.counts) > 0 {
		queueRollup(b, w.counts) // last: the current minute is the hottest row of all
	}
	return outcomes, send()
}

// keysSQL takes keys that are not in the ledger, or have run out there. A key that another transaction is just inserting
// is waited for. Keys known for long are looked up first, since ON CONFLICT would lock (and so write) their rows; one by
// one, as a subquery that can't become a join, or a plan made while the ledger was small would go on reading all of it.
const keysSQL = `
insert into dedupe_keys as k (tenant_id, key_hash, expires_at)
select tenant, hash, now() + keep * interval '1 second' from unnest($1::int[], $2::uuid[], $3::float8[]) c (tenant, hash, keep)
where (select true from dedupe_keys d
	where d.tenant_id = c.tenant and d.key_hash = c.hash and (d.expires_at is null or d.expires_at > now())) is null
on conflict (tenant_id, key_hash) do update set expires_at = excluded.expires_at where k.expires_at <= now()
returning tenant_id, key_hash`

// queueKeys makes duplicates of the candidates whose key is in the ledger. One without a key is none: its event is new,
// which is the same promise without a row that has to be kept for ever.
func queueKeys(b *pgx.Batch, cands []candidate, outcomes []int) {
	at := make(map[ledgerKey]int, len(cands))
	order := make([]int, 0, len(cands))
	for i, c := range cands {
		if !c.once {
			at[ledgerKey{c.tenant, c.keyHash}] = i
			order = append(order, i)
			outcomes[i] = duplicate
		}
	}
	slices.SortFunc(order, func(i, j int) int {
		return cmp.Or(cmp.Compare(cands[i].tenant, cands[j].tenant), bytes.Compare(cands[i].keyHash[:], cands[j].keyHash[:]))
	})
	tenants, hashes, keep := make([]int32, len(order)), make([]pipeline.UUID, len(order)), make([]*float64, len(order))
	for to, i := range order {
		c := &cands[i]
		tenants[to], hashes[to], keep[to] = c.tenant, c.keyHash, seconds(c.rule.limits.dedupeFor)
	}
	b.Queue(keysSQL, tenants, hashes, keep).Query(func(rows pgx.Rows) error {
		var k ledgerKey
		_, err := pgx.ForEachRow(rows, []any{&k.tenant, &k.hash}, func() error {
			outcomes[at[k]] = granted
			return nil
		})
		return err
	})
}

// subjectsSQL grants each subject as many of the asked decisions as its cooldown and cap allow, on its locked, latest row;
// greatest() keeps its clock from going back after a wait. What a subject without a row is granted comes as a parameter.
const subjectsSQL = `
insert into rule_subjects as s (tenant_id, rule_id, subject, recent, decided_at, asked, granted, cap_max, cap_seconds,
	cooldown_seconds, digest_seconds, suppressed, suppressed_since, digest_due_at)
select tenant, rule, subject, array_fill(now(), array[g]), now(), n, g, cap_max, cap_seconds, cooldown, digest,
	case when digest is null then 0 else n - g end,
	case when digest is not null and n > g then now() end,
	case when digest is not null and n > g then now() + digest * interval '1 second' end
from unnest($1::int[], $2::text[], $3::text[], $4::int[], $5::int[], $6::int[], $7::float8[], $8::float8[], $9::float8[])
	as asked (tenant, rule, subject, n, g, cap_max, cap_seconds, cooldown, digest)
on conflict (tenant_id, rule_id, subject) do update set
	(recent, decided_at, asked, granted, cap_max, cap_seconds, cooldown_seconds, digest_seconds,
		suppressed, suppressed_since, digest_due_at) =
	(select (array_fill(t, array[g]) || s.recent)[1:coalesce(excluded.cap_max, 1)], t, excluded.asked, g,
		excluded.cap_max, excluded.cap_seconds, excluded.cooldown_seconds, excluded.digest_seconds,
		case when excluded.digest_seconds is null then 0 else s.suppressed + excluded.asked - g end,
		case when excluded.digest_seconds is null then null
			when excluded.asked > g then coalesce(s.suppressed_since, t) else s.suppressed_since end,
		case when excluded.digest_seconds is null then null
			when excluded.asked > g then coalesce(s.digest_due_at, t + excluded.digest_seconds * interval '1 second')
			else s.digest_due_at end
	from (select greatest(excluded.decided_at, s.decided_at) t) clock,
		lateral (select least(excluded.asked,
			excluded.cap_max - (select count(*)::int from unnest(s.recent) r where r > t - excluded.cap_seconds * interval '1 second'),
			case when excluded.cooldown_seconds > 0 then
				case when s.recent[1] > t - excluded.cooldown_seconds * interval '1 second' then 0 else 1 end end)) open (n),
		lateral (select greatest(0, open.n) offset 0) answer (g))
returning tenant_id, rule_id, subject, granted,
	coalesce(cooldown_seconds > 0 and recent[1] > decided_at - cooldown_seconds * interval '1 second', false)`

// limited: cooldown or cap have a say.
func (c *candidate) limited() bool { return !c.unlimited && c.rule.limits.any() }

// asked is who asks for decisions.
type asked struct {
	tenant        int32
	rule, subject string
}

// queueSubjects asks for each subject whether the granted candidates about it are allowed. The first of the batch come
// first; those beyond what is granted are held back.
func queueSubjects(b *pgx.Batch, cands []candidate, outcomes []int) {
	asking := map[asked][]int{}
	for i, c := range cands {
		if c.limited() && outcomes[i] == granted {
			k := asked{c.tenant, c.rule.stateKey, c.subject}
			asking[k] = append(asking[k], i)
		}
	}
	keys := slices.SortedFunc(maps.Keys(asking), func(a, b asked) int {
		return cmp.Or(cmp.Compare(a.tenant, b.tenant), cmp.Compare(a.rule, b.rule), cmp.Compare(a.subject, b.subject))
	})
	n := len(keys)
	tenants, rules, subjects := make([]int32, n), make([]string, n), make([]string, n)
	counts, first := make([]int32, n), make([]int32, n)
	caps, per, cooldowns, digests := make([]*int32, n), make([]float64, n), make([]float64, n), make([]*float64, n)
	for i, k := range keys {
		l := cands[asking[k][0]].rule.limits
		tenants[i], rules[i], subjects[i], counts[i] = k.tenant, k.rule, k.subject, int32(len(asking[k]))
		first[i] = counts[i]
		per[i], cooldowns[i], digests[i] = l.capPer.Seconds(), l.cooldown.Seconds(), seconds(l.digestAfter)
		if l.capMax > 0 {
			most := int32(l.capMax)
			caps[i], first[i] = &most, min(first[i], most)
		}
		if l.cooldown > 0 {
			first[i] = 1
		}
	}
	b.Queue(subjectsSQL, tenants, rules, subjects, counts, first, caps, per, cooldowns, digests).Query(func(rows pgx.Rows) error {
		var k asked
		var allowed int
		var isCooling bool
		_, err := pgx.ForEachRow(rows, []any{&k.tenant, &k.rule, &k.subject, &allowed, &isCooling}, func() error {
			for _, i := range asking[k][allowed:] {
				if outcomes[i] = capped; isCooling {
					outcomes[i] = cooling
				}
			}
			return nil
		})
		return err
	})
}

// seconds gives NULL for 0.
func seconds(d time.Duration) *float64 {
	if d == 0 {
		return nil
	}
	s := d.Seconds()
	return &s
}
