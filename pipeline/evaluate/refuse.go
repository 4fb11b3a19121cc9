package evaluate

import (
	"cmp"
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/pipeline"
	"sluice.example/sluice/pipeline/rules"
)

// Some rule made something of an event that PostgreSQL will not store. That one decision is refused, counted and noted
// in rule_refusals; everything else of the batch is recorded, also of the same rule.

// item names a match, a mark or a count within what one recorder writes.
type item struct {
	rule   *rules.Rule
	tenant int32
	batch  int
	event  pipeline.UUID
	role   rules.Role
	key    string
}

func ofMatch(m *rules.Match) item {
	return item{m.Rule, m.Tenant, m.Batch, m.Event, rules.Decides, m.Key}
}

func ofMark(m *rules.Mark) item {
	return item{m.Rule, m.Event.Tenant, m.Batch, m.Event.ID, m.Role, m.Key}
}

func ofCount(c *rules.Count) item {
	return item{c.Rule, c.Event.Tenant, c.Batch, c.Event.ID, c.Role, ""}
}

// allowed is the part of the work that was not refused; what was refused is counted.
func (r *recorder) allowed(w work) work {
	if len(r.refused) == 0 {
		return w
	}
	allow := func(i item) bool {
		err := r.refused[i]
		if err != nil {
			r.outcome.failures = append(r.outcome.failures,
				rules.Failure{Rule: i.rule, Batch: i.batch, Event: i.event, Kind: rules.FailedRefused, Err: err})
		}
		return err == nil
	}
	return w.only(allow)
}

// only is the part of the work that keep wants.
func (w work) only(keep func(item) bool) work {
	var out work
	for i := range w.matches {
		if keep(ofMatch(&w.matches[i])) {
			out.matches = append(out.matches, w.matches[i])
		}
	}
	for i := range w.marks {
		if keep(ofMark(&w.marks[i])) {
			out.marks = append(out.marks, w.marks[i])
		}
	}
	for i := range w.counts {
		if keep(ofCount(&w.counts[i])) {
			out.counts = append(out.counts, w.counts[i])
		}
	}
	return out
}

// items lists the work by rule, in a fixed order.
func (w work) items() (byRule [][]item) {
	at := map[*rules.Rule]int{}
	w.only(func(i item) bool {
		n, ok := at[i.rule]
		if !ok {
			n = len(byRule)
			at[i.rule] = n
			byRule = append(byRule, nil)
		}
		byRule[n] = append(byRule[n], i)
		return false
	})
	return byRule
}

// maxRefused is how many decisions of one rule are found one by one in one batch; the others that can't be recorded
// with them are refused together, since each one costs some round trips. A guess.
const maxRefused = 32

// sift takes out what can't be recorded, by recording parts on their own and rolling them back: a rule, then halves of
// it. Nothing stays locked between, so the order of keys holds.
func (r *recorder) sift(ctx context.Context, tx pgx.Tx, w work) (work, error) {
	if r.refused == nil {
		r.refused = map[item]error{}
	}
	for _, own := range w.items() {
		found := 0
		if err := r.halve(ctx, tx, w, own, &found); err != nil {
			return work{}, err
		}
	}
	return r.allowed(w), nil
}

func (r *recorder) halve(ctx context.Context, tx pgx.Tx, w work, part []item, found *int) error {
	mine := make(map[item]bool, len(part))
	for _, i := range part {
		mine[i] = true
	}
	_, refusal := w.only(func(i item) bool { return mine[i] }).run(ctx, tx)
	if refusal == nil {
		_, err := tx.Exec(ctx, "rollback to savepoint rules")
		return err
	}
	if !dataError(refusal) {
		return refusal
	}
	if len(mine) == 1 || *found >= maxRefused {
		*found += len(mine)
		for i := range mine {
			r.refused[i] = refusal
		}
		return nil
	}
	half := len(part) / 2
	if err := r.halve(ctx, tx, w, part[:half], found); err != nil {
		return err
	}
	return r.halve(ctx, tx, w, part[half:], found)
}

const noteRefusedSQL = `
insert into rule_refusals (tenant_id, event_id, rule_id, refused_at, reason)
select tenant, event, rule, now(), reason
from unnest($1::int[], $2::uuid[], $3::text[], $4::text[]) as u(tenant, event, rule, reason) order by 1, 2, 3
on conflict do nothing`

// keepRefusals is how long it stays known what was refused: as long as anybody asks why an event led to nothing. A
// guess.
const keepRefusals = 30 * day

// noteRefused keeps what was refused in this recording, for explain.
func (r *recorder) noteRefused(ctx context.Context, tx pgx.Tx) error {
	refused := slices.DeleteFunc(slices.Clone(r.outcome.failures), func(f rules.Failure) bool {
		return f.Kind != rules.FailedRefused || f.Event == (pipeline.UUID{})
	})
	if len(refused) == 0 {
		return nil
	}
	tenants := map[pipeline.UUID]int32{}
	for i := range r.refused {
		tenants[i.event] = i.tenant
	}
	slices.SortStableFunc(refused, func(a, b rules.Failure) int { return cmp.Compare(a.Rule.Name, b.Rule.Name) })
	var c struct {
		tenants        []int32
		events         []pipeline.UUID
		names, reasons []string
	}
	for _, f := range refused {
		c.tenants = append(c.tenants, tenants[f.Event])
		c.events = append(c.events, f.Event)
		c.names = append(c.names, f.Rule.Name)
		c.reasons = append(c.reasons, clean(f.Err.Error()))
	}
	_, err := tx.Exec(ctx, noteRefusedSQL, c.tenants, c.events, c.names, c.reasons)
	return err
}
