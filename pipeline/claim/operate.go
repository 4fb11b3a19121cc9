package claim

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/pipeline"
)

// DB is a connection or a pool.
type DB interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Filter picks messages of the outbox; an empty field matches all.
type Filter struct {
	IDs         []int64
	Tenant      int32
	Destination string
	Type        string
	Subject     string
	// Error is a part of last_error.
	Error string
	// Statuses are values of the status column.
	Statuses []string
	// OlderThan and NewerThan bound the message's age.
	OlderThan, NewerThan time.Duration
	// WaitsOver is for messages that are to wait longer than this from now on, as after a step of the clock.
	// Retry takes such a lease as none, so it has to be longer than every claim.lease.
	WaitsOver time.Duration
	// Through is the last id that Retry and Discard change; 0: none.
	Through int64
	// FinalBy leaves out what became final later, for Retry and Discard; zero: nothing.
	FinalBy time.Time `json:"-"`
}

// whereSQL is the filter. These statements are planned anew each time, so what is empty is gone before the plan is
// made: dead messages are found by outbox_dead, and ids by the primary key.
const whereSQL = `
where (cardinality($1::bigint[]) = 0 or message_id = any ($1)) and ($2::integer = 0 or tenant_id = $2)
    and ($3::text = '' or destination = $3) and ($4::text = '' or type = $4) and ($5::text = '' or subject_key = $5)
    and ($6::text = '' or position($6 in last_error) > 0) and (cardinality($7::text[]) = 0 or status = any ($7))
    and ($8::float8 = 0 or created_at <= now() - $8 * interval '1 second')
    and ($9::float8 = 0 or created_at >= now() - $9 * interval '1 second')
    and ($10::float8 = 0 or status in ('pending', 'failed') and behind_since is null
        and greatest(run_after, locked_until) > now() + $10 * interval '1 second')`

// args are whereSQL's, after the mode in which to plan.
func (f Filter) args(more ...any) []any {
	ids, statuses := f.IDs, f.Statuses
	if ids == nil {
		ids = []int64{}
	}
	if statuses == nil {
		statuses = []string{}
	}
	return append([]any{pgx.QueryExecModeCacheDescribe, ids, f.Tenant, f.Destination, f.Type, f.Subject, f.Error,
		statuses,
		f.OlderThan.Seconds(), f.NewerThan.Seconds(), f.WaitsOver.Seconds()}, more...)
}

// Row is a message as it stands in the outbox.
type Row struct {
	pipeline.Message
	DedupeKey, Status    string
	Attempts             int
	LostLeases           int // that ran out without a result
	RunAfter             time.Time
	LockedUntil          *time.Time // nil: never leased, or given back
	FinishedAt           *time.Time
	LastError            string
	RuleID, RuleHash     string
	EventID              *pipeline.UUID
	BehindSince          *time.Time // when a claim saw that one before it, of its subject, has to end first; nil: none did
	Due, Leased, Overdue bool       // as of the database's clock; Overdue: a lease has run out without a result
}

// rowSQL names its columns after the fields of Row.
const rowSQL = `
select message_id as id, tenant_id as tenant, coalesce(tenant_ref, '') as tenant_ref, type, subject_key,
    idempotency_key, destination, payload::text as payload, headers, rule_id is not null as rule, redrives,
    created_at, dedupe_key, status, attempts, lost_leases, run_after, behind_since, locked_until,
    finished_at, coalesce(last_error, '') as last_error, coalesce(rule_id, '') as rule_id,
    coalesce(rule_hash, '') as rule_hash, event_id,
    status in ('pending', 'failed') and run_after <= now()
        and (locked_until is null or locked_until <= now()) as due,
    coalesce(locked_until > now(), false) as leased, coalesce(locked_until <= now(), false) as overdue
from outbox`

const listSQL = rowSQL + whereSQL + `
    and ($11::bigint = 0 or message_id < $11) and message_id >= $13
order by message_id desc
limit $12`

