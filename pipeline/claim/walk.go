package claim

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// walkLimit is the most messages that one statement for an operator looks at, however few of them match: a filter that
// no index serves would read the whole table otherwise. That many cost some hundred milliseconds.
const walkLimit = 100_000

// Which messages to look at: all, by their ids; or the dead ones, which outbox_dead finds wherever they are. The
// planner is kept from walking all ids in search of the few that are dead.
const (
	walkDownSQL = `select message_id from outbox where $1 = 0 or message_id < $1 order by message_id desc offset $2
		limit 1`
	walkUpSQL = `select message_id from outbox where message_id > $1 order by message_id offset $2 limit 1`

	deadSQL = `with dead as materialized (
    select message_id from outbox where status = 'dead' and ($3::text = '' or destination = $3)
)
select message_id from dead
`
	deadDownSQL = deadSQL + `where $1 = 0 or message_id < $1 order by message_id desc limit $2`
	deadUpSQL   = deadSQL + `where message_id > $1 order by message_id limit $2`
)

// walk bounds the messages that a statement looks at, from an id on, downwards or upwards. reached is the last id that
// it looks at; 0 where it looks at all that there are.
func (f Filter) walk(ctx context.Context, db DB, from int64, down bool) (bounded Filter, reached int64, err error) {
	if len(f.IDs) > 0 {
		return f, 0, nil
	}
	dead := len(f.Statuses) == 1 && f.Statuses[0] == "dead"
	sql, args := walkUpSQL, []any{pgx.QueryExecModeCacheDescribe, from, walkLimit - 1}
	switch {
	case dead && down:
		sql, args = deadDownSQL, []any{pgx.QueryExecModeCacheDescribe, from, walkLimit, f.Destination}
	case dead:
		sql, args = deadUpSQL, []any{pgx.QueryExecModeCacheDescribe, from, walkLimit, f.Destination}
	case down:
		sql = walkDownSQL
	}
	rows, err := db.Query(ctx, sql, args...)
	if err != nil {
		return f, 0, fmt.Errorf("claim: walk: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return f, 0, fmt.Errorf("claim: walk: %w", err)
	}
	switch {
	case !dead && len(ids) > 0:
		reached = ids[0]
	case dead && len(ids) == walkLimit:
		f.IDs, reached = ids, ids[len(ids)-1]
	case dead && len(ids) == 0:
		f.IDs = []int64{0} // none
	case dead:
		f.IDs = ids
	}
	return f, reached, nil
}
