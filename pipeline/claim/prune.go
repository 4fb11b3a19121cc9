package claim

import (
	"context"
	"time"
)

// pruneSQL deletes a batch of old attempts. The BRIN index finds the pages; what another node is just deleting is skipped.
const pruneSQL = `
with old as materialized (
    select ctid from outbox_attempts
    where started_at < now() - $1::float8 * interval '1 second'
    limit $2
    for update skip locked
)
delete from outbox_attempts where ctid = any (array(select ctid from old))`

// pruneBatch and pruneBatches bound one statement, and one turn: at the default interval that is 6,600 attempts a second.
const pruneBatch, pruneBatches = 5000, 20

func (q *Queue) pruneAttempts(ctx context.Context) error {
	if q.cfg.KeepAttempts == 0 {
		return nil
	}
	for range pruneBatches {
		n, err := q.pruneOnce(ctx, q.cfg.KeepAttempts)
		if err != nil {
			return q.failed("prune", err)
		}
		q.metrics.prunedAttempts.Add(float64(n))
		if n < pruneBatch {
			return nil
		}
	}
	return nil
}

func (q *Queue) pruneOnce(ctx context.Context, keep time.Duration) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, q.cfg.Timeout)
	defer cancel()
	tag, err := q.pool.Exec(ctx, pruneSQL, q.mode, keep.Seconds(), pruneBatch)
	return tag.RowsAffected(), err
}
