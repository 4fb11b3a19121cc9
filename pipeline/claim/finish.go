package claim

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"sluice.example/sluice/internal/pgsession"
	"sluice.example/sluice/pipeline"
)

// durably lets the statement that it is part of return after its WAL is on disk, also where the role or the database
// has synchronous_commit off: a result that a crash of PostgreSQL takes back is delivered once more. Any other value is
// an operator's choice and stays.
const durably = `
where (select set_config('synchronous_commit',
    coalesce(nullif(current_setting('synchronous_commit'), 'off'), 'on'), true)) is not null`

// briefly bounds the wait for rows that somebody else holds: an application's transaction, or a person's. It takes
// effect before the statement that it is part of looks at the outbox. A guess: longer than our own statements hold a
// row.
const briefly = `
    where (select set_config('lock_timeout', '250ms', true)) is not null`

// ofTheMessage keeps a late attempt from the story of another message: ids that a failover lost come again. A scalar
// subquery is a lookup by key for each row; of "exists" PostgreSQL 18 makes a hash of the whole outbox.
const ofTheMessage = `
        and (key = '' or key = (select m.idempotency_key::text from outbox m where m.message_id = r.message_id))`

// sentSQL records that messages were sent, with the attempt, where the result's token still stands on a row that is not
// final. A lease that has run out but that nobody took since may still record its result, which saves repeating what
// was done. Rows are looked up by primary key in the order of their ids; see claimSQL for the array. The status is
// compared as an expression: PostgreSQL 18 would otherwise read all of the partial index outbox_claimable for ids, in a
// table that was never analysed.
// Only where some came late does it look for them, and note them.
const sentSQL = `
with result as materialized (
    select * from unnest($1::bigint[], $2::text[]::uuid[], $3::integer[], $4::float8[], $5::float8[], $6::text[])
        as r (message_id, token, http_status, started_ago, latency, key)` + briefly + `
), recorded as (
    update outbox o
    set status = 'sent', attempts = o.attempts + 1, finished_at = now(), locked_until = null, lease_token = null,
        last_error = null,
        attempt_started_at = now() - r.started_ago * interval '1 second',
        attempt_seconds = r.latency,
        attempt_http_status = nullif(r.http_status, 0)
    from result r
    where o.message_id = any (array(select message_id from result))
        and o.message_id = r.message_id and o.lease_token = r.token and o.status || '' in ('pending', 'failed')
    returning o.message_id, r.token
), noted as (
    insert into outbox_attempts (message_id, started_at, latency_seconds, status, http_status)
    select message_id, now() - started_ago * interval '1 second', latency, 'late', nullif(http_status, 0)
    from result r
    where (select count(*) from recorded) < cardinality($1::bigint[])
        and (message_id, token) not in (select message_id, token from recorded)` + ofTheMessage + `
)
select 'sent', count(*) from recorded` + durably

// finishSQL records results of every kind, with the same fence, and notes the attempts that were made, except those by
// which messages were sent. counts is what a result adds to the attempts.
const finishSQL = `
with result as (
    select * from unnest($1::bigint[], $2::text[]::uuid[], $3::text[], $4::float8[], $5::text[], $6::integer[],
            $7::float8[], $8::float8[], $9::integer[], $10::text[])
        as r (message_id, token, status, retry_in, error, http_status, started_ago, latency, counts, key)` + briefly + `
), recorded as (
    update outbox o
    set status = case r.status when 'released' then o.status else r.status end,
        attempts = o.attempts + r.counts,
        run_after = case
            when r.status in ('failed', 'released') then now() + r.retry_in * interval '1 second'
            else o.run_after end,
        locked_until = null,
        lease_token = null,
        finished_at = case when r.status in ('sent', 'dead', 'skipped') then now() end,
        last_error = case r.status
            when 'released' then coalesce(nullif(r.error, ''), o.last_error)
            when 'sent' then null
            else nullif(r.error, '') end,
        attempt_started_at = case
            when r.status = 'sent' and r.started_ago >= 0 then now() - r.started_ago * interval '1 second' end,
        attempt_seconds = case when r.status = 'sent' and r.started_ago >= 0 then r.latency end,
        attempt_http_status = case
            when r.status = 'sent' and r.started_ago >= 0 then nullif(r.http_status, 0) end
    from result r
    where o.message_id = any (array(select message_id from result))
        and o.message_id = r.message_id and o.lease_token = r.token and o.status || '' in ('pending', 'failed')
    returning o.message_id, o.attempts, r.token, r.status
), noted as (
    insert into outbox_attempts (message_id, attempt, started_at, latency_seconds, status, http_status, error)
    select message_id, d.attempts, now() - r.started_ago * interval '1 second', r.latency, coalesce(d.status, 'late'),
        nullif(r.http_status, 0), nullif(r.error, '')
    from result r left join recorded d using (message_id, token)
    where r.started_ago >= 0 and d.status is distinct from 'sent'
        and (d.status is not null or (true` + ofTheMessage + `))
)
select status, count(*) from recorded` + durably + ` group by status`

