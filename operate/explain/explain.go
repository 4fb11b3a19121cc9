package explain

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/pipeline"
	"sluice.example/sluice/pipeline/rules"
)

// Explainer answers for one tenant.
type Explainer struct {
	Conn *pgx.Conn
	// Set are the rules as they are now; nil without rules.
	Set    *rules.Set
	Tenant int32
}

// Kind is what an id is of.
type Kind string

// NotFoundError says that an id is nowhere, and why that may be.
type NotFoundError string

// Error is that sentence.
func (e NotFoundError) Error() string { return string(e) }

func notFound(format string, args ...any) error { return NotFoundError(fmt.Sprintf(format, args...)) }

// What an id may be of.
const (
	Anything Kind = ""
	AnEvent  Kind = "event"
	AMessage Kind = "message"
)

// Explain finds an id: the number or the idempotency key of a message, or the id of an event, as it was sent or as a
// UUID. An id that is nowhere is a NotFoundError. A number that is both is an error, where it is not said which is
// meant.
func (x *Explainer) Explain(ctx context.Context, as Kind, id string) (*Story, error) {
	s := &Story{RulesKnown: x.Set != nil, Messages: []Message{}}
	uuid, isUUID := pipeline.ParseUUID(id)
	if !isUUID {
		uuid = pipeline.HashUUID(id)
	}
	if as != AnEvent {
		found, err := x.message(ctx, s, id)
		if err != nil {
			return s, err
		}
		if found && as == Anything && !isUUID {
			both, err := find(ctx, x.Conn, x.Tenant, uuid)
			if err != nil {
				return s, err
			}
			if len(both) > 0 {
				return nil, fmt.Errorf("%s is a message and also an event; use explain message %s, or explain event %s",
					id, id, id)
			}
		}
		if found {
			return s, nil
		}
	}
	if as == AMessage {
		return nil, notFound("there is no message %s: it never was, or it was pruned", id)
	}
	if err := x.event(ctx, s, uuid); err != nil || len(s.Events) > 0 {
		return s, err
	}
	if err := x.quarantined(ctx, s, uuid); err != nil || s.Quarantined != nil {
		return s, err
	}
	if as == AnEvent {
		return nil, notFound("%s is not a stored event of tenant %d: it never arrived, it was rejected (then its sender "+
			"was told), or it was removed by age", id, x.Tenant)
	}
	return nil, notFound("%s is neither a message nor a stored event of tenant %d: it never arrived, it was rejected "+
		"(then its sender was told), or it was removed by age", id, x.Tenant)
}

func (x *Explainer) message(ctx context.Context, s *Story, id string) (found bool, err error) {
	if number, err := strconv.ParseInt(id, 10, 64); err == nil {
		if s.Messages, err = x.messages(ctx, `message_id = $1`, number); err != nil || len(s.Messages) > 0 {
			return true, err
		}
	}
	if uuid, ok := pipeline.ParseUUID(id); ok {
		s.Messages, err = x.messages(ctx, `idempotency_key = $1`, uuid)
	}
	return len(s.Messages) > 0, err
}

func (x *Explainer) event(ctx context.Context, s *Story, id pipeline.UUID) error {
	stored, err := find(ctx, x.Conn, x.Tenant, id)
	if err != nil || len(stored) == 0 {
		return err
	}
	for _, e := range stored {
		s.Events = append(s.Events, Event{
			Partition:   e.partition,
			ID:          e.ID,
			ClientID:    e.ClientID,
			Name:        e.Name,
			Tenant:      e.Tenant,
			OccurredAt:  e.OccurredAt,
			ReceivedAt:  e.ReceivedAt,
			UserID:      e.UserID,
			AnonymousID: e.AnonymousID,
			SessionID:   e.SessionID,
			Properties:  e.Properties,
		})
	}
	for i, e := range stored {
		if s.Events[i].Rules, err = x.looks(ctx, e.Event); err != nil {
			return err
		}
	}
	first, err := x.messageAt(ctx, stored[0].ReceivedAt.Add(-clockSlack))
	if err != nil {
		return err
	}
	s.Messages, err = x.messages(ctx, `message_id >= $1 and tenant_id = $2 and event_id = $3`, first, x.Tenant, id)
	return err
}

const quarantinedSQL = `
select event_id, quarantined_at, sqlstate, reason from quarantine where tenant_id = $1 and event_id = $2`

