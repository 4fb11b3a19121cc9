package claim

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice/pipeline"
)

// sentSQL records that messages were sent, with the attempt, where the result's token still stands on the row. The token
// alone fences: a lease that has run out but that nobody took since may still record its result, which saves repeating
// what was done. Rows are looked up by primary key in the order of their ids; see claimSQL for the array.
const sentSQL = `
with result as materialized (
    select * from unnest($1::bigint[], $2::text[]::uuid[], $3::integer[], $4::float8[], $5::float8[])
        as r (message_id, token, http_status, started_ago, latency)
)
update outbox o
set status = 'sent', finished_at = now(), locked_until = null, lease_token = null, last_error = null,
    attempt_started_at = now() - r.started_ago * interval '1 second', attempt_seconds = r.latency, attempt_http_status = nullif(r.http_status, 0)
from result r
where o.message_id = any (array(select message_id from result))
    and o.message_id = r.message_id and o.lease_token = r.token
returning o.message_id`

// finishSQL records every other result, with the same fence, and notes the attempts that were made, those of refused
// results too. Released gives the attempt back.
const finishSQL = `
with result as (
    select * from unnest($1::bigint[], $2::text[]::uuid[], $3::text[], $4::float8[], $5::text[], $6::integer[], $7::float8[], $8::float8[])
        as r (message_id, token, status, retry_in, error, http_status, started_ago, latency)
), recorded as (
    update outbox o
    set status = case r.status when 'released' then o.status else r.status end,
        attempts = o.attempts - case r.status when 'released' then 1 else 0 end,
        run_after = case when r.status in ('failed', 'released') then now() + r.retry_in * interval '1 second' else o.run_after end,
        locked_until = null,
        lease_token = null,
        finished_at = case when r.status in ('sent', 'dead', 'skipped') then now() end,
        last_error = case r.status when 'released' then o.last_error when 'sent' then null else nullif(r.error, '') end
    from result r
    where o.message_id = any (array(select message_id from result))
        and o.message_id = r.message_id and o.lease_token = r.token
    returning o.message_id, o.attempts, r.token, r.status
), noted as (
    insert into outbox_attempts (message_id, attempt, started_at, latency_seconds, status, http_status, error)
    select message_id, d.attempts, now() - r.started_ago * interval '1 second', r.latency, coalesce(d.status, 'late'),
        nullif(r.http_status, 0), nullif(r.error, '')
    from result r left join recorded d using (message_id, token)
    where r.started_ago >= 0
)
select status from recorded`

// Finish records results, and gives how many it refused since their lease had run out and the message changed hands.
// After an error nothing is known to be recorded, and repeating the call is harmless: what was recorded counts as late
// then. It borrows results until it returns.
func (q *Queue) Finish(ctx context.Context, results []pipeline.Result) (late int, err error) {
	var sent, others []pipeline.Result
	for _, r := range results {
		if r.Status == pipeline.Sent && !r.StartedAt.IsZero() {
			sent = append(sent, r)
		} else {
			others = append(others, r)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, q.cfg.Timeout)
	defer cancel()
	now := time.Now()
	refused, err := q.sent(ctx, now, sent)
	if err != nil {
		return 0, q.failed("finish", err)
	}
	// What was refused is noted as late.
	if late, err = q.finish(ctx, now, append(others, refused...)); err != nil {
		return 0, q.failed("finish", err)
	}
	q.metrics.finishSeconds.Observe(time.Since(now).Seconds())
	q.metrics.lateWrites.Add(float64(late))
	return late, nil
}

// sent records successes, and gives those that were refused.
func (q *Queue) sent(ctx context.Context, now time.Time, results []pipeline.Result) (refused []pipeline.Result, err error) {
	if len(results) == 0 {
		return nil, nil
	}
	c := newColumns(now, results)
	rows, err := q.pool.Query(ctx, sentSQL, q.mode, c.ids, c.tokens, c.httpStatus, c.startedAgo, c.latency)
	if err != nil {
		return nil, err
	}
	recorded, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return nil, err
	}
	q.metrics.finished.WithLabelValues(string(pipeline.Sent)).Add(float64(len(recorded)))
	if len(recorded) == len(results) {
		return nil, nil
	}
	slices.Sort(recorded)
	return slices.DeleteFunc(results, func(r pipeline.Result) bool {
		_, ok := slices.BinarySearch(recorded, r.MessageID)
		return ok
	}), nil
}

// finish records all other results, and counts those that were refused.
func (q *Queue) finish(ctx context.Context, now time.Time, results []pipeline.Result) (late int, err error) {
	if len(results) == 0 {
		return 0, nil
	}
	c := newColumns(now, results)
	rows, err := q.pool.Query(ctx, finishSQL, q.mode, c.ids, c.tokens, c.statuses, c.retryIn, c.errors, c.httpStatus, c.startedAgo, c.latency)
	if err != nil {
		return 0, err
	}
	recorded, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return 0, err
	}
	for _, status := range recorded {
		if status == string(pipeline.Released) {
			q.metrics.released.Inc()
			continue
		}
		q.metrics.finished.WithLabelValues(status).Inc()
	}
	return len(results) - len(recorded), nil
}

// columns are results as arrays for unnest. Tokens go as text: pgx does not know how to send an array of UUIDs in every
// mode.
type columns struct {
	ids                          []int64
	tokens, statuses, errors     []string
	httpStatus                   []int32
	retryIn, startedAgo, latency []float64
}

// newColumns sorts results by id on the way.
func newColumns(now time.Time, results []pipeline.Result) columns {
	slices.SortFunc(results, func(a, b pipeline.Result) int { return cmp.Compare(a.MessageID, b.MessageID) })
	n := len(results)
	c := columns{make([]int64, n), make([]string, n), make([]string, n), make([]string, n), make([]int32, n), make([]float64, n), make([]float64, n), make([]float64, n)}
	for i, r := range results {
		c.ids[i], c.tokens[i], c.statuses[i] = r.MessageID, r.Token.String(), string(r.Status)
		c.retryIn[i], c.errors[i], c.httpStatus[i] = r.RetryIn.Seconds(), r.Error, int32(r.HTTPStatus)
		c.startedAgo[i], c.latency[i] = -1, r.Latency.Seconds() // nothing was sent
		if !r.StartedAt.IsZero() {
			c.startedAgo[i] = max(0, now.Sub(r.StartedAt).Seconds())
		}
	}
	return c
}
