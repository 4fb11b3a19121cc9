package evaluate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"sluice/pipeline"
)

// outcome is what one Record found, for Committed.
type outcome struct {
	looked   map[int32]int
	messages map[ruleOf]int
	// suppressed counts decisions that made no message, by reason.
	suppressed map[suppression]int
	failures   []failure
	// due counts the messages that can be sent.
	due int
}

type ruleOf struct {
	tenant int32
	rule   *rule
}

type suppression struct {
	ruleOf
	reason string
}

// The reasons for which a decision makes no message, as they stand in the metric and as the statement numbers them.
const (
	reasonDuplicate = "duplicate"
	reasonCooldown  = "cooldown"
	reasonCap       = "cap"
)

var reasons = []string{reasonDuplicate, "", reasonCooldown, reasonCap}

const granted = 1

// Record writes the decisions about the events that were stored, in the transaction of their batch. It may be called
// again, with other events stored; the last call counts. Rows are touched in the order of their keys, so two batches
// never wait for each other in a circle.
func (p *Plan) Record(ctx context.Context, tx pgx.Tx, stored []bool) error {
	p.outcome = outcome{looked: map[int32]int{}, messages: map[ruleOf]int{}, suppressed: map[suppression]int{}}
	for _, i := range p.looked {
		if stored[i] {
			p.outcome.looked[p.events[i].Tenant]++
		}
	}
	for _, f := range p.failures {
		if stored[f.event] {
			p.outcome.failures = append(p.outcome.failures, f)
		}
	}
	cands := p.fresh(stored)
	for len(cands) > 0 {
		outcomes, err := p.decide(ctx, tx, cands)
		if err == nil {
			p.count(cands, outcomes)
			return nil
		}
		if !dataError(err) {
			return fmt.Errorf("evaluate: record %d decisions: %w", len(cands), err)
		}
		// Some rule made something that PostgreSQL will not store. Find out which by recording each rule on its own
		// and rolling that back; then record the others. Nothing stays locked between, so the order of keys holds.
		before := len(cands)
		if cands, err = p.sift(ctx, tx, cands); err != nil {
			return fmt.Errorf("evaluate: find the rule that can't be recorded: %w", err)
		}
		if len(cands) == before {
			return fmt.Errorf("evaluate: record %d decisions: each rule alone can be recorded, together they can't", before)
		}
	}
	return nil
}

// fresh are the candidates about stored events, one for each key. Of two with one key the first in the batch wins; the
// other is counted.
func (p *Plan) fresh(stored []bool) []candidate {
	type ledgerKey struct {
		tenant int32
		hash   pipeline.UUID
	}
	var cands []candidate
	seen := make(map[ledgerKey]bool, len(p.candidates))
	for _, c := range p.candidates {
		if !stored[c.event] {
			continue
		}
		if err := p.refused[c.rule]; err != nil {
			p.outcome.failures = append(p.outcome.failures, failure{c.rule, c.event, failedRefused, err})
			continue
		}
		k := ledgerKey{p.events[c.event].Tenant, c.keyHash}
		if seen[k] {
			p.outcome.suppressed[suppression{ruleOf{k.tenant, c.rule}, reasonDuplicate}]++
			continue
		}
		seen[k] = true
		cands = append(cands, c)
	}
	return cands
}

// sift takes the candidates of rules out that cannot be recorded.
func (p *Plan) sift(ctx context.Context, tx pgx.Tx, cands []candidate) ([]candidate, error) {
	byRule := map[*rule][]candidate{}
	for _, c := range cands {
		byRule[c.rule] = append(byRule[c.rule], c)
	}
	for r, own := range byRule {
		_, err := p.decide(ctx, tx, own)
		if err == nil {
			_, err = tx.Exec(ctx, "rollback to savepoint rules")
		}
		if err == nil {
			continue
		}
		if !dataError(err) {
			return nil, err
		}
		if p.refused == nil {
			p.refused = map[*rule]error{}
		}
		p.refused[r] = err
		for _, c := range own {
			p.outcome.failures = append(p.outcome.failures, failure{r, c.event, failedRefused, err})
		}
	}
	return slices.DeleteFunc(cands, func(c candidate) bool { return p.refused[c.rule] != nil }), nil
}