func (x *Explainer) quarantined(ctx context.Context, s *Story, id pipeline.UUID) error {
	rows, err := x.Conn.Query(ctx, quarantinedSQL, x.Tenant, id)
	if err != nil {
		return err
	}
	q, err := pgx.CollectExactlyOneRow(rows, pgx.RowToAddrOfStructByName[Quarantined])
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	s.Quarantined = q
	return err
}

// looks is what each rule that listens makes of the event.
func (x *Explainer) looks(ctx context.Context, e pipeline.Event) ([]Rule, error) {
	found := []Rule{}
	if x.Set == nil {
		return found, nil
	}
	refused, err := x.refused(ctx, e)
	if err != nil {
		return nil, err
	}
	for _, l := range x.Set.Explain(e) {
		r := Rule{
			Rule:    l.Rule,
			Kind:    l.Kind,
			State:   l.State,
			Version: l.Hash,
			As:      l.As,
			Matched: l.Matched,
			Failure: l.Failure,
			Key:     l.Key,
			Subject: l.Subject,
			Refused: refused[l.Rule],
		}
		switch {
		case r.Refused != "":
		case l.Failure != "" || !l.Matched || l.Kind == "rate":
		case l.Kind == "absence":
			if r.Timer, err = x.timer(ctx, l); err == nil && r.Timer.ranOut() && len(r.Timer.Messages) == 0 {
				r.Timer.Held, err = x.heldTimer(ctx, e, l, r.Timer)
			}
			if err == nil && l.As == rules.Triggers.String() {
				r.Timer.overtaken(e.OccurredAt)
			}
		default:
			r.Held, err = x.held(ctx, e, l)
		}
		if err != nil {
			return nil, err
		}
		found = append(found, r)
	}
	return found, nil
}

const refusedSQL = `select rule_id, reason from rule_refusals where tenant_id = $1 and event_id = $2`

// refused are the rules whose decision about the event PostgreSQL would not store, and why.
func (x *Explainer) refused(ctx context.Context, e pipeline.Event) (map[string]string, error) {
	rows, err := x.Conn.Query(ctx, refusedSQL, x.Tenant, e.ID)
	if err != nil {
		return nil, err
	}
	why := map[string]string{}
	var rule, reason string
	_, err = pgx.ForEachRow(rows, []any{&rule, &reason}, func() error { why[rule] = reason; return nil })
	return why, err
}

const timerSQL = `
select trigger_at, cancel_at, activity_at, done_at, armed_at, armed_at + $4::interval as due_at, now() as now,
    true as found
from absence_timers
where tenant_id = $1 and timer = $2 and key = $3`

func (x *Explainer) timer(ctx context.Context, l rules.Look) (*Timer, error) {
	rows, err := x.Conn.Query(ctx, timerSQL, x.Tenant, l.Timer, l.Key, l.Within)
	if err != nil {
		return nil, err
	}
	t, err := pgx.CollectExactlyOneRow(rows, pgx.RowToAddrOfStructByName[Timer])
	if errors.Is(err, pgx.ErrNoRows) {
		return &Timer{}, nil
	}
	if err != nil || !t.ranOut() {
		return t, err
	}
	first, err := x.messageAt(ctx, t.Trigger.Add(-clockSlack))
	if err != nil {
		return nil, err
	}
	t.Messages, err = x.messages(ctx, `message_id >= $1 and tenant_id = $2 and rule_id = any($3)
		and (dedupe_key = $4 or starts_with(dedupe_key, $4 || '@'))`, first, x.Tenant, l.Names, l.Key)
	return t, err
}

// cancelled reports whether a cancel came at the trigger or after it.
func (t *Timer) cancelled() bool {
	return t.Cancel != nil && t.Trigger != nil && !t.Cancel.Before(*t.Trigger)
}

// overtaken notes what came after a trigger at some time: a later one, and a cancel before that.
func (t *Timer) overtaken(at time.Time) {
	if t.Trigger == nil || !t.Trigger.After(at) {
		return
	}
	t.Later = t.Trigger
	if t.Cancel != nil && !t.Cancel.Before(at) && t.Cancel.Before(*t.Trigger) {
		t.Ended = t.Cancel
	}
}

// ranOut reports whether the timer waits for nothing any more since it was decided about.
func (t *Timer) ranOut() bool {
	return t.Armed == nil && t.Trigger != nil && !t.cancelled() && t.Done != nil
}
