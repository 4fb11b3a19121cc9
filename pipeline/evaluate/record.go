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
	looked map[int32]int
	// evaluated counts by rule.
	evaluated map[*rule]int
	messages  map[ruleOf]int
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

// recorder writes candidates as decisions, and counts what became of them.
type recorder struct {
	engine *Engine
	// refused are the rules whose decisions PostgreSQL would not store.
	refused map[*rule]error
	// What the last record found, counted by Committed.
	outcome outcome
}

// Record writes the decisions about the events that were stored, in the transaction of their batch. It may be called
// again, with other events stored; the last call counts. Rows are touched in the order of their keys, so two batches
// never wait for each other in a circle.
func (p *Plan) Record(ctx context.Context, tx pgx.Tx, stored []bool) error {
	p.reset()
	for _, i := range p.looked {
		if stored[i] {
			p.outcome.looked[p.events[i].Tenant]++
			for _, list := range p.set.listeners(&p.events[i]) {
				for _, l := range list {
					p.outcome.evaluated[l.rule]++
				}
			}
		}
	}
	for _, f := range p.failures {
		if stored[f.batch] {
			p.outcome.failures = append(p.outcome.failures, f)
		}
	}
	cands := make([]candidate, 0, len(p.candidates))
	for _, c := range p.candidates {
		if stored[c.batch] {
			cands = append(cands, c)
		}
	}
	marks := make([]mark, 0, len(p.marks))
	for _, m := range p.marks {
		if stored[m.batch] {
			marks = append(marks, m)
		}
	}
	tallied := make([]count, 0, len(p.counts))
	for _, c := range p.counts {
		if stored[c.batch] {
			tallied = append(tallied, c)
		}
	}
	return p.write(ctx, tx, work{cands, marks, tallied})
}

// work is what one call writes.
type work struct {
	cands  []candidate
	marks  []mark
	counts []count
}

// only is the part of the work that keep wants.
func (w work) only(keep func(*rule) bool) work {
	var out work
	for _, c := range w.cands {
		if keep(c.rule) {
			out.cands = append(out.cands, c)
		}
	}
	for _, m := range w.marks {
		if keep(m.rule) {
			out.marks = append(out.marks, m)
		}
	}
	for _, c := range w.counts {
		if keep(c.rule) {
			out.counts = append(out.counts, c)
		}
	}
	return out
}

func (w work) size() int { return len(w.cands) + len(w.marks) + len(w.counts) }

func (w work) rules() map[*rule]bool {
	rules := map[*rule]bool{}
	for _, c := range w.cands {
		rules[c.rule] = true
	}
	for _, m := range w.marks {
		rules[m.rule] = true
	}
	for _, c := range w.counts {
		rules[c.rule] = true
	}
	return rules
}

func (r *recorder) reset() {
	r.outcome = outcome{looked: map[int32]int{}, evaluated: map[*rule]int{}, messages: map[ruleOf]int{}, suppressed: map[suppression]int{}}
}

// write makes decisions out of candidates and moves timers.
func (r *recorder) write(ctx context.Context, tx pgx.Tx, w work) error {
	w.cands = r.distinct(w.cands)
	w = w.only(func(of *rule) bool { return r.refused[of] == nil })
	for w.size() > 0 {
		outcomes, err := w.run(ctx, tx)
		if err == nil {
			r.count(w.cands, outcomes)
			return nil
		}
		if !dataError(err) {
			return fmt.Errorf("evaluate: record %d decisions: %w", w.size(), err)
		}
		// Some rule made something that PostgreSQL will not store. Find out which by recording each rule on its own
		// and rolling that back; then record the others. Nothing stays locked between, so the order of keys holds.
		before := w.size()
		if w, err = r.sift(ctx, tx, w); err != nil {
			return fmt.Errorf("evaluate: find the rule that can't be recorded: %w", err)
		}
		if w.size() == before {
			return fmt.Errorf("evaluate: record %d decisions: each rule alone can be recorded, together they can't", before)
		}
	}
	return nil
}

// distinct leaves one candidate for each key. Of two with one key the first wins; the other is counted.
func (r *recorder) distinct(cands []candidate) []candidate {
	seen := make(map[ledgerKey]bool, len(cands))
	return slices.DeleteFunc(cands, func(c candidate) bool {
		if err := r.refused[c.rule]; err != nil {
			r.outcome.failures = append(r.outcome.failures, failure{c.rule, c.batch, c.event, failedRefused, err})
			return true
		}
		k := ledgerKey{c.tenant, c.keyHash}
		if seen[k] {
			r.outcome.suppressed[suppression{ruleOf{c.tenant, c.rule}, reasonDuplicate}]++
			return true
		}
		seen[k] = true
		return false
	})
}

