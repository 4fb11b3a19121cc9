package evaluate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
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

// The reasons for which a decision makes no message, as they stand in the metric.
const (
	reasonDuplicate = "duplicate"
	reasonCooldown  = "cooldown"
	reasonCap       = "cap"
)

var reasons = []string{reasonDuplicate, "", reasonCooldown, reasonCap}

// What became of a candidate: an index into reasons.
const (
	duplicate = iota
	granted
	cooling
	capped
)

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
	heard := map[*listener]int{} // events by the first listener of a list: many events share few lists
	lists := map[*listener][]listener{}
	for _, i := range p.looked {
		if !stored[i] {
			continue
		}
		p.outcome.looked[p.events[i].Tenant]++
		for _, list := range p.set.listeners(&p.events[i]) {
			if len(list) == 0 {
				continue
			}
			if heard[&list[0]]++; heard[&list[0]] == 1 {
				lists[&list[0]] = list
			}
		}
	}
	for first, list := range lists {
		for _, l := range list {
			p.outcome.evaluated[l.rule] += heard[first]
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

// count adds what became of the candidates to the outcome.
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
