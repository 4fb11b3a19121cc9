package claim

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"sluice.example/sluice/pipeline"
)

// Where order is kept, a message is claimed only if none before it, of the same subject, is unfinished. To look at all
// that wait behind others, with each claim, would make claims as slow as the backlog is long. So the first claim that
// sees such a message marks it, and puts its run_after off out of the way of all others. The end of the message before
// makes the next one of the subject due. Each message is marked once at most, and a claim costs what it leases.
//
// Messages are enqueued without a mark, so enqueuing costs nothing and knows nothing of order.
//
// A mark and an end that cross each other: both commit first, and look afterwards, so the later one of them sees the
// other. What falls through all the same (a process died in between, somebody changed rows by hand, the destination's
// settings changed) is found by sweeps: at most 1,000 marked subjects each, as often as claims begin at the oldest
// message.

// never is where the run_after of marked messages is. Programs that do not know the mark can read it.
const never = `timestamptz '9999-12-31 00:00:00+00'`

// These find the nearest message of the subject of c, by its id. The comparisons and the order are those of
// outbox_order and outbox_dead_order, and of no other index, so the planner has nothing else to walk along, whether or
// not it knows the table. The row comparison is where the walk begins, and the single one is where it ends: one of
// each, since a walk begins at any one of two and does not end at the second column of a row.
const (
	sameTenant = `
            where b.destination = c.destination and b.tenant_id = c.tenant_id and b.subject_key <> ''`
	before = `
                and b.subject_key >= c.subject_key
                and (b.subject_key, b.message_id) < (c.subject_key, c.message_id)
            order by b.subject_key desc, b.message_id desc limit 1`
	after = `
                and b.subject_key <= c.subject_key
                and (b.subject_key, b.message_id) > (c.subject_key, c.message_id)
            order by b.subject_key, b.message_id limit 1`
	openBefore = sameTenant + ` and b.status in ('pending', 'failed')` + before
	openAfter  = sameTenant + ` and b.status in ('pending', 'failed')` + after
	deadBefore = sameTenant + ` and b.status = 'dead'` + before
)

// claimOrderedSQL looks at the next due messages of one destination, as claimSQL does, leases those that are the first
// of their subject, and marks the others.
const claimOrderedSQL = `
with due as materialized (
    select message_id, destination, tenant_id, subject_key, run_after
    from outbox m
    where destination = $1 and status in ('pending', 'failed') and run_after <= now()
        and (run_after, message_id) > ($6::timestamptz, $7::bigint)
        and (locked_until is null or locked_until <= now())
    order by run_after, message_id
    limit $8
    for update skip locked
), judged as materialized (
    select c.message_id, c.run_after,
        c.subject_key <> '' and (
            (select b.message_id from outbox b` + openBefore + `) is not null
            or $5::boolean and (select b.message_id from outbox b` + deadBefore + `) is not null) as behind
    from due c
), taken as materialized (
    select message_id, behind from (
        select message_id, behind, row_number() over (partition by behind order by run_after, message_id) as n
        from judged
    ) numbered
    where behind or n <= $2
)
update outbox o
set locked_until = case when t.behind then null else now() + $3::float8 * interval '1 second' end,
    lease_token = case when t.behind then null else $4::uuid end,
    lost_leases = o.lost_leases + case when o.lease_token is null then 0 else 1 end,
    behind_since = case when t.behind then now() end,
    run_after = case when t.behind then ` + never + ` else o.run_after end
from taken t
where o.message_id = any (array(select message_id from taken)) and o.message_id = t.message_id
returning o.message_id, tenant_id, type, subject_key, idempotency_key, destination,
    case when t.behind then '' else payload::text end, headers,
    rule_id is not null, created_at, attempts + 1, redrives, lost_leases, run_after, coalesce(tenant_ref, ''), t.behind`

// look is how many messages a claim looks at beyond its room, once it has found some that wait for others, and
// mostLooks how often it does so before it returns with less than its room. Guesses: 1,000 marks cost some 30 ms.
const (
	look      = 1000
	mostLooks = 20
)

