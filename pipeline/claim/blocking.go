package claim

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// blockingSQL finds how long ago the first message died, of each destination in $1, that holds up others of its
// subject: among the $2 oldest dead ones of each.
const blockingSQL = `
select w.destination, extract(epoch from now() - min(c.finished_at))::float8 as age
from unnest($1::text[]) as w (destination)
cross join lateral (
    select message_id, destination, tenant_id, subject_key, finished_at from outbox
    where destination = w.destination and status = 'dead'
    order by message_id limit $2) c
where c.subject_key <> '' and (select b.message_id from outbox b` + openAfter + `) is not null
group by w.destination`

// countBlocking sets the gauge of those destinations where a dead message holds up others.
func (q *Queue) countBlocking(ctx context.Context) error {
	destinations := q.blocking()
	if len(destinations) == 0 {
		return nil
	}
	rows, err := q.pool.Query(ctx, blockingSQL, q.mode, destinations, look)
	if err != nil {
		return q.failed("count", err)
	}
	for _, d := range destinations {
		q.metrics.blocked.WithLabelValues(d).Set(0)
	}
	var d string
	var age float64
	_, err = pgx.ForEachRow(rows, []any{&d, &age}, func() error {
		q.metrics.blocked.WithLabelValues(d).Set(age)
		return nil
	})
	if err != nil {
		return q.failed("count", err)
	}
	return nil
}
