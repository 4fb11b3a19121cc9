package claim

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice/pipeline"
)

// finishSQL records results whose token still stands on the row. The token alone fences: a lease that has run out but
// that nobody took since may still record its result, which saves repeating what was done. Released gives the attempt
// back. Rows are looked up by primary key in the order of their ids; see claimSQL for the array. Attempts that were
// made are noted, those of refused results too.
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
	if len(results) == 0 {
		return 0, nil
	}
	results = slices.Clone(results)
	slices.SortFunc(results, func(a, b pipeline.Result) int { return int(a.MessageID - b.MessageID) })
	n := len(results)
	// Tokens go as text: pgx does not know how to send an array of UUIDs in every mode.
	ids, tokens, statuses := make([]int64, n), make([]string, n), make([]string, n)
	retryIn, errors, httpStatus := make([]float64, n), make([]string, n), make([]int32, n)
	startedAgo, latency := make([]float64, n), make([]float64, n)
	now := time.Now()
	for i, r := range results {
		ids[i], tokens[i], statuses[i] = r.MessageID, r.Token.String(), string(r.Status)
		retryIn[i], errors[i], httpStatus[i] = r.RetryIn.Seconds(), r.Error, int32(r.HTTPStatus)
		startedAgo[i], latency[i] = -1, r.Latency.Seconds() // nothing was sent
		if !r.StartedAt.IsZero() {
			startedAgo[i] = max(0, now.Sub(r.StartedAt).Seconds())
		}
	}
	ctx, cancel := context.WithTimeout(ctx, q.cfg.Timeout)
	defer cancel()
	start := time.Now()
	rows, err := q.pool.Query(ctx, finishSQL, q.mode, ids, tokens, statuses, retryIn, errors, httpStatus, startedAgo, latency)
	if err != nil {
		return 0, q.failed("finish", err)
	}
	recorded, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return 0, q.failed("finish", err)
	}
	q.metrics.finishSeconds.Observe(time.Since(start).Seconds())
	for _, status := range recorded {
		if status == string(pipeline.Released) {
			q.metrics.released.Inc()
			continue
		}
		q.metrics.finished.WithLabelValues(status).Inc()
	}
	late = n - len(recorded)
	q.metrics.lateWrites.Add(float64(late))
	return late, nil
}
