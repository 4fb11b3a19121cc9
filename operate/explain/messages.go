package explain

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/internal/tracecontext"
)

// clockSlack is how far the clocks of the machines that take events may be from the database's, and how long a batch
// may take.
const clockSlack = 5 * time.Minute

// nextMessageSQL is one step into the primary key.
const nextMessageSQL = `select message_id, created_at from outbox where message_id >= $1 order by message_id limit 1`

// messageAt returns an id that no message has reached that was made at a time, give or take the length of a
// transaction: ids grow with time, so a few dozen looks into the primary key find it, however large the outbox is.
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

const messagesSQL = `
select message_id, tenant_id, type, coalesce(rule_id, '') as rule, coalesce(rule_hash, '') as version, destination,
    subject_key, dedupe_key, status, attempts, created_at, run_after, locked_until, finished_at,
    coalesce(last_error, '') as last_error, payload::text as payload,
    idempotency_key::text as idempotency_key, event_id,
    recheck is not null as rechecked, now() as now,
    coalesce((select min(value) from jsonb_each_text(case jsonb_typeof(headers) when 'object' then headers end)
        where lower(key) = 'traceparent'), '') as traceparent
from outbox where `

// messages finds the messages that a condition holds for, with their attempts.
func (x *Explainer) messages(ctx context.Context, where string, args ...any) ([]Message, error) {
	rows, err := x.Conn.Query(ctx, messagesSQL+where+" order by message_id", args...)
	if err != nil {
		return nil, err
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByName[Message])
	if err != nil {
		return nil, err
	}
	for i := range found {
		m := &found[i]
		m.Trace = tracecontext.TraceID(m.TraceParent)
		x.compare(m)
		if m.Attempts, err = x.attempts(ctx, m.ID); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// compare finds whether the rule that decided has another version now.
func (x *Explainer) compare(m *Message) {
	if x.Set == nil || m.Rule == "" {
		return
	}
	for _, r := range x.Set.Rules() {
		if r.Name != m.Rule {
			continue
		}
		if r.Hash != m.Version {
			m.Changed = r.Hash
		}
		return
	}
	if r := x.Set.LimitDigests(m.Rule); r != nil {
		if r.Hash != m.Version {
			m.Changed = r.Hash
		}
		return
	}
	m.Gone = true
}

const attemptsSQL = `
select attempt, started_at, latency_seconds::float8 as seconds, status, http_status, coalesce(error, '') as error
from outbox_all_attempts
where message_id = $1
order by started_at`

func (x *Explainer) attempts(ctx context.Context, message int64) ([]Attempt, error) {
	rows, err := x.Conn.Query(ctx, attemptsSQL, message)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByName[Attempt])
}