// errAlone: a failover would take the results back, and their messages would be sent again.
var errAlone = errors.New("PostgreSQL gave up waiting for a synchronous standby: recorded on the primary alone")

func (q *Queue) acquire(ctx context.Context) (*pgxpool.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, q.cfg.timeout())
	defer cancel()
	return q.pool.Acquire(ctx)
}

// Finish records results, all or none, and returns how many came late: their lease had run out and the message had
// changed hands. After an error nothing is known to be recorded, and repeating the call is harmless: should all have
// been recorded, and only the answer been lost, they count as late then. A pipeline.RowsHeldError is the exception: it
// names the messages whose rows somebody else holds, and all others are recorded. Finish borrows results until it
// returns. With synchronous standbys, recorded means that they have it; Finish waits for them, however long they are
// away.
func (q *Queue) Finish(ctx context.Context, results []pipeline.Result) (late int, err error) {
	if len(results) == 0 {
		return 0, nil
	}
	conn, err := q.acquire(ctx)
	if err != nil {
		return 0, q.failed("finish", err)
	}
	defer conn.Release()
	ctx, cancel := pgsession.Patient(ctx, conn.Conn(), q.cfg.timeout())
	defer cancel()
	late, err = q.finish(ctx, conn, results)
	var held []int64
	for range 3 {
		var answer *pgconn.PgError
		if !errors.As(err, &answer) || answer.Code != lockNotAvailable {
			break
		}
		more, heldErr := q.heldRows(ctx, conn, results)
		if heldErr != nil {
			return 0, q.failed("finish", errors.Join(err, heldErr))
		}
		held = append(held, more...)
		results = slices.DeleteFunc(slices.Clone(results), func(r pipeline.Result) bool {
			return slices.Contains(more, r.MessageID)
		})
		if late, err = 0, nil; len(results) > 0 {
			late, err = q.finish(ctx, conn, results)
		}
	}
	if err != nil {
		return 0, q.failed("finish", err)
	}
	q.passOn(ctx, conn, results)
	if len(held) > 0 {
		return late, &pipeline.RowsHeldError{Messages: held}
	}
	return late, nil
}

const lockNotAvailable = "55P03"

// heldSQL lists the messages whose rows can't be had now. The locks that it takes on others end with it.
const heldSQL = `
with free as materialized (
    select message_id from outbox where message_id = any ($1::bigint[]) for no key update skip locked
)
select message_id from outbox where message_id = any ($1::bigint[]) and message_id not in (select message_id from free)`

func (q *Queue) heldRows(ctx context.Context, conn *pgxpool.Conn, results []pipeline.Result) ([]int64, error) {
	ids := make([]int64, len(results))
	for i := range results {
		ids[i] = results[i].MessageID
	}
	rows, err := conn.Query(ctx, heldSQL, q.mode, ids)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[int64])
}