// List returns messages, newest first: at most limit of those before the given id (0: from the newest). It looks at
// 100,000 at most. reached is the id down to which it looked where it stopped for that reason, and the next call goes
// on before it; otherwise it is 0.
func List(ctx context.Context, db DB, f Filter, before int64, limit int) (list []Row, reached int64, err error) {
	f, reached, err = f.walk(ctx, db, before, true)
	if err != nil {
		return nil, 0, err
	}
	rows, err := db.Query(ctx, listSQL, f.args(before, limit, reached)...)
	if err != nil {
		return nil, 0, fmt.Errorf("claim: list: %w", err)
	}
	if list, err = pgx.CollectRows(rows, pgx.RowToStructByName[Row]); err != nil {
		return nil, 0, fmt.Errorf("claim: list: %w", err)
	}
	if len(list) == limit {
		reached = 0 // the page is full before that
	}
	return list, reached, nil
}

// Attempt is one try to deliver a message.
type Attempt struct {
	// Number is 0 where the result came late.
	Number     int
	StartedAt  time.Time
	Latency    time.Duration
	Status     string // sent, failed, dead or late
	HTTPStatus int
	Error      string
}

const attemptsSQL = `
select coalesce(attempt, 0) as number, started_at, latency_seconds * interval '1 second' as latency, status,
    coalesce(http_status, 0) as http_status, coalesce(error, '') as error
from outbox_all_attempts
where message_id = $1
order by started_at`

// ErrNoMessage means that no message has this id; it may have been pruned.
var ErrNoMessage = errors.New("no such message")

// Show returns one message with its attempts, oldest first.
func Show(ctx context.Context, db DB, id int64) (Row, []Attempt, error) {
	list, _, err := List(ctx, db, Filter{IDs: []int64{id}}, 0, 1)
	if err != nil {
		return Row{}, nil, err
	}
	if len(list) == 0 {
		return Row{}, nil, fmt.Errorf("claim: message %d: %w", id, ErrNoMessage)
	}
	rows, err := db.Query(ctx, attemptsSQL, id)
	if err != nil {
		return Row{}, nil, fmt.Errorf("claim: attempts: %w", err)
	}
	attempts, err := pgx.CollectRows(rows, pgx.RowToStructByName[Attempt])
	if err != nil {
		return Row{}, nil, fmt.Errorf("claim: attempts: %w", err)
	}
	return list[0], attempts, nil
}

// Group counts messages that are alike.
type Group struct {
	Destination, Status string
	Messages            int64
}

const countSQL = `select destination, status, count(*) as messages from outbox` + whereSQL + `
group by destination, status order by destination, status`

// Count returns how many messages a filter picks.
func Count(ctx context.Context, db DB, f Filter) ([]Group, error) {
	rows, err := db.Query(ctx, countSQL, f.args()...)
	if err != nil {
		return nil, fmt.Errorf("claim: count: %w", err)
	}
	groups, err := pgx.CollectRows(rows, pgx.RowToStructByName[Group])
	if err != nil {
		return nil, fmt.Errorf("claim: count: %w", err)
	}
	return groups, nil
}

// retrySQL makes messages due. What was final starts anew, as another redrive; what waits for its next attempt keeps
// its count. Messages under a lease are left to their worker, except where it ends later than WaitsOver, since no
// worker has a lease of that length. The attempt by which one was sent moves to the others.
const retrySQL = `
with picked as materialized (
    select message_id, attempts, attempt_started_at, attempt_seconds, attempt_http_status
    from outbox` + whereSQL + `
        and message_id > $11 and message_id <= $13 and (locked_until is null or locked_until <= now()
            or $10 > 0 and locked_until > now() + $10 * interval '1 second')
        and ($14::timestamptz is null or finished_at is null or finished_at <= $14)
    order by message_id
    limit $12
    for update
), moved as (
    insert into outbox_attempts (message_id, attempt, started_at, latency_seconds, status, http_status)
    select message_id, attempts, attempt_started_at, attempt_seconds, 'sent', attempt_http_status
    from picked
    where attempt_started_at is not null
)
update outbox
set status = case when status in ('pending', 'failed') then status else 'pending' end,
    attempts = case when status in ('pending', 'failed') then attempts else 0 end,
    lost_leases = case when status in ('pending', 'failed') then lost_leases else 0 end,
    redrives = redrives + case when status in ('pending', 'failed') then 0 else 1 end,
    run_after = now(), behind_since = null, finished_at = null, locked_until = null, lease_token = null,
    attempt_started_at = null, attempt_seconds = null, attempt_http_status = null
where message_id = any (array(select message_id from picked))
returning message_id`

