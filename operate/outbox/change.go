package outbox

import (
	"context"
	"fmt"
	"time"

	"sluice.example/sluice/pipeline/claim"
)

// Change is a way to change messages: Retry or Discard.
type Change struct {
	// Done is the participle: "retried".
	Done string
	// Statuses are those that it changes where a filter names none.
	Statuses []string

	apply func(ctx context.Context, db claim.DB, f claim.Filter, after int64, limit int) (claim.Step, error)
}

// Retry makes messages due again, Discard gives them up.
var (
	Retry   = Change{"retried", []string{"dead"}, claim.Retry}
	Discard = Change{"discarded", []string{"pending", "failed", "dead"}, claim.Discard}
)

// Progress is how far a change is.
type Progress struct {
	Changed int `json:"changed"`
	// Last is the id of the last message that was looked at: what a change goes on after.
	Last int64 `json:"last_message_id"`
	// InFlight is how many messages were left to the workers that have them, and Until when their leases end, as they
	// are now.
	InFlight int       `json:"in_flight"`
	Until    time.Time `json:"in_flight_until,omitzero"`
	// Done is true at the end.
	Done bool `json:"done"`
}

// Apply changes the messages that match f and come after an id, at most rate of them a second, and reports each step.
// A step that was taken stays taken; the error of an interruption tells how to go on.
func (c Change) Apply(ctx context.Context, db claim.DB, f claim.Filter, after int64, rate float64,
	report func(Progress)) error {
	batch := min(max(1, int(rate)), 1000)
	pause := time.Duration(float64(batch) / rate * float64(time.Second))
	p := Progress{Last: after}
	for {
		step, err := c.apply(ctx, db, f, p.Last, batch)
		if err != nil {
			return fmt.Errorf("%d messages %s, then: %w; go on with --after %d", p.Changed, c.Done, err, p.Last)
		}
		p.Changed += step.Changed
		p.InFlight += step.InFlight
		if step.InFlight > 0 && step.Until.After(p.Until) {
			p.Until = step.Until
		}
		p.Last = step.Last
		p.Done = step.Done
		report(p)
		if p.Done {
			return nil
		}
		select {
		case <-time.After(pause * time.Duration(step.Changed) / time.Duration(batch)):
		case <-ctx.Done():
			return fmt.Errorf("interrupted: %d messages %s; go on with --after %d", p.Changed, c.Done, p.Last)
		}
	}
}