// finish runs the statement once.
func (q *Queue) finish(ctx context.Context, conn *pgxpool.Conn, results []pipeline.Result) (late int, err error) {
	now := time.Now()
	c := newColumns(now, results)
	sql, args := sentSQL, []any{q.mode, c.ids, c.tokens, c.httpStatus, c.startedAgo, c.latency, c.keys}
	if slices.ContainsFunc(results, func(r pipeline.Result) bool {
		return r.Status != pipeline.Sent || r.StartedAt.IsZero() || r.Begun
	}) {
		sql = finishSQL
		args = []any{q.mode, c.ids, c.tokens, c.statuses, c.retryIn, c.errors, c.httpStatus, c.startedAgo, c.latency,
			c.counts, c.keys}
	}
	rows, err := conn.Query(ctx, sql, args...)
	if err != nil {
		return 0, err
	}
	recorded, err := pgx.CollectRows(rows, pgx.RowToStructByPos[recorded])
	if err == nil && pgsession.Alone(conn.Conn()) {
		err = errAlone
	}
	if err != nil {
		return 0, err
	}
	q.metrics.finishSeconds.Observe(time.Since(now).Seconds())
	late = len(results)
	for _, r := range recorded {
		late -= r.Messages
		if r.Status == string(pipeline.Released) {
			q.metrics.released.Add(float64(r.Messages))
			continue
		}
		q.metrics.finished.WithLabelValues(r.Status).Add(float64(r.Messages))
	}
	q.metrics.lateWrites.Add(float64(late))
	return late, nil
}

// recorded is how many results with one status were recorded.
type recorded struct {
	Status   string
	Messages int
}

// columns are results as arrays for unnest, sorted by id.
type columns struct {
	ids        []int64
	tokens     []string // as text: pgx can't send an array of UUIDs in every mode
	statuses   []string
	errors     []string
	httpStatus []int32   // 0: none
	retryIn    []float64 // seconds
	startedAgo []float64 // seconds; -1: nothing was sent
	latency    []float64 // seconds
	keys       []string  // "": not known
	counts     []int32   // what the result adds to the message's attempts
}

func newColumns(now time.Time, results []pipeline.Result) columns {
	sorted := make([]*pipeline.Result, len(results))
	for i := range results {
		sorted[i] = &results[i]
	}
	slices.SortFunc(sorted, func(a, b *pipeline.Result) int { return cmp.Compare(a.MessageID, b.MessageID) })
	n := len(results)
	c := columns{
		ids:        make([]int64, n),
		tokens:     make([]string, n),
		statuses:   make([]string, n),
		errors:     make([]string, n),
		httpStatus: make([]int32, n),
		retryIn:    make([]float64, n),
		startedAgo: make([]float64, n),
		latency:    make([]float64, n),
		keys:       make([]string, n),
		counts:     make([]int32, n),
	}
	for i, r := range sorted {
		if i > 0 && r.Token == sorted[i-1].Token { // those of one claim
			c.tokens[i] = c.tokens[i-1]
		} else {
			c.tokens[i] = r.Token.String()
		}
		c.ids[i] = r.MessageID
		if r.IdempotencyKey != (pipeline.UUID{}) {
			c.keys[i] = r.IdempotencyKey.String()
		}
		c.statuses[i] = string(r.Status)
		c.errors[i] = r.Error
		c.httpStatus[i] = int32(r.HTTPStatus)
		c.retryIn[i] = r.RetryIn.Seconds()
		c.latency[i] = r.Latency.Seconds()
		c.startedAgo[i] = -1
		if !r.StartedAt.IsZero() {
			c.startedAgo[i] = max(0, now.Sub(r.StartedAt).Seconds())
		}
		c.counts[i] = counts(r)
	}
	return c
}

// counts is 1 for an attempt that was made, and 0 for one that its beginning has counted. Where the destination refused
// a message through no fault of it, the attempt does not count, and what its beginning counted comes off again.
func counts(r *pipeline.Result) int32 {
	switch {
	case r.Status == pipeline.Released && r.Begun:
		return -1
	case r.Status == pipeline.Released || r.StartedAt.IsZero() || r.Begun:
		return 0
	}
	return 1
}

const beginSQL = `update outbox set attempts = attempts + 1 where message_id = $1 and lease_token = $2`

// Begin counts an attempt before it is made, for a message that may be what kills its worker. It reports false where
// the lease has passed to another.
func (q *Queue) Begin(ctx context.Context, lease *pipeline.Lease) (held bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, q.cfg.timeout())
	defer cancel()
	tag, err := q.pool.Exec(ctx, beginSQL, lease.ID, lease.Token)
	if err != nil {
		return false, q.failed("begin", err)
	}
	return tag.RowsAffected() == 1, nil
}
