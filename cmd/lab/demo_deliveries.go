package main

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// deliveries counts what the rules decided, by where it stands: due now, to be tried again, not yet to be tried (in a
// rule's grace), leased, or in a final state.
type deliveries struct{ due, retry, later, leased, sent, skipped, dead int64 }

func (b deliveries) total() int64 {
	return b.due + b.retry + b.later + b.leased + b.sent + b.skipped + b.dead
}

// open counts what is being delivered.
func (b deliveries) open() int64 { return b.due + b.retry + b.leased }

// deliveriesSQL reads the whole table: for trials and tests.
const deliveriesSQL = `
select
    count(*) filter (where status in ('pending', 'failed') and coalesce(locked_until <= now(), true)
        and run_after <= now()),
    count(*) filter (where status = 'failed' and coalesce(locked_until <= now(), true) and run_after > now()),
    count(*) filter (where status = 'pending' and coalesce(locked_until <= now(), true) and run_after > now()),
    count(*) filter (where status in ('pending', 'failed') and locked_until > now()),
    count(*) filter (where status = 'sent'),
    count(*) filter (where status = 'skipped'),
    count(*) filter (where status = 'dead'),
    (select count(*) from events)
from outbox
where rule_id is not null`

func readDeliveries(ctx context.Context, conn *pgx.Conn) (b deliveries, events int64, err error) {
	err = conn.QueryRow(ctx, deliveriesSQL).Scan(&b.due, &b.retry, &b.later, &b.leased, &b.sent, &b.skipped, &b.dead,
		&events)
	return b, events, err
}