// claimOrdered is Claim for one destination that keeps its order.
func (q *Queue) claimOrdered(ctx context.Context, w pipeline.Want) ([]pipeline.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, q.cfg.timeout())
	defer cancel()
	began := time.Now()
	after, afterID, full := q.starts(began, []pipeline.Want{w})
	if full[0] {
		if err := q.sweep(ctx, w); err != nil {
			return nil, err
		}
	}
	r := reader{budget: newBudget([]pipeline.Want{w})}
	var leases []pipeline.Lease
	var last end
	more := 0
	for range mostLooks {
		room := w.Room - len(leases)
		taken, behind, err := q.takeOrdered(ctx, w, room, more, &r, after[0], afterID[0])
		if err != nil {
			if len(leases) > 0 {
				break // what is leased is leased
			}
			return nil, err
		}
		leases = append(leases, taken...)
		for i := range taken {
			if e := (end{taken[i].DueAt, taken[i].ID}); e.after(last) {
				last = e
			}
		}
		if len(behind) == 0 {
			break
		}
		if _, err := q.promote(ctx, q.pool, promoteMarkedSQL, behind); err != nil {
			break // a sweep finds them
		}
		if len(leases) >= w.Room || len(taken)+len(behind) < room+more {
			break
		}
		more = look
	}
	q.claimed(began, []pipeline.Want{w}, map[string]int{w.Destination: len(leases)},
		map[string]end{w.Destination: last}, full, r.budget)
	return leases, nil
}

// takeOrdered runs the statement once, and looks at more messages than it has room for. behind are those that it
// marked.
func (q *Queue) takeOrdered(ctx context.Context, w pipeline.Want, room, more int, r *reader, after time.Time,
	afterID int64) (leases []pipeline.Lease, behind []int64, err error) {
	r.token = pipeline.NewUUIDv4()
	r.until = time.Now().Add(q.cfg.Lease) // before the statement, so that it errs on the early side
	rows, err := q.pool.Query(ctx, claimOrderedSQL, q.mode, w.Destination, room, q.cfg.Lease.Seconds(), r.token,
		w.Order == pipeline.DeadBlocks, after, afterID, room+more)
	if err != nil {
		return nil, nil, q.failed("claim", err)
	}
	defer rows.Close()
	for rows.Next() {
		var l pipeline.Lease
		var waits bool
		if err := r.read(rows, &l, &waits); err != nil {
			return nil, nil, q.failed("claim", err)
		}
		if waits {
			behind = append(behind, l.ID)
		} else {
			leases = append(leases, l)
		}
	}
	if rows.Err() != nil {
		return nil, nil, q.failed("claim", rows.Err())
	}
	return leases, behind, nil
}

// The two looks after a commit. $1 are messages, $2 the destinations where a dead message holds up those after it.
const (
	// promoteNextSQL makes the next marked message after each of those that ended due.
	promoteNextSQL = `
with c as materialized (
    select message_id, destination, tenant_id, subject_key
    from outbox where message_id = any ($1::bigint[]) and subject_key <> ''
), next as materialized (
    select h.* from c cross join lateral (
        select b.message_id, b.destination, b.tenant_id, b.subject_key, b.behind_since
        from outbox b` + openAfter + `) h
    where h.behind_since is not null
)` + promoteSQL

	// promoteMarkedSQL makes those of the messages just marked due that wait for nothing any more.
	promoteMarkedSQL = `
with next as materialized (
    select message_id, destination, tenant_id, subject_key
    from outbox where message_id = any ($1::bigint[]) and coalesce(behind_since, 'infinity') < 'infinity'
)` + promoteSQL

	promoteSQL = `, free as materialized (
    select c.message_id from next c
    where (select b.message_id from outbox b` + openBefore + `) is null
        and not (c.destination = any ($2::text[])
            and (select b.message_id from outbox b` + deadBefore + `) is not null)
)
` + makeDue + `
`

	// makeDue takes the marks of what is free off. A row that somebody holds is left to the next sweep. The condition is
	// written so that no index serves it but the primary key: outbox_behind would be read as a whole.
	makeDue = `
update outbox
set run_after = now(), behind_since = null
where message_id = any (array(
        select message_id from outbox where message_id = any (array(select message_id from free))
        for update skip locked))
    and coalesce(behind_since, 'infinity') < 'infinity'`
)

