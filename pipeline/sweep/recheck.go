package sweep

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"sluice.example/sluice/pipeline"
)

// recheckSQL looks at the timers of messages that absence rules made. A timer that is gone tells nothing, so the
// message goes out.
const recheckSQL = `
select o.message_id, case
		when o.recheck -> 'skip' ? 'cancelled' and t.cancel_at >= (o.recheck ->> 'anchor')::timestamptz then 'cancelled'
		when o.recheck -> 'skip' ? 'superseded' and t.trigger_at > (o.recheck ->> 'trigger')::timestamptz then 'superseded' end
from outbox o join absence_timers t on t.tenant_id = o.tenant_id and t.timer = o.recheck ->> 'timer' and t.key = o.recheck ->> 'key'
where o.message_id = any($1) and o.recheck is not null`

// Recheck says which of the messages about to be sent do not hold any more, and why: cancelled or superseded. It reads
// only; whoever sends records the message as skipped. Call it as late as possible: what happens after it goes unseen.
func Recheck(ctx context.Context, db *pgxpool.Pool, leases []pipeline.Lease) (skip map[int64]string, err error) {
	var ids []int64
	for _, l := range leases {
		if l.Rule {
			ids = append(ids, l.ID)
		}
	}
	if len(ids) == 0 {
		return nil, nil
	}
	rows, err := db.Query(ctx, recheckSQL, ids)
	if err == nil {
		skip = map[int64]string{}
		var id int64
		var reason *string
		_, err = pgx.ForEachRow(rows, []any{&id, &reason}, func() error {
			if reason != nil {
				skip[id] = *reason
			}
			return nil
		})
	}
	if err != nil {
		return nil, fmt.Errorf("sweep: re-check %d messages: %w", len(ids), err)
	}
	return skip, nil
}
