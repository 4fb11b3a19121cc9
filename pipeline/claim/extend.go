package claim

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/pipeline"
)

// extendSQL moves the ends of leases whose token still stands. A row that somebody else holds is left out, so that it
// costs no other its lease. It touches no indexed column: a HOT update.
const extendSQL = `
with lease as (select * from unnest($1::bigint[], $2::text[]::uuid[]) as l (message_id, token))
update outbox o
set locked_until = now() + $3::float8 * interval '1 second'
from lease l
where o.message_id = any (array(
        select message_id from outbox where message_id = any (array(select message_id from lease))
        for no key update skip locked))
    and o.message_id = l.message_id and o.lease_token = l.token
returning o.message_id`

// Extend makes leases last for Config.Lease from now on, and returns the new ends of those that are still held, by
// message. It reads ids and tokens only.
func (q *Queue) Extend(ctx context.Context, leases []pipeline.Lease) (map[int64]time.Time, error) {
	leases = slices.Clone(leases)
	slices.SortFunc(leases, func(a, b pipeline.Lease) int { return cmp.Compare(a.ID, b.ID) })
	ids, tokens := make([]int64, len(leases)), make([]string, len(leases))
	for i, l := range leases {
		ids[i], tokens[i] = l.ID, l.Token.String()
	}
	ctx, cancel := context.WithTimeout(ctx, q.cfg.timeout())
	defer cancel()
	end := time.Now().Add(q.cfg.Lease) // before the statement, as in Claim
	rows, err := q.pool.Query(ctx, extendSQL, q.mode, ids, tokens, q.cfg.Lease.Seconds())
	if err != nil {
		return nil, q.failed("extend", err)
	}
	held, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return nil, q.failed("extend", err)
	}
	q.metrics.extended.Add(float64(len(held)))
	ends := make(map[int64]time.Time, len(held))
	for _, id := range held {
		ends[id] = end
	}
	return ends, nil
}