// execer is a connection or a pool.
type execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// promote runs one of the two statements above, and returns how many messages it made due.
func (q *Queue) promote(ctx context.Context, db execer, sql string, ids []int64) (int64, error) {
	tag, err := db.Exec(ctx, sql, q.mode, ids, q.blocking())
	if err != nil {
		return 0, q.failed("pass", err)
	}
	return tag.RowsAffected(), nil
}

// passOn makes due what waited for the messages that results ended. Where it fails, a sweep finds them.
func (q *Queue) passOn(ctx context.Context, db execer, results []pipeline.Result) {
	var ended []int64
	skipped := false
	for i := range results {
		if results[i].Passes() {
			ended = append(ended, results[i].MessageID)
			skipped = skipped || results[i].Status == pipeline.Skipped
		}
	}
	if len(ended) == 0 {
		return
	}
	due, err := q.promote(ctx, db, promoteNextSQL, ended)
	if err == nil && due > 0 && q.passed != nil {
		q.passed(skipped)
	}
}

// blocking lists the destinations where a dead message holds up those after it.
func (q *Queue) blocking() []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	list := []string{}
	for d, c := range q.cursors {
		if c.order == pipeline.DeadBlocks {
			list = append(list, d)
		}
	}
	slices.Sort(list)
	return list
}

// sweepSQL makes the first marked message of each subject due that waits for nothing any more: of at most $4 subjects,
// from one subject on. It finds them one after the other, by a lookup each along outbox_behind. $5: a dead message
// holds up those after it.
const sweepSQL = `
with recursive c as (
    (select message_id, destination, tenant_id, subject_key, 1 as n from outbox
        where destination = $1 and behind_since is not null and status in ('pending', 'failed')
            and (tenant_id, subject_key) > ($2::integer, $3::text)
        order by tenant_id, subject_key, message_id limit 1)
    union all
    select o.*, c.n + 1 from c cross join lateral (
        select message_id, destination, tenant_id, subject_key from outbox b
        where b.destination = $1 and b.behind_since is not null and b.status in ('pending', 'failed')
            and (b.tenant_id, b.subject_key) > (c.tenant_id, c.subject_key)
        order by b.tenant_id, b.subject_key, b.message_id limit 1) o
    where c.n < $4
), free as materialized (
    select c.message_id from c
    where (select b.message_id from outbox b` + openBefore + `) is null
        and not ($5::boolean and (select b.message_id from outbox b` + deadBefore + `) is not null)
), due as (` + makeDue + `
    returning message_id
)
select coalesce(max(n), 0), coalesce((select tenant_id from c order by n desc limit 1), 0),
    coalesce((select subject_key from c order by n desc limit 1), ''), (select count(*) from due)
from c`

// sweep makes due what has no reason to wait any more, where no end of a message has done so.
func (q *Queue) sweep(ctx context.Context, w pipeline.Want) error {
	q.mu.Lock()
	c := q.cursors[w.Destination]
	tenant, subject := c.sweptTenant, c.sweptSubject
	q.mu.Unlock()
	var seen, due int
	err := q.pool.QueryRow(ctx, sweepSQL, q.mode, w.Destination, tenant, subject, look, w.Order == pipeline.DeadBlocks).
		Scan(&seen, &tenant, &subject, &due)
	if err != nil {
		return q.failed("pass", err)
	}
	if seen < look {
		tenant, subject = 0, ""
	}
	q.mu.Lock()
	c.sweptTenant, c.sweptSubject = tenant, subject
	q.mu.Unlock()
	return nil
}

// unmarkSQL makes marked messages of destinations due that keep no order, as their settings are now.
const unmarkSQL = `
update outbox
set run_after = now(), behind_since = null
where message_id = any (array(
    select message_id from outbox
    where destination = any ($1::text[]) and behind_since is not null and status in ('pending', 'failed')
    order by destination, tenant_id, subject_key, message_id
    limit 10000
    for update skip locked))`

// unmark looks for marked messages of destinations without an order, now and then.
func (q *Queue) unmark(ctx context.Context, destinations []string) error {
	if _, err := q.pool.Exec(ctx, unmarkSQL, q.mode, destinations); err != nil {
		return q.failed("pass", err)
	}
	return nil
}