// dataError says that PostgreSQL refused the data itself: it will refuse it again.
func dataError(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (strings.HasPrefix(pg.Code, "22") || strings.HasPrefix(pg.Code, "54"))
}

// decideSQL makes decisions out of candidates: a candidate whose key is in the ledger is a duplicate; of the others
// each subject is granted as many as its cooldown and cap allow, the first first; those become outbox rows.
//
// Lock order: keys, then subjects, each sorted. A key that another transaction is just inserting is waited for. Keys
// known for long are looked up first, since ON CONFLICT would lock (and so write) their rows. The decision about a
// subject is made on its locked, latest row; greatest() keeps its clock from going back after a wait.
const decideSQL = `
with rule as materialized (
	select * from unnest($1::int[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::float8[], $8::float8[],
		$9::int[], $10::float8[], $11::float8[], $12::bool[])
		as r(rid, rule, state_key, hash, type, dests, keep, cooldown, cap_max, cap_seconds, digest, shadow)),
cand as materialized (
	select * from unnest($13::int[], $14::int[], $15::int[], $16::text[], $17::text[], $18::uuid[], $19::text[], $20::uuid[],
		$21::timestamptz[])
		as c(ord, rid, ten, subj, dk, kh, payload, ev, occ)),
newkey as (
	insert into dedupe_keys as k (tenant_id, key_hash, expires_at)
	select ten, kh, now() + keep * interval '1 second' from cand c join rule using (rid)
	where not exists (select from dedupe_keys d
		where d.tenant_id = c.ten and d.key_hash = c.kh and (d.expires_at is null or d.expires_at > now()))
	order by ten, kh
	on conflict (tenant_id, key_hash) do update set expires_at = excluded.expires_at where k.expires_at <= now()
	returning tenant_id ten, key_hash kh),
fresh as materialized (
	select c.*, r.*, row_number() over (partition by c.ten, c.rid, c.subj order by c.ord) rn
	from cand c join newkey using (ten, kh) join rule r on r.rid = c.rid),
subject as (
	insert into rule_subjects as s (tenant_id, rule_id, subject, recent, decided_at, asked, granted, cap_max, cap_seconds,
		cooldown_seconds, digest_seconds, suppressed, suppressed_since, digest_due_at)
	select ten, state_key, subj, array_fill(now(), array[g]), now(), n, g, cap_max, cap_seconds, cooldown, digest,
		case when digest is null then 0 else n - g end,
		case when digest is not null and n > g then now() end,
		case when digest is not null and n > g then now() + digest * interval '1 second' end
	from (select *, rule_grants('{}', now(), n, cap_max, cap_seconds, cooldown) g
		from (select f.ten, f.state_key, f.subj, f.cap_max, f.cap_seconds, f.cooldown, f.digest, count(*)::int n from fresh f
			where f.cooldown > 0 or f.cap_max is not null group by 1, 2, 3, 4, 5, 6, 7) asked) first
	order by ten, state_key, subj
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
			lateral (select rule_grants(s.recent, t, excluded.asked, excluded.cap_max, excluded.cap_seconds,
				excluded.cooldown_seconds) g) answer)
	returning tenant_id ten, rule_id state_key, subject subj, granted,
		cooldown_seconds > 0 and recent[1] > decided_at - cooldown_seconds * interval '1 second' as cooling),
decision as materialized (
	select f.*, f.cooldown = 0 and f.cap_max is null or f.rn <= s.granted as is_granted, s.cooling
	from fresh f left join subject s using (ten, state_key, subj)),
sent as (
	insert into outbox (tenant_id, type, subject_key, dedupe_key, destination, payload, status, finished_at, last_error,
		rule_id, rule_hash, event_id, event_occurred_at)
	select ten, type, subj, dk, d.name, payload::jsonb, case when shadow then 'skipped' else 'pending' end,
		case when shadow then now() end, case when shadow then 'the rule is a shadow: it decides and does not send' end,
		rule, hash, ev, occ
	from decision cross join lateral unnest(string_to_array(dests, ',')) with ordinality as d(name, i)
	where is_granted
	order by ord, i)
select c.ord, case when f.ord is null then 0 when f.is_granted then 1 when f.cooling then 2 else 3 end
from cand c left join decision f using (ord)`

