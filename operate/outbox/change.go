package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/internal/pgtx"
	"sluice.example/sluice/operate/audit"
	"sluice.example/sluice/pipeline/claim"
)

// Change is a way to change messages: Retry or Discard.
type Change struct {
	// Done is the participle: "retried". It is also the kind of its jobs.
	Done string
	// Name is the action in the audit: "retry".
	Name string
	// Statuses are those that it changes where a filter names none.
	Statuses []string

	apply func(ctx context.Context, db claim.DB, f claim.Filter, after int64, limit int) (claim.Step, error)
}

// Retry makes messages due again, Discard gives them up.
var (
	Retry   = Change{"retried", "retry", []string{"dead"}, claim.Retry}
	Discard = Change{"discarded", "discard", []string{"pending", "failed", "dead"}, claim.Discard}
)

// changes are both, by the kind of their jobs.
var changes = map[string]Change{Retry.Done: Retry, Discard.Done: Discard}

// ErrNotChanged means that a message is not in a state that the change is for, or that a worker has it just now.
var ErrNotChanged = errors.New("the message was left as it is: it is final, waits for its turn anyway, or " +
	"is being sent")

// One changes one message, and puts that into the audit. A message that failed is retried at once.
func (c Change) One(ctx context.Context, db pgtx.Beginner, id int64, by audit.Actor) error {
	f := claim.Filter{IDs: []int64{id}, Statuses: append([]string{"failed"}, c.Statuses...)}
	return pgtx.InTx(ctx, db, pgx.TxOptions{}, bounds, func(tx pgx.Tx) error {
		before, _, err := Show(ctx, tx, id)
		if err != nil {
			return err
		}
		step, err := c.apply(ctx, tx, f, 0, 1)
		if err != nil {
			return err
		}
		if step.Changed == 0 {
			return ErrNotChanged
		}
		return audit.Write(ctx, tx, by, c.Name, fmt.Sprintf("message %d", id), was{before.Status, before.Attempts}, nil)
	})
}

// was is what the audit keeps of a message before its change.
type was struct {
	Status   string `json:"status"`
	Attempts int    `json:"attempts"`
}

// Progress is how far a change is.
type Progress struct {
	// Job is the id of the job in operator_jobs. Resumed: an earlier call has begun it.
	Job     int64 `json:"job_id"`
	Resumed bool  `json:"resumed,omitempty"`
	// Changed counts all that the job has changed, also in earlier calls.
	Changed int `json:"changed"`
	// Last is the id of the last message that was looked at.
	Last int64 `json:"last_message_id"`
	// InFlight is how many messages were left to the workers that have them, and Until when their leases end, as they
	// are now.
	InFlight int       `json:"in_flight"`
	Until    time.Time `json:"in_flight_until,omitzero"`
	// Done is true at the end.
	Done bool `json:"done"`
}

// Apply changes the messages that match f and come after an id, at most rate of them a second, and reports each step.
// Messages that are made meanwhile are left alone. It is a job: a call that is interrupted or dies leaves it
// unfinished, and the next one with the same arguments goes on where it ended. Each message is changed once. While
// another process has the job, Apply waits: that process is at work, or it died less than leaseFor ago. The job is put
// into the audit when it is made.
func (c Change) Apply(ctx context.Context, conn *pgx.Conn, f claim.Filter, after int64, rate float64, by audit.Actor,
	report func(Progress)) error {
	batch := min(max(1, int(rate)), 1000)
	pause := time.Duration(float64(batch) / rate * float64(time.Second))
	j, err := take(ctx, conn, c, jobFilter{f, after}, leaseFor+pause, by)
	if err != nil {
		return err
	}
	f = j.fixed(f)
	p := Progress{Job: j.ID, Resumed: j.Resumed, Changed: int(j.Done), Last: j.AfterID}
	for {
		step, err := j.step(ctx, conn, func(tx pgx.Tx) (claim.Step, error) { return c.apply(ctx, tx, f, p.Last, batch) })
		if err != nil {
			return j.stopped(ctx, conn, p.Changed, c.Done, err)
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
			return j.stopped(ctx, conn, p.Changed, c.Done, ctx.Err())
		}
	}
}
