package claim

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// backlogSQL counts what is not sent, by destination. outbox_claimable and outbox_dead serve it: its cost follows the
// backlog, not the table.
const backlogSQL = `
select destination,
    count(*) filter (where run_after <= now() and (locked_until is null or locked_until <= now())) as due,
    count(*) filter (where locked_until > now()) as leased,
    count(*) filter (where run_after > now() and (locked_until is null or locked_until <= now())) as scheduled,
    0::bigint as dead,
    coalesce(extract(epoch from now() - min(run_after) filter (
        where run_after <= now() and (locked_until is null or locked_until <= now()))), 0)::float8 as oldest
from outbox
where status in ('pending', 'failed')
group by destination
union all
select destination, 0, 0, 0, count(*), 0
from outbox
where status = 'dead'
group by destination`

// oldestSnapshotSQL looks for what holds vacuum back: while it lasts, claims walk over all that was finished since.
const oldestSnapshotSQL = `
select coalesce(extract(epoch from max(clock_timestamp() - xact_start)), 0)::float8
from pg_stat_activity
where backend_xmin is not null and pid <> pg_backend_pid() and backend_type in ('client backend', 'walsender')`

// Run keeps the gauges of the backlog fresh until ctx ends, and returns nil. A count that fails is counted as an error
// and repeated at the next turn; meanwhile the gauges keep what they had.
func (q *Queue) Run(ctx context.Context) error {
	tick := time.NewTicker(gaugeInterval)
	defer tick.Stop()
	for {
		if err := q.count(ctx); err != nil && ctx.Err() == nil {
			q.log.Warn("claim: count the backlog", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// backlog is what waits for one destination. Oldest is in seconds.
type backlog struct {
	Destination                  string
	Due, Leased, Scheduled, Dead int64
	Oldest                       float64
}

func (q *Queue) count(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, q.cfg.timeout())
	defer cancel()
	rows, err := q.pool.Query(ctx, backlogSQL)
	if err != nil {
		return q.failed("count", err)
	}
	counts, err := pgx.CollectRows(rows, pgx.RowToStructByName[backlog])
	if err != nil {
		return q.failed("count", err)
	}
	byDestination := map[string]backlog{}
	for _, b := range counts {
		sum := byDestination[b.Destination]
		sum.Due += b.Due
		sum.Leased += b.Leased
		sum.Scheduled += b.Scheduled
		sum.Dead += b.Dead
		sum.Oldest += b.Oldest
		byDestination[b.Destination] = sum
	}
	var oldest float64
	if err := q.pool.QueryRow(ctx, oldestSnapshotSQL).Scan(&oldest); err != nil {
		return q.failed("count", err)
	}
	q.metrics.oldestSnapshot.Set(oldest)
	for name := range q.counted { // nothing is left of these
		if _, ok := byDestination[name]; !ok {
			byDestination[name] = backlog{}
		}
	}
	for name, b := range byDestination {
		q.counted[name] = struct{}{}
		q.metrics.due.WithLabelValues(name).Set(float64(b.Due))
		q.metrics.leased.WithLabelValues(name).Set(float64(b.Leased))
		q.metrics.scheduled.WithLabelValues(name).Set(float64(b.Scheduled))
		q.metrics.dead.WithLabelValues(name).Set(float64(b.Dead))
		q.metrics.oldestDue.WithLabelValues(name).Set(b.Oldest)
	}
	return nil
}
