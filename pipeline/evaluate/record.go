package evaluate

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"sluice.example/sluice/internal/pgsession"
	"sluice.example/sluice/pipeline/rules"
)

// Plan is what the rules found about one batch, before it is known which of its events are new. Its methods are for one
// goroutine.
type Plan struct {
	recorder
	found *rules.Findings
}

// Record writes the decisions about the events that were stored, in the transaction of their batch. It may be called
// again, with other events stored; the last call counts. Rows are touched in the order of their keys, so two batches
// never wait for each other in a circle.
func (p *Plan) Record(ctx context.Context, tx pgx.Tx, stored []bool) error {
	p.reset()
	p.outcome.looked, p.outcome.evaluated = p.found.Heard(stored)
	return p.record(ctx, tx, p.found.Stored(stored))
}

// outcome is what one recording found, for Committed.
type outcome struct {
	looked map[int32]int
	// evaluated counts by rule.
	evaluated map[*rules.Rule]int
	messages  map[ruleOf]int
	// suppressed counts decisions that made no message, by reason.
	suppressed map[suppression]int
	failures   []rules.Failure
	// due counts the messages that can be sent.
	due int
}

type ruleOf struct {
	tenant int32
	rule   *rules.Rule
}

type suppression struct {
	ruleOf
	reason string
}

// fate is what became of a match: it is empty for one that was granted, and otherwise the reason for which it made no
// message.
type fate string

const (
	granted   fate = ""
	duplicate fate = rules.Duplicate
	cooling   fate = rules.Cooldown
	capped    fate = rules.Cap
	overLimit fate = rules.OverLimit
)

// recorder writes matches as decisions, and counts what became of them.
type recorder struct {
	engine *Engine
	// refused are the decisions that PostgreSQL would not store, and why.
	refused map[item]error
	// outcome is what the last recording found.
	outcome outcome
}

func (e *Engine) recorder() *recorder {
	r := &recorder{engine: e}
	r.reset()
	return r
}

func (r *recorder) reset() {
	r.outcome = outcome{
		looked:     map[int32]int{},
		evaluated:  map[*rules.Rule]int{},
		messages:   map[ruleOf]int{},
		suppressed: map[suppression]int{},
	}
}

// record makes decisions out of findings, moves timers and adds up counts.
func (r *recorder) record(ctx context.Context, tx pgx.Tx, found *rules.Findings) error {
	r.outcome.failures = append(r.outcome.failures, found.Failures...)
	for _, p := range found.Passed {
		r.outcome.suppressed[suppression{ruleOf{p.Tenant, p.Rule}, rules.TooOld}]++
	}
	return r.write(ctx, tx, work{matches: found.Matches, marks: found.Marks, counts: found.Counts})
}

// work is what one recording writes.
type work struct {
	matches []rules.Match
	marks   []rules.Mark
	counts  []rules.Count
	// sent is what the limits over several rules made of each match, once they were asked; nil of those under none.
	sent [][]rules.Part
}

// parts are the messages of a match that was granted.
func (w work) parts(i int) []rules.Part {
	if i < len(w.sent) && w.sent[i] != nil {
		return w.sent[i]
	}
	return []rules.Part{{To: w.matches[i].Rule.SendTo, Delay: w.matches[i].Delay}}
}

func (w work) size() int { return len(w.matches) + len(w.marks) + len(w.counts) }

func (r *recorder) write(ctx context.Context, tx pgx.Tx, w work) error {
	w = r.allowed(w)
	w.matches = r.distinct(w.matches)
	for w.size() > 0 {
		w.sent = make([][]rules.Part, len(w.matches))
		fates, err := w.run(ctx, tx)
		if err == nil {
			r.count(w, fates)
			break
		}
		if !dataError(err) {
			return fmt.Errorf("evaluate: record %d decisions: %w", w.size(), err)
		}
		before := w.size()
		if w, err = r.sift(ctx, tx, w); err != nil {
			return fmt.Errorf("evaluate: find what can't be recorded: %w", err)
		}
		if w.size() == before {
			return fmt.Errorf("evaluate: record %d decisions: each part alone can be recorded, together they can't", before)
		}
	}
	if err := r.noteRefused(ctx, tx); err != nil {
		return fmt.Errorf("evaluate: note %d decisions that can't be recorded: %w", len(r.refused), err)
	}
	return nil
}

// distinct leaves one match for each key. Of two with one key the first wins; the other is counted.
func (r *recorder) distinct(matches []rules.Match) []rules.Match {
	seen := make(map[ledgerKey]bool, len(matches))
	return slices.DeleteFunc(matches, func(m rules.Match) bool {
		k := ledgerKey{m.Tenant, m.KeyHash}
		if seen[k] {
			r.outcome.suppressed[suppression{ruleOf{m.Tenant, m.Rule}, rules.Duplicate}]++
			return true
		}
		seen[k] = true
		return false
	})
}

// uniqueViolation: another node made the same decision just now, and the batch is repeated.
const uniqueViolation = "23505"

// dataError reports whether PostgreSQL, or somebody's trigger, refused the data itself: it will refuse it again.
func dataError(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code != uniqueViolation && pgsession.AboutData(pg.Code)
}

// count adds what became of the matches to the outcome.
func (r *recorder) count(w work, fates []fate) {
	for i, m := range w.matches {
		of := ruleOf{m.Tenant, m.Rule}
		if fates[i] != granted {
			r.outcome.suppressed[suppression{of, string(fates[i])}]++
			continue
		}
		n := 0
		for _, part := range w.parts(i) {
			n += len(part.To)
		}
		if n < len(m.Rule.SendTo) {
			r.outcome.suppressed[suppression{of, rules.OverLimit}]++
		}
		r.outcome.messages[of] += n
		if !m.Rule.Shadow {
			r.outcome.due += n
		}
	}
}
