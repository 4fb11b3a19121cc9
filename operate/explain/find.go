package explain

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/pipeline"
)

// found is a stored event, and the partition that it lies in.
type found struct {
	pipeline.Event
	partition string
}

// daysAtATime bounds the partitions that one statement locks and plans: nothing but the id is known, so all days are
// asked, and thousands at once are more locks than PostgreSQL has room for. A guess: a hundredth of its default room.
const daysAtATime = 32

// daysSQL splits the days that have a partition, the newest first. Whatever its first and last part are, they reach
// without end.
const daysSQL = `
select to_date(min(day), 'YYYYMMDD')::timestamp at time zone 'UTC'
from (
    select right(c.relname, 8) as day, (row_number() over (order by c.relname desc) - 1) / $1::integer as part
    from pg_inherits i join pg_class c on c.oid = i.inhrelid
    where i.inhparent = 'events'::regclass and c.relname ~ '^events_[0-9]{8}$') days
group by part
order by part`

// findSQL is a probe of the primary key of each of the days. In a plan that is made for the values PostgreSQL leaves
// all others alone; see the mode of the query.
var findSQL = `
select tableoid::regclass::text, ` + pipeline.EventColumns + `
from events
where tenant_id = $1 and event_id = $2 and occurred_at >= $3 and occurred_at < $4`

// find looks for an id in all days. The result is in the order in which the events arrived.
func find(ctx context.Context, conn *pgx.Conn, tenant int32, id pipeline.UUID) ([]found, error) {
	rows, err := conn.Query(ctx, daysSQL, daysAtATime)
	if err != nil {
		return nil, err
	}
	froms, err := pgx.CollectRows(rows, pgx.RowTo[time.Time])
	if err != nil {
		return nil, err
	}
	if len(froms) == 0 {
		froms = []time.Time{{}} // partitions of other names than ours, if any: all at once
	}
	var all []found
	to := "infinity"
	for i, from := range froms {
		lower := from.UTC().Format(time.RFC3339)
		if i == len(froms)-1 {
			lower = "-infinity"
		}
		some, err := findBetween(ctx, conn, tenant, id, lower, to)
		if err != nil {
			return nil, fmt.Errorf("look for the event from %s to %s: %w", lower, to, err)
		}
		all, to = append(all, some...), lower
	}
	slices.SortStableFunc(all, func(a, b found) int { return a.ReceivedAt.Compare(b.ReceivedAt) })
	return all, nil
}

func findBetween(
	ctx context.Context, conn *pgx.Conn, tenant int32, id pipeline.UUID, from, to string,
) ([]found, error) {
	// A prepared statement would get a plan of all days at its sixth execution.
	mode := conn.Config().DefaultQueryExecMode
	if mode == pgx.QueryExecModeCacheStatement {
		mode = pgx.QueryExecModeCacheDescribe
	}
	rows, err := conn.Query(ctx, findSQL, mode, tenant, id, from, to)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (f found, err error) {
		var columns pipeline.EventRow
		if err := row.Scan(append([]any{&f.partition}, columns.Fields()...)...); err != nil {
			return f, err
		}
		f.Event, _ = columns.Event()
		return f, nil
	})
}
