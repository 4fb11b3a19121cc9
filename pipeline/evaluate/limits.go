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
	"sluice.example/sluice/pipeline/evaluate/quota"
	"sluice.example/sluice/pipeline/rules"
)

// run writes under a savepoint named rules, and returns the fate of each match. When PostgreSQL refuses the data, the
// transaction is as before.
//
// Each limit has a statement of its own, which is left out where no match has that limit; the arithmetic between
// them is done here. One statement for all of it costs PostgreSQL half a millisecond before it decides anything.
// Lock order: timers, keys, subjects, messages, minutes; each sorted.
func (w work) run(ctx context.Context, tx pgx.Tx) ([]fate, error) {
	fates, err := w.statements(ctx, tx)
	if dataError(err) {
		if _, rollback := tx.Exec(ctx, "rollback to savepoint rules"); rollback != nil {
			return nil, rollback
		}
	}
	return fates, err
}

const savepointSQL = "savepoint rules"

func (w work) statements(ctx context.Context, tx pgx.Tx) ([]fate, error) {
	b := &pgx.Batch{}
	send := func() error {
		if b.Len() == 0 {
			return nil
		}
		full := b
		b = &pgx.Batch{}
		return tx.SendBatch(ctx, full).Close()
	}
	b.Queue(savepointSQL)
	if len(w.marks) > 0 {
		queueTimers(b, w.marks)
	}
	fates := make([]fate, len(w.matches))
	var keyed, limited, shared bool
	var now time.Time
	for i := range w.matches {
		m := &w.matches[i]
		keyed = keyed || !m.Once
		limited = limited || m.Limited()
		shared = shared || len(m.Under) > 0
		if now.IsZero() && timed(m) {
			now = time.Unix(0, 0)
			b.Queue(`select now()`).QueryRow(func(row pgx.Row) error { return row.Scan(&now) })
		}
	}
	if keyed {
		queueKeys(b, w.matches, fates)
	}
	if limited {
		if keyed {
			if err := send(); err != nil {
				return nil, err
			}
		}
		queueSubjects(b, w.matches, fates)
	}
	if shared {
		if err := send(); err != nil {
			return nil, err
		}
		if w.sent == nil {
			w.sent = make([][]rules.Part, len(w.matches))
		}
		at, err := w.askQuotas(ctx, tx, b, fates)
		if err != nil {
			return nil, err
		}
		now = cmp.Or(now, at)
	}
	if len(w.matches) > 0 {
		prefix := ""
		if !keyed && !shared && b.Len() == 1 { // the savepoint alone needs no round trip of its own
			prefix = savepointSQL + "; "
			b = &pgx.Batch{}
		} else if err := send(); err != nil {
			return nil, err
		}
		if err := copyMessages(ctx, tx, prefix, w, fates, now); err != nil {
			return nil, err
		}
	}
	if len(w.counts) > 0 {
		queueRollup(b, w.counts) // last: the current minute is the hottest row of all
	}
	return fates, send()
}

// askQuotas asks the limits over several rules about the granted matches. It returns the database's clock; zero if no
// match is under a limit.
func (w work) askQuotas(ctx context.Context, tx pgx.Tx, b *pgx.Batch, fates []fate) (now time.Time, err error) {
	now, answers, err := quota.Ask(ctx, tx, b, w.matches, func(i int) bool { return fates[i] == granted }, keepSubjects)
	for i, a := range answers {
		if !a.Asked {
			continue
		}
		if w.sent[i] = a.Sent; len(a.Sent) == 0 {
			fates[i] = overLimit
		}
	}
	return now, err
}

// ledgerKey is a row of dedupe_keys.
type ledgerKey struct {
	tenant int32
	hash   pipeline.UUID
}