// sift takes the rules out that cannot be recorded.
func (r *recorder) sift(ctx context.Context, tx pgx.Tx, w work) (work, error) {
	for of := range w.rules() {
		own := w.only(func(other *rule) bool { return other == of })
		_, err := own.run(ctx, tx)
		if err == nil {
			_, err = tx.Exec(ctx, "rollback to savepoint rules")
		}
		if err == nil {
			continue
		}
		if !dataError(err) {
			return work{}, err
		}
		if r.refused == nil {
			r.refused = map[*rule]error{}
		}
		r.refused[of] = err
		for _, c := range own.cands {
			r.outcome.failures = append(r.outcome.failures, failure{of, c.batch, c.event, failedRefused, err})
		}
		for _, m := range own.marks {
			r.outcome.failures = append(r.outcome.failures, failure{of, m.batch, m.event.ID, failedRefused, err})
		}
	}
	return w.only(func(of *rule) bool { return r.refused[of] == nil }), nil
}

// dataError says that PostgreSQL refused the data itself: it will refuse it again.
func dataError(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (strings.HasPrefix(pg.Code, "22") || strings.HasPrefix(pg.Code, "54"))
}

// decideSQL makes decisions out of candidates: a candidate whose key is in the ledger is a duplicate (one without a key is
// none: its event is new, which is the same promise without a row that has to be kept for ever); of the others
// each subject is granted as many as its cooldown and cap allow, the first first; those become outbox rows.
//
// Lock order: keys, then subjects, each sorted. A key that another transaction is just inserting is waited for. Keys
// known for long are looked up first, since ON CONFLICT would lock (and so write) their rows; one by one, as a subquery
// that can't become a join, or a plan made while the ledger was small would go on reading all of it. The decision about a
// subject is made on its locked, latest row; greatest() keeps its clock from going back after a wait.
//
// Joins are on one text each, and subjects are joined in full although each has a decision: the planner expects few rows
// and would compare each with each, which a full join cannot do.
const decideSQL = `
with rule as materialized (
	select * from unnest($1::int[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::float8[], $8::float8[],
		$9::int[], $10::float8[], $11::float8[], $12::bool[])
		as r(rid, rule, state_key, hash, type, dests, keep, cooldown, cap_max, cap_seconds, digest, shadow)),
cand as materialized (
	select *, ten::text || kh as at_key from unnest($13::int[], $14::int[], $15::int[], $16::text[], $17::text[], $18::uuid[], $19::text[],
		$20::uuid[], $21::timestamptz[], $22::float8[], $23::text[])
		as c(ord, rid, ten, subj, dk, kh, payload, ev, occ, delay, recheck)),
newkey as (
	insert into dedupe_keys as k (tenant_id, key_hash, expires_at)
	select ten, kh, now() + keep * interval '1 second' from cand c join rule using (rid)
	where kh is not null and (select true from dedupe_keys d
		where d.tenant_id = c.ten and d.key_hash = c.kh and (d.expires_at is null or d.expires_at > now())) is null
	order by ten, kh
	on conflict (tenant_id, key_hash) do update set expires_at = excluded.expires_at where k.expires_at <= now()
	returning tenant_id::text || key_hash as at_key),
fresh as materialized (
	select c.*, r.*, c.ten || ' ' || state_key || chr(31) || subj as at_subject, row_number() over (partition by c.ten, c.rid, c.subj order by c.ord) rn
	from cand c left join newkey n using (at_key) join rule r on r.rid = c.rid
	where c.kh is null or n.at_key is not null),
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
	returning tenant_id || ' ' || rule_id || chr(31) || subject as at_subject, granted,
		cooldown_seconds > 0 and recent[1] > decided_at - cooldown_seconds * interval '1 second' as cooling),
decision as materialized (
	select f.*, f.cooldown = 0 and f.cap_max is null or f.rn <= s.granted as is_granted, s.cooling
	from fresh f full join subject s using (at_subject)),
sent as (
	insert into outbox (tenant_id, type, subject_key, dedupe_key, destination, payload, status, run_after, finished_at, last_error,
		rule_id, rule_hash, event_id, event_occurred_at, recheck)
	select ten, type, subj, dk, d.name, payload::jsonb, case when shadow then 'skipped' else 'pending' end,
		now() + delay * interval '1 second', case when shadow then now() end,
		case when shadow then 'the rule is a shadow: it decides and does not send' end,
		rule, hash, ev, occ, recheck::jsonb
	from decision cross join lateral unnest(string_to_array(dests, ',')) with ordinality as d(name, i)
	where is_granted
	order by ord, i)
select c.ord, case when f.ord is null then 0 when f.is_granted then 1 when f.cooling then 2 else 3 end
from cand c left join decision f using (ord)`

