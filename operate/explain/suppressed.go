package explain

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/pipeline"
	"sluice.example/sluice/pipeline/rules"
)

// clockSlack is how far the clocks of the machines that take events may be from the database's, and how long a batch may take.
const clockSlack = 5 * time.Minute

// nextMessageSQL is one step into the primary key.
const nextMessageSQL = `select message_id, created_at from outbox where message_id >= $1 order by message_id limit 1`

// messageAt gives an id that no message has reached that was made at a time, give or take the length of a transaction: ids
// grow with time, so a few dozen looks into the primary key find it, however large the outbox is.
func (x *Explainer) messageAt(ctx context.Context, at time.Time) (id int64, err error) {
	var high int64
	if err := x.Conn.QueryRow(ctx, `select coalesce(max(message_id), 0) + 1 from outbox`).Scan(&high); err != nil {
		return 0, err
	}
	for low := int64(0); low < high; {
		middle := low + (high-low)/2
		var made time.Time
		err := x.Conn.QueryRow(ctx, nextMessageSQL, middle).Scan(&id, &made)
		switch {
		case errors.Is(err, pgx.ErrNoRows) || err == nil && !made.Before(at):
			high = middle
		case err != nil:
			return 0, err
		default:
			low = id + 1
		}
	}
	return high, nil
}

// suppressed works out what kept a match from becoming a message.
func (x *Explainer) suppressed(ctx context.Context, e pipeline.Event, l rules.Look) error {
	window := max(l.Cooldown, l.CapPer)
	first, err := x.messageAt(ctx, e.ReceivedAt.Add(-window-clockSlack))
	if err != nil {
		return err
	}
	var made bool
	err = x.Conn.QueryRow(ctx, `select exists (select from outbox where message_id >= $1 and tenant_id = $2 and rule_id = $3 and event_id = $4)`,
		first, x.Tenant, l.Rule, e.ID).Scan(&made)
	if err != nil || made {
		return err
	}
	limited := l.Cooldown > 0 || l.CapMax > 0
	if keyed := l.Ledger != (pipeline.UUID{}); keyed {
		var remembered bool
		if err := x.Conn.QueryRow(ctx, `select exists (select from dedupe_keys where tenant_id = $1 and key_hash = $2)`, x.Tenant, l.Ledger).Scan(&remembered); err != nil {
			return err
		}
		if !remembered {
			x.say("    no decision was recorded: the rule was not in force, or was another version, when the event arrived; or its key is forgotten (dedupe_for)")
			return nil
		}
		if said, err := x.duplicate(ctx, l); said || err != nil {
			return err
		}
	} else if !limited {
		x.say("    no decision is on record: the rule was not in force, or was another version, when the event arrived; or its message was pruned")
		return nil
	}
	if !limited {
		x.say("    the key is remembered, but its message was pruned")
		return nil
	}
	return x.heldBack(ctx, e, l, first)
}

func (x *Explainer) duplicate(ctx context.Context, l rules.Look) (said bool, err error) {
	var id int64
	var at time.Time
	err = x.Conn.QueryRow(ctx, `select message_id, created_at from outbox where tenant_id = $1 and rule_id = $2 and dedupe_key = $3
		order by message_id limit 1`, x.Tenant, l.Rule, l.Key).Scan(&id, &at)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err == nil {
		x.say("    suppressed as a duplicate: the key was used at %s by message %d", stamp(at), id)
	}
	return true, err
}

// grantsSQL finds what the subject was granted in the time before an event arrived: what its row still remembers, and messages.
const grantsSQL = `
select at from (
	select unnest(recent) as at from rule_subjects where tenant_id = $1 and rule_id = $2 and subject = $3
	union
	select created_at from outbox where message_id >= $4 and tenant_id = $1 and rule_id = $5 and subject_key = $3 and event_id is not null) g
where at > $6::timestamptz - $7::interval and at <= $6::timestamptz + $8::interval
order by at desc`

// heldBack says which limit held a decision back, as far as what was granted before is still known.
func (x *Explainer) heldBack(ctx context.Context, e pipeline.Event, l rules.Look, first int64) error {
	// A decision is made a moment after its event arrives; another one in that moment may have been before or after it.
	const batch = 5 * time.Second
	rows, err := x.Conn.Query(ctx, grantsSQL, x.Tenant, l.StateKey, l.Subject, first, l.Rule, e.ReceivedAt, max(l.Cooldown, l.CapPer), batch)
	if err != nil {
		return err
	}
	granted, err := pgx.CollectRows(rows, pgx.RowTo[time.Time])
	if err != nil {
		return err
	}
	inCap := 0
	for _, at := range granted {
		if at.After(e.ReceivedAt.Add(-l.CapPer)) {
			inCap++
		}
	}
	var now time.Time
	if err := x.Conn.QueryRow(ctx, `select now()`).Scan(&now); err != nil {
		return err
	}
	tense := func(end time.Time) string {
		if end.After(now) {
			return "it lasts until " + stamp(end)
		}
		return "it has been over since " + stamp(end)
	}
	switch {
	case l.Cooldown > 0 && len(granted) > 0 && granted[0].After(e.ReceivedAt.Add(-l.Cooldown)):
		x.say("    held back by a cooldown of %s: the subject was granted a message at %s; %s", l.Cooldown, stamp(granted[0]), tense(granted[0].Add(l.Cooldown)))
	case l.CapMax > 0 && inCap >= l.CapMax:
		x.say("    held back by a cap of %d in %s: the subject was granted %d in that time before, the last at %s", l.CapMax, l.CapPer, inCap, stamp(granted[0]))
	default:
		x.say("    made no message that is still stored. Held back by cooldown or cap, or pruned: what was granted then is not known any more")
	}
	var held int64
	var due time.Time
	err = x.Conn.QueryRow(ctx, `select suppressed, digest_due_at from rule_subjects where tenant_id = $1 and rule_id = $2 and subject = $3
		and digest_due_at is not null and suppressed_since <= $4::timestamptz + $5::interval`, x.Tenant, l.StateKey, l.Subject, e.ReceivedAt, batch).Scan(&held, &due)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err == nil {
		x.say("      %d held back so far; next: a digest tells so at %s", held, stamp(due))
	}
	return err
}