// keysSQL takes keys that are not in the ledger, or have run out there. A key that another transaction is just
// inserting is waited for. Keys known for long are looked up first, since ON CONFLICT would lock (and so write) their
// rows; one by one, as a subquery that can't become a join, or a plan made while the ledger was small would go on
// reading all of it.
const keysSQL = `
insert into dedupe_keys as k (tenant_id, key_hash, expires_at)
select tenant, hash, now() + keep * interval '1 second'
from unnest($1::int[], $2::uuid[], $3::float8[]) c (tenant, hash, keep)
where (select true from dedupe_keys d
	where d.tenant_id = c.tenant and d.key_hash = c.hash and (d.expires_at is null or d.expires_at > now())) is null
on conflict (tenant_id, key_hash) do update set expires_at = excluded.expires_at where k.expires_at <= now()
returning tenant_id, key_hash`

// queueKeys makes duplicates of the matches whose key is in the ledger. One without a key is none: its event is new,
// which is the same promise without a row that has to be kept for good.
func queueKeys(b *pgx.Batch, matches []rules.Match, fates []fate) {
	at := make(map[ledgerKey]int, len(matches))
	order := make([]int, 0, len(matches))
	for i := range matches {
		if m := &matches[i]; !m.Once {
			at[ledgerKey{m.Tenant, m.KeyHash}] = i
			order = append(order, i)
			fates[i] = duplicate
		}
	}
	slices.SortFunc(order, func(i, j int) int {
		a, b := &matches[i], &matches[j]
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), bytes.Compare(a.KeyHash[:], b.KeyHash[:]))
	})
	tenants := make([]int32, len(order))
	hashes := make([]pipeline.UUID, len(order))
	keep := make([]*float64, len(order))
	for to, i := range order {
		m := &matches[i]
		tenants[to] = m.Tenant
		hashes[to] = m.KeyHash
		keep[to] = secondsOrNull(m.Rule.Limits.DedupeFor)
	}
	b.Queue(keysSQL, tenants, hashes, keep).Query(func(rows pgx.Rows) error {
		var k ledgerKey
		_, err := pgx.ForEachRow(rows, []any{&k.tenant, &k.hash}, func() error {
			fates[at[k]] = granted
			return nil
		})
		return err
	})
}

// subjectsSQL grants each subject as many of the asked decisions as its cooldown and cap allow, on its locked, latest
// row; greatest() keeps its clock from going back after a wait. What a subject without a row is granted comes as a
// parameter.
// The row remembers, besides the last moments that the cap needs, all that lie within the longest window that it was
// asked for, up to $10: a lower cap, of an edit or of a node with another version, forgets nothing that a higher one
// counts.
const subjectsSQL = `
insert into rule_subjects as s (tenant_id, rule_id, subject, recent, decided_at, asked, granted, cap_max, cap_seconds,
	cooldown_seconds, digest_seconds, suppressed, suppressed_since, digest_due_at)
select tenant, rule, subject, array_fill(now(), array[g]), now(), n, g, cap_max, cap_seconds, cooldown, digest,
	case when digest is null then 0 else n - g end,
	case when digest is not null and n > g then now() end,
	case when digest is not null and n > g then now() + digest * interval '1 second' end
from unnest($1::int[], $2::text[], $3::text[], $4::int[], $5::int[], $6::int[], $7::float8[], $8::float8[],
	$9::float8[])
	as asked (tenant, rule, subject, n, g, cap_max, cap_seconds, cooldown, digest)
on conflict (tenant_id, rule_id, subject) do update set
	(recent, decided_at, asked, granted, cap_max, cap_seconds, cooldown_seconds, digest_seconds,
		suppressed, suppressed_since, digest_due_at) =
	(select (array_fill(t, array[g]) || s.recent)
			[1:least($10, greatest(coalesce(excluded.cap_max, 1), g + inside.any_cap))],
		t, excluded.asked, g, excluded.cap_max,
		case when inside.any_cap > 0 then greatest(excluded.cap_seconds, s.cap_seconds) else excluded.cap_seconds end,
		excluded.cooldown_seconds, excluded.digest_seconds,
		case when excluded.digest_seconds is null then 0 else s.suppressed + excluded.asked - g end,
		case when excluded.digest_seconds is null then null
			when excluded.asked > g then coalesce(s.suppressed_since, t) else s.suppressed_since end,
		case when excluded.digest_seconds is null then null
			when excluded.asked > g then coalesce(s.digest_due_at, t + excluded.digest_seconds * interval '1 second')
			else s.digest_due_at end
	from (select greatest(excluded.decided_at, s.decided_at) t) clock,
		lateral (select count(*) filter (where r > t - excluded.cap_seconds * interval '1 second')::int as cap,
			count(*) filter (where r > t - greatest(excluded.cap_seconds, s.cap_seconds) * interval '1 second')::int as any_cap
			from unnest(s.recent) r) inside,
		lateral (select least(excluded.asked, excluded.cap_max - inside.cap,
			case when excluded.cooldown_seconds > 0 then
				case when s.recent[1] > t - excluded.cooldown_seconds * interval '1 second' then 0 else 1 end end)) open (n),
		lateral (select greatest(0, open.n) offset 0) answer (g))
returning tenant_id, rule_id, subject, granted,
	coalesce(cooldown_seconds > 0 and recent[1] > decided_at - cooldown_seconds * interval '1 second', false)`