// run writes under a savepoint named rules, in one round trip, and gives an index into reasons for each candidate. When
// PostgreSQL refuses the data, the transaction is as before.
func (w work) run(ctx context.Context, tx pgx.Tx) ([]int, error) {
	var b pgx.Batch
	b.Queue("savepoint rules")
	if len(w.marks) > 0 {
		queueTimers(&b, w.marks)
	}
	outcomes := make([]int, len(w.cands))
	if len(w.cands) > 0 {
		b.Queue(decideSQL, arguments(w.cands)...).Query(func(rows pgx.Rows) error {
			var ord, outcome int
			_, err := pgx.ForEachRow(rows, []any{&ord, &outcome}, func() error {
				outcomes[ord] = outcome
				return nil
			})
			return err
		})
	}
	if len(w.counts) > 0 {
		queueRollup(&b, w.counts) // last: the current minute is the hottest row of all
	}
	err := tx.SendBatch(ctx, &b).Close()
	if dataError(err) {
		if _, rollback := tx.Exec(ctx, "rollback to savepoint rules"); rollback != nil {
			return nil, rollback
		}
	}
	return outcomes, err
}

// count adds what the statement said to the outcome.
func (r *recorder) count(cands []candidate, outcomes []int) {
	for i, c := range cands {
		of := ruleOf{c.tenant, c.rule}
		if outcomes[i] != granted {
			r.outcome.suppressed[suppression{of, reasons[outcomes[i]]}]++
			continue
		}
		r.outcome.messages[of] += len(c.rule.sendTo)
		if !c.rule.shadow {
			r.outcome.due += len(c.rule.sendTo)
		}
	}
}

// arguments are the parameters of decideSQL: one array for each column of the rules and of the candidates. A subject is
// served in the order of the batch.
func arguments(cands []candidate) []any {
	var rules ruleColumns
	var c candidateColumns
	type ruleRow struct {
		*rule
		unlimited bool
	}
	rids := map[ruleRow]int32{}
	for i, cand := range cands {
		row := ruleRow{cand.rule, cand.unlimited}
		rid, ok := rids[row]
		if !ok {
			rid = int32(len(rids))
			rids[row] = rid
			rules.add(rid, cand.rule, cand.unlimited)
		}
		c.ord, c.rid = append(c.ord, int32(i)), append(c.rid, rid)
		c.tenant, c.subject = append(c.tenant, cand.tenant), append(c.subject, cand.subject)
		c.key, c.hash = append(c.key, cand.key), append(c.hash, cand.ledgerKey())
		c.payload, c.delay = append(c.payload, string(cand.payload)), append(c.delay, cand.delay.Seconds())
		var event *pipeline.UUID
		var at *time.Time
		var recheck *string
		if cand.event != (pipeline.UUID{}) {
			event, at = &cand.event, &cand.at
		}
		if cand.recheck != nil {
			text := string(cand.recheck)
			recheck = &text
		}
		c.event, c.time, c.recheck = append(c.event, event), append(c.time, at), append(c.recheck, recheck)
	}
	return []any{rules.rid, rules.name, rules.state, rules.hash, rules.kind, rules.dests, rules.keep, rules.cooldown,
		rules.capMax, rules.capPer, rules.digest, rules.shadow,
		c.ord, c.rid, c.tenant, c.subject, c.key, c.hash, c.payload, c.event, c.time, c.delay, c.recheck}
}

type ruleColumns struct {
	rid                            []int32
	name, state, hash, kind, dests []string
	keep, digest                   []*float64
	cooldown, capPer               []float64
	capMax                         []*int32
	shadow                         []bool
}

func (c *ruleColumns) add(rid int32, r *rule, unlimited bool) {
	l := r.limits
	if unlimited {
		l = limits{dedupeFor: l.dedupeFor}
	}
	c.rid, c.name, c.state = append(c.rid, rid), append(c.name, r.name), append(c.state, r.stateKey)
	c.hash, c.kind, c.dests = append(c.hash, r.hash), append(c.kind, r.id), append(c.dests, strings.Join(r.sendTo, ","))
	c.keep, c.digest = append(c.keep, seconds(l.dedupeFor)), append(c.digest, seconds(l.digestAfter))
	c.cooldown, c.capPer = append(c.cooldown, l.cooldown.Seconds()), append(c.capPer, l.capPer.Seconds())
	var most *int32
	if l.capMax > 0 {
		n := int32(l.capMax)
		most = &n
	}
	c.capMax, c.shadow = append(c.capMax, most), append(c.shadow, r.shadow)
}

type candidateColumns struct {
	ord, rid, tenant      []int32
	subject, key, payload []string
	hash, event           []*pipeline.UUID
	time                  []*time.Time
	delay                 []float64
	recheck               []*string
}

// seconds gives NULL for 0.
func seconds(d time.Duration) *float64 {
	if d == 0 {
		return nil
	}
	s := d.Seconds()
	return &s
}