// decide runs decideSQL under a savepoint named rules, in one round trip, and gives an index into reasons for each
// candidate. When it fails, the transaction is as before.
func (p *Plan) decide(ctx context.Context, tx pgx.Tx, cands []candidate) ([]int, error) {
	var b pgx.Batch
	b.Queue("savepoint rules")
	b.Queue(decideSQL, p.arguments(cands)...)
	results := tx.SendBatch(ctx, &b)
	outcomes := make([]int, len(cands))
	_, err := results.Exec()
	if err == nil {
		var rows pgx.Rows
		if rows, err = results.Query(); err == nil {
			var ord, outcome int
			_, err = pgx.ForEachRow(rows, []any{&ord, &outcome}, func() error {
				outcomes[ord] = outcome
				return nil
			})
		}
	}
	if closeErr := results.Close(); err == nil {
		err = closeErr
	}
	if dataError(err) {
		if _, rollback := tx.Exec(ctx, "rollback to savepoint rules"); rollback != nil {
			return nil, rollback
		}
	}
	return outcomes, err
}

// count adds what the statement said to the outcome.
func (p *Plan) count(cands []candidate, outcomes []int) {
	for i, c := range cands {
		r := ruleOf{p.events[c.event].Tenant, c.rule}
		if outcomes[i] != granted {
			p.outcome.suppressed[suppression{r, reasons[outcomes[i]]}]++
			continue
		}
		p.outcome.messages[r] += len(c.rule.sendTo)
		if !c.rule.shadow {
			p.outcome.due += len(c.rule.sendTo)
		}
	}
}

// arguments are the parameters of decideSQL: one array for each column of the rules and of the candidates. A subject is
// served in the order of the batch.
func (p *Plan) arguments(cands []candidate) []any {
	var rules ruleColumns
	var c candidateColumns
	rid := map[*rule]int32{}
	for i, cand := range cands {
		if _, ok := rid[cand.rule]; !ok {
			rid[cand.rule] = int32(len(rid))
			rules.add(rid[cand.rule], cand.rule)
		}
		ev := &p.events[cand.event]
		c.ord, c.rid = append(c.ord, int32(i)), append(c.rid, rid[cand.rule])
		c.tenant, c.subject = append(c.tenant, ev.Tenant), append(c.subject, cand.subject)
		c.key, c.hash = append(c.key, cand.key), append(c.hash, cand.keyHash)
		c.payload = append(c.payload, string(cand.payload))
		c.event, c.time = append(c.event, ev.ID), append(c.time, ev.OccurredAt)
	}
	return []any{rules.rid, rules.name, rules.state, rules.hash, rules.kind, rules.dests, rules.keep, rules.cooldown,
		rules.capMax, rules.capPer, rules.digest, rules.shadow,
		c.ord, c.rid, c.tenant, c.subject, c.key, c.hash, c.payload, c.event, c.time}
}

type ruleColumns struct {
	rid                            []int32
	name, state, hash, kind, dests []string
	keep, digest                   []*float64
	cooldown, capPer               []float64
	capMax                         []*int32
	shadow                         []bool
}

func (c *ruleColumns) add(rid int32, r *rule) {
	c.rid, c.name, c.state = append(c.rid, rid), append(c.name, r.name), append(c.state, r.stateKey)
	c.hash, c.kind, c.dests = append(c.hash, r.hash), append(c.kind, r.id), append(c.dests, strings.Join(r.sendTo, ","))
	c.keep, c.digest = append(c.keep, seconds(r.limits.dedupeFor)), append(c.digest, seconds(r.limits.digestAfter))
	c.cooldown, c.capPer = append(c.cooldown, r.limits.cooldown.Seconds()), append(c.capPer, r.limits.capPer.Seconds())
	var most *int32
	if r.limits.capMax > 0 {
		n := int32(r.limits.capMax)
		most = &n
	}
	c.capMax, c.shadow = append(c.capMax, most), append(c.shadow, r.shadow)
}

type candidateColumns struct {
	ord, rid, tenant      []int32
	subject, key, payload []string
	hash, event           []pipeline.UUID
	time                  []time.Time
}

// seconds gives NULL for 0.
func seconds(d time.Duration) *float64 {
	if d == 0 {
		return nil
	}
	s := d.Seconds()
	return &s
}