// Step is what one call changed.
type Step struct {
	Changed int
	// Last is the id of the last message that was looked at, from which the next call goes on.
	Last int64
	// Done: no message comes after it.
	Done bool
	// InFlight is how many messages were left alone, since workers have them under leases, and Until when the last of
	// these leases ends if it is not extended.
	InFlight int
	Until    time.Time
}

// inFlightSQL finds the messages that a change leaves alone.
const inFlightSQL = `
select count(*), coalesce(max(locked_until), now())
from outbox` + whereSQL + `
    and message_id > $11 and message_id <= $12 and status in ('pending', 'failed') and locked_until > now()`

// Retry makes messages due again: at most limit of those after the given id, in the order of ids. It looks at 100,000
// at most. A message keeps its idempotency key, so a receiver that took it before recognises it.
func Retry(ctx context.Context, db DB, f Filter, after int64, limit int) (Step, error) {
	return change(ctx, db, "retry", retrySQL, f, after, limit)
}

// discardSQL gives messages up. Messages under a lease are left to their worker, who may be sending them just now: the
// next one of the subject would be sent beside it otherwise, or the same message by a retry.
const discardSQL = `
with picked as materialized (
    select message_id
    from outbox` + whereSQL + `
        and message_id > $11 and message_id <= $13 and status in ('pending', 'failed', 'dead')
        and (locked_until is null or locked_until <= now())
        and ($14::timestamptz is null or finished_at is null or finished_at <= $14)
    order by message_id
    limit $12
    for update
)
update outbox
set status = 'skipped', finished_at = now(), behind_since = null, locked_until = null, lease_token = null,
    last_error = left('discarded by an operator' || coalesce('; before: ' || last_error, ''), 1000)
where message_id = any (array(select message_id from picked))
returning message_id`

// Discard makes messages that are not final, and dead ones, skipped. Otherwise it is like Retry.
func Discard(ctx context.Context, db DB, f Filter, after int64, limit int) (Step, error) {
	return change(ctx, db, "discard", discardSQL, f, after, limit)
}

type inFlight struct {
	Messages int
	Until    time.Time
}

func change(ctx context.Context, db DB, what, sql string, f Filter, after int64, limit int) (Step, error) {
	step := Step{Last: after}
	f, most, err := f.walk(ctx, db, after, false)
	if err != nil {
		return step, err
	}
	end := int64(math.MaxInt64)
	if f.Through > 0 {
		end = f.Through
	}
	through := most == 0 || most >= end
	if through {
		most = end
	}
	var finalBy *time.Time
	if !f.FinalBy.IsZero() {
		finalBy = &f.FinalBy
	}
	rows, err := db.Query(ctx, sql, f.args(after, limit, most, finalBy)...)
	if err != nil {
		return step, fmt.Errorf("claim: %s: %w", what, err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return step, fmt.Errorf("claim: %s: %w", what, err)
	}
	if len(ids) > 0 {
		wakeAll(ctx, db, ids)
	}
	step.Changed = len(ids)
	switch {
	case len(ids) == limit:
		step.Last = slices.Max(ids)
	case through:
		step.Done = true
		if len(ids) > 0 {
			step.Last = slices.Max(ids)
		}
	default:
		step.Last = most
	}
	last := step.Last
	if step.Done {
		last = end
	}
	rows, err = db.Query(ctx, inFlightSQL, f.args(after, last)...)
	if err != nil {
		return step, fmt.Errorf("claim: %s: %w", what, err)
	}
	inFlight, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[inFlight])
	if err != nil {
		return step, fmt.Errorf("claim: %s: %w", what, err)
	}
	if step.InFlight = inFlight.Messages; step.InFlight > 0 {
		step.Until = inFlight.Until
	}
	return step, nil
}

// wakeAll makes those due that waited for changed messages, and tells the workers of all nodes. Where it fails, sweeps
// and polling find them. Which destinations a dead message holds up is for their workers to know, who look again.
func wakeAll(ctx context.Context, db DB, changed []int64) {
	if rows, err := db.Query(ctx, promoteNextSQL, pgx.QueryExecModeCacheDescribe, changed, []string{}); err == nil {
		rows.Close()
	}
	if rows, err := db.Query(ctx, notifySQL, pgx.QueryExecModeCacheDescribe, channel, "operator"); err == nil {
		rows.Close()
	}
}
