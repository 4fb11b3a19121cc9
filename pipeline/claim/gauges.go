package claim

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// backlogSQL counts what is not sent, by destination: $1 of each kind at most, so that its cost is bounded whatever the
// backlog is. It finds the destinations one after the other, by a lookup each, along outbox_claimable and outbox_dead;
// what is counted are entries of the same indexes, from the oldest. The limit comes from a row, so that the planner
// does not know it: knowing it, it may read and sort all.
const backlogSQL = `
with recursive waiting as (
    (select destination from outbox where status in ('pending', 'failed') order by destination limit 1)
    union all
    select (select o.destination from outbox o
        where o.status in ('pending', 'failed') and o.destination > waiting.destination
        order by o.destination limit 1)
    from waiting where waiting.destination is not null
), given_up as (
    (select destination from outbox where status = 'dead' order by destination limit 1)
    union all
    select (select o.destination from outbox o
        where o.status = 'dead' and o.destination > given_up.destination
        order by o.destination limit 1)
    from given_up where given_up.destination is not null
), known as (
    select destination, $1::integer as most from waiting where destination is not null
    union
    select destination, $1 from given_up where destination is not null
)
select known.destination, begun.due, begun.leased, later.scheduled, held_up.behind, gone.dead, begun.oldest
from known
cross join lateral (
    select count(*) filter (where locked_until is null or locked_until <= now()) as due,
        count(*) filter (where locked_until > now()) as leased,
        coalesce(extract(epoch from now() - min(run_after) filter (
            where locked_until is null or locked_until <= now())), 0)::float8 as oldest
    from (
        select run_after, locked_until from outbox
        where destination = known.destination and status in ('pending', 'failed') and run_after <= now()
        order by run_after, message_id
        limit known.most
    ) oldest_first
) begun
cross join lateral (
    select count(*) as scheduled
    from (
        select from outbox
        where destination = known.destination and status in ('pending', 'failed') and run_after > now()
            and run_after < ` + never + `
        order by run_after, message_id
        limit known.most
    ) oldest_first
) later
cross join lateral (
    select count(*) as behind
    from (
        select from outbox
        where destination = known.destination and status in ('pending', 'failed') and run_after = ` + never + `
        order by run_after, message_id
        limit known.most
    ) oldest_first
) held_up
cross join lateral (
    select count(*) as dead
    from (
        select from outbox where destination = known.destination and status = 'dead' order by message_id
            limit known.most
    ) oldest_first
) gone`

// CountedUpTo bounds each count: 10,001 means more than 10,000. That many entries cost some ten milliseconds.
const CountedUpTo = 10_001

// oldestTransactionSQL looks for what holds vacuum back in this database: transactions that have a snapshot, or that
// have written and so have an id; prepared ones; and, as an xmin, the standbys that a slot keeps rows for. hidden
// counts the sessions of which this role may not see that.
const oldestTransactionSQL = `
select
    greatest(
        (select extract(epoch from max(clock_timestamp() - xact_start)) from pg_stat_activity
            where (backend_xid is not null or backend_xmin is not null) and pid <> pg_backend_pid()
                and (datname = current_database() or backend_type = 'walsender')),
        (select extract(epoch from max(clock_timestamp() - prepared)) from pg_prepared_xacts
            where database = current_database()),
        0)::float8 as oldest,
    (select count(*) from pg_stat_activity
        where datname = current_database() and backend_type is null) as hidden,
    array(select slot_name || ' ' || xmin from pg_replication_slots where xmin is not null order by 1) as slots`

// Run keeps the gauges of the backlog fresh until ctx ends, and returns nil. A count that fails is counted as an error
// and repeated at the next turn; meanwhile the gauges keep what they had. Counting takes a twentieth of the time at
// most.
func (q *Queue) Run(ctx context.Context) error {
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-next.C:
		}
		start := time.Now()
		if err := q.count(ctx); err != nil && ctx.Err() == nil {
			q.log.Warn("claim: count the backlog", "error", err)
		}
		next.Reset(max(gaugeInterval, fullShare*time.Since(start)))
	}
}

// Backlog is what waits for one destination, or was given up. Oldest is for how many seconds the oldest message is due.
// A count of CountedUpTo means as many or more.
type Backlog struct {
	Destination string  `json:"destination"`
	Due         int64   `json:"due"`
	Leased      int64   `json:"leased"`
	Scheduled   int64   `json:"scheduled"`
	Behind      int64   `json:"behind"`
	Dead        int64   `json:"dead"`
	Oldest      float64 `json:"oldest_due_seconds"`
}

// Backlogs counts what is not sent, by destination, at bounded cost; see CountedUpTo.
func Backlogs(ctx context.Context, db DB) ([]Backlog, error) {
	return backlogs(ctx, db, pgx.QueryExecModeCacheDescribe)
}

func backlogs(ctx context.Context, db DB, mode pgx.QueryExecMode) ([]Backlog, error) {
	rows, err := db.Query(ctx, backlogSQL, mode, CountedUpTo)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByName[Backlog])
}

func (q *Queue) count(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, q.cfg.timeout())
	defer cancel()
	counts, err := backlogs(ctx, q.pool, q.mode)
	if err != nil {
		return q.failed("count", err)
	}
	q.metrics.backlog(counts)
	if err := q.countBlocking(ctx); err != nil {
		return err
	}
	return q.countTransactions(ctx)
}

type oldestTransaction struct {
	Oldest float64 // seconds
	Hidden int64
	Slots  []string // name and xmin
}

func (q *Queue) countTransactions(ctx context.Context) error {
	rows, err := q.pool.Query(ctx, oldestTransactionSQL, q.mode)
	if err != nil {
		return q.failed("count", err)
	}
	found, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[oldestTransaction])
	if err != nil {
		return q.failed("count", err)
	}
	if found.Hidden > 0 {
		// What is not seen must not look like nothing.
		q.metrics.oldest.Reset()
		if !q.hidden {
			q.hidden = true
			q.log.Warn("claim: this role may not see how old the transactions of others are, "+
				"so sluice_claim_oldest_snapshot_seconds is absent",
				"remedy", fmt.Sprintf("grant pg_read_all_stats to %s", q.pool.Config().ConnConfig.User))
		}
		return nil
	}
	oldest := found.Oldest
	if age := q.slots.oldest(time.Now(), found.Slots); age > oldest {
		oldest = age
	}
	q.metrics.oldest.WithLabelValues().Set(oldest)
	return nil
}

// slots remembers since when each replication slot has the xmin that it has: PostgreSQL does not record it.
type slots map[string]time.Time

// oldest returns for how many seconds the slot has stood still that has done so for longest. Each is its name and xmin.
func (s slots) oldest(now time.Time, held []string) (age float64) {
	present := make(map[string]bool, len(held))
	for _, slot := range held {
		present[slot] = true
		if _, ok := s[slot]; !ok {
			s[slot] = now
		}
		age = max(age, now.Sub(s[slot]).Seconds())
	}
	for slot := range s {
		if !present[slot] {
			delete(s, slot)
		}
	}
	return age
}