// asked is who asks for decisions.
type asked struct {
	tenant        int32
	rule, subject string
}

func sorted(asking map[asked][]int) []asked {
	return slices.SortedFunc(maps.Keys(asking), func(a, b asked) int {
		return cmp.Or(cmp.Compare(a.tenant, b.tenant), cmp.Compare(a.rule, b.rule), cmp.Compare(a.subject, b.subject))
	})
}

// queueSubjects asks for each subject whether the granted matches about it are allowed. The first of the batch come
// first; those beyond what is granted are held back.
func queueSubjects(b *pgx.Batch, matches []rules.Match, fates []fate) {
	asking := map[asked][]int{}
	for i := range matches {
		if m := &matches[i]; m.Limited() && fates[i] == granted {
			k := asked{m.Tenant, m.Rule.StateKey, m.Subject}
			asking[k] = append(asking[k], i)
		}
	}
	keys := sorted(asking)
	n := len(keys)
	c := subjectColumns{
		tenants:   make([]int32, n),
		rules:     make([]string, n),
		subjects:  make([]string, n),
		asked:     make([]int32, n),
		first:     make([]int32, n),
		caps:      make([]*int32, n),
		per:       make([]float64, n),
		cooldowns: make([]float64, n),
		digests:   make([]*float64, n),
	}
	for i, k := range keys {
		l := matches[asking[k][0]].Rule.Limits
		c.tenants[i] = k.tenant
		c.rules[i] = k.rule
		c.subjects[i] = k.subject
		c.asked[i] = int32(len(asking[k]))
		c.first[i] = c.asked[i]
		c.per[i] = l.CapPer.Seconds()
		c.cooldowns[i] = l.Cooldown.Seconds()
		c.digests[i] = secondsOrNull(l.DigestAfter)
		if l.CapMax > 0 {
			most := int32(l.CapMax)
			c.caps[i] = &most
			c.first[i] = min(c.first[i], most)
		}
		if l.Cooldown > 0 {
			c.first[i] = 1
		}
	}
	granting := b.Queue(subjectsSQL,
		c.tenants, c.rules, c.subjects, c.asked, c.first, c.caps, c.per, c.cooldowns, c.digests,
		rules.MaxCap)
	granting.Query(func(rows pgx.Rows) error {
		var k asked
		var allowed int
		var isCooling bool
		_, err := pgx.ForEachRow(rows, []any{&k.tenant, &k.rule, &k.subject, &allowed, &isCooling}, func() error {
			for _, i := range asking[k][allowed:] {
				if fates[i] = capped; isCooling {
					fates[i] = cooling
				}
			}
			return nil
		})
		return err
	})
}

// subjectColumns are the parameters of subjectsSQL.
type subjectColumns struct {
	tenants         []int32
	rules, subjects []string
	// asked is how many decisions are asked for, first how many a subject without a row is granted.
	asked, first   []int32
	caps           []*int32
	per, cooldowns []float64
	digests        []*float64
}

// secondsOrNull is NULL for 0.
func secondsOrNull(d time.Duration) *float64 {
	if d == 0 {
		return nil
	}
	s := d.Seconds()
	return &s
}
