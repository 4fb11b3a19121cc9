// Package claim leases the outbox's messages, each to one worker at a time, and records what became of them.
//
// Claim leases due messages: it marks them with an end and a fresh token, and commits; nothing is locked while they are
// delivered. Finish records results in bulk, and only for leases whose token still stands on the row: a worker whose
// lease ran out, and whose message another worker (or an operator) has taken since, changes nothing and is counted.
// A worker that dies loses nothing: its messages become due again when the lease ends. So a message may be delivered
// twice, with the same idempotency key, and never zero times. All times are the database's.
package claim

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"sluice.example/sluice/pipeline"
)

// Queue is the outbox as the workers of this process see it. Safe for concurrent use.
type Queue struct {
	cfg     Config
	pool    *pgxpool.Pool
	metrics *Metrics
	log     *slog.Logger
	mode    pgx.QueryExecMode

	last atomic.Int64 // how many leases the last claim gave: room for the next one's

	mu       sync.Mutex
	cursors  map[string]*cursor
	unmarked time.Time // when unmark ran last

	slots  slots // Run's alone
	hidden bool  // some transactions can't be seen, and that is logged; Run's alone

	passed func(skipped bool) // OnPassed's; nil: none
}

// OnPassed has f called whenever the end of a message has made another one due: another node may have room for it where
// this one has none. skipped says that the message was skipped before it came to this node's workers, so that they do
// not know. f must not block. Call OnPassed before the queue is used.
func (q *Queue) OnPassed(f func(skipped bool)) { q.passed = f }

// New refuses a configuration with all its faults.
func New(cfg Config, pool *pgxpool.Pool, metrics *Metrics, log *slog.Logger) (*Queue, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	q := &Queue{cfg: cfg, pool: pool, metrics: metrics, log: log, slots: slots{},
		cursors: map[string]*cursor{}}
	// A prepared statement keeps its plan. One made while the outbox was empty reads the whole table, and would go on
	// doing so while it fills. Planning takes 0.2 ms for a whole batch. Who chose another mode, for a pooler, keeps it.
	q.mode = pool.Config().ConnConfig.DefaultQueryExecMode
	if q.mode == pgx.QueryExecModeCacheStatement {
		q.mode = pgx.QueryExecModeCacheDescribe
	}
	return q, nil
}

// claimSQL leases up to room messages for each destination.
//
// The lateral subquery walks outbox_claimable, which holds unfinished messages only, from the oldest of one
// destination: neither finished rows nor those of a paused destination are seen. It skips what is leased (at most what
// all nodes hold) and what another claim is just taking. FOR UPDATE looks at the newest version of each row again, so
// no row is given out twice. MATERIALIZED and the array keep the planner from anything but one walk and then one
// lookup by primary key for each row found: it takes ten elements for the array's unknown length, where it would
// estimate a join from the whole backlog. Where the walk begins is cursor's matter.
// The update touches no indexed column, so it is a HOT update: no index entry is written.
const claimSQL = `
with due as materialized (
    select o.message_id
    from unnest($1::text[], $2::integer[], $5::timestamptz[], $6::bigint[])
        as w (destination, room, after_time, after_id)
    cross join lateral (
        select message_id
        from outbox m
        where destination = w.destination and status in ('pending', 'failed') and run_after <= now()
            and (run_after, message_id) > (w.after_time, w.after_id)
            and (locked_until is null or locked_until <= now())
        order by run_after, message_id
        limit w.room
        for update skip locked
    ) o
)
update outbox
set locked_until = now() + $3::float8 * interval '1 second', lease_token = $4,
    lost_leases = lost_leases + case when lease_token is null then 0 else 1 end
where message_id = any (array(select message_id from due))
returning message_id, tenant_id, type, subject_key, idempotency_key, destination, payload::text, headers,
    rule_id is not null, created_at, attempts + 1, redrives, lost_leases, run_after, coalesce(tenant_ref, '')`

// Claim leases at most want.Room due messages of each destination, in the order of message ids. It names a destination
// once. Those without an order share a statement; each of the others has its own. Payloads that want.Bytes has no room
// for are not read; see pipeline.Lease.Unread. It returns as soon as they are committed, or with the error, after which
// nothing is known to be leased: whatever is comes back by itself when the lease ends. Ids are given out before
// transactions commit, so the order of a subject is that of messages which the application itself made one after the
// other.
func (q *Queue) Claim(ctx context.Context, wants []pipeline.Want) (leases []pipeline.Lease, err error) {
	free := slices.DeleteFunc(slices.Clone(wants), func(w pipeline.Want) bool { return w.Order != pipeline.Unordered })
	if len(free) > 0 {
		if leases, err = q.claimFree(ctx, free); err != nil {
			return nil, err
		}
	}
	for _, w := range wants {
		if w.Order == pipeline.Unordered {
			continue
		}
		more, err := q.claimOrdered(ctx, w)
		if err != nil && len(leases) == 0 {
			return nil, err
		}
		leases = append(leases, more...) // what others have leased is worth more than the error, which is counted
	}
	slices.SortFunc(leases, func(a, b pipeline.Lease) int { return cmp.Compare(a.ID, b.ID) })
	return leases, nil
}

// claimFree is Claim for destinations without an order.
func (q *Queue) claimFree(ctx context.Context, wants []pipeline.Want) ([]pipeline.Lease, error) {
	slices.SortFunc(wants, func(a, b pipeline.Want) int { return cmp.Compare(a.Destination, b.Destination) })
	destinations := make([]string, len(wants))
	rooms := make([]int32, len(wants))
	for i, w := range wants {
		destinations[i] = w.Destination
		rooms[i] = int32(w.Room)
	}
	ctx, cancel := context.WithTimeout(ctx, q.cfg.timeout())
	defer cancel()
	if q.unmarkNow() {
		if err := q.unmark(ctx, destinations); err != nil {
			return nil, err
		}
	}
	token := pipeline.NewUUIDv4()
	start := time.Now() // before the statement, so that Until errs on the early side
	times, ids, full := q.starts(start, wants)
	rows, err := q.pool.Query(ctx, claimSQL, q.mode, destinations, rooms, q.cfg.Lease.Seconds(), token, times, ids)
	if err != nil {
		return nil, q.failed("claim", err)
	}
	taken, ends := map[string]int{}, map[string]end{}
	r := reader{token: token, until: start.Add(q.cfg.Lease), budget: newBudget(wants)}
	var l pipeline.Lease // what rows are scanned into, one after the other
	scan := func(row pgx.CollectableRow) (pipeline.Lease, error) {
		err := r.read(row, &l)
		if e := (end{l.DueAt, l.ID}); err == nil && e.after(ends[l.Destination]) {
			ends[l.Destination] = e
		}
		taken[l.Destination]++
		return l, err
	}
	leases, err := pgx.AppendRows(make([]pipeline.Lease, 0, q.last.Load()), rows, scan)
	if err != nil {
		return nil, q.failed("claim", err)
	}
	q.last.Store(int64(len(leases)))
	q.claimed(start, wants, taken, ends, full, r.budget)
	return leases, nil
}

// reader reads the rows of a claim, within its budget of bytes.
type reader struct {
	token  pipeline.UUID
	until  time.Time
	budget budget
}

// read reads a row into l, and columns of other kinds behind it into more.
func (r *reader) read(row pgx.CollectableRow, l *pipeline.Lease, more ...any) error {
	*l = pipeline.Lease{Token: r.token, Until: r.until}
	raw := row.RawValues()
	var payload any = &l.Payload
	s := r.budget[string(raw[destinationColumn])]
	if size := len(raw[payloadColumn]); !s.take(size) {
		payload, l.Unread = nil, size
	}
	fields := append([]any{&l.ID, &l.Tenant, &l.Type, &l.SubjectKey, &l.IdempotencyKey, &l.Destination, payload,
		&l.Headers, &l.Rule, &l.CreatedAt, &l.Attempt, &l.Redrives, &l.Lost, &l.DueAt, &l.TenantRef}, more...)
	err := row.Scan(fields...)
	if err == nil && l.Unread > 0 {
		s.left(end{l.DueAt, l.ID})
	}
	return err
}

// claimed notes how a claim went that began at start.
func (q *Queue) claimed(start time.Time, wants []pipeline.Want, taken map[string]int, ends map[string]end,
	full []bool, b budget) {
	took := time.Since(start)
	q.metrics.claims.Inc()
	q.metrics.claimSeconds.Observe(took.Seconds())
	q.mu.Lock()
	for i, w := range wants {
		last := ends[w.Destination]
		filled := taken[w.Destination] >= w.Room
		if s := b[w.Destination]; s.cut { // the next one begins with what was not read
			last, filled = end{s.least.time, s.least.id - 1}, true
		}
		q.cursors[w.Destination].ended(time.Now(), full[i], filled, last.time, last.id, took, q.cfg.Lease/2)
	}
	q.mu.Unlock()
	all := 0
	for d, n := range taken {
		all += n
		if n > 0 {
			q.metrics.leases.WithLabelValues(d).Add(float64(n))
		}
	}
	if all == 0 {
		q.metrics.emptyClaims.Inc()
	}
}

// The places in claimSQL's rows of what is looked at before the rest is read.
const destinationColumn, payloadColumn = 5, 6

// end is the last message of a destination that a claim got.
type end struct {
	time time.Time
	id   int64
}

// after reports whether e comes after f in the order of claims.
func (e end) after(f end) bool { return e.time.After(f.time) || e.time.Equal(f.time) && e.id > f.id }

// unmarkEvery is how often destinations without an order are searched for messages that wait for others since a time
// when they had one. A guess: one lookup in an index.
const unmarkEvery = 15 * time.Second

func (q *Queue) unmarkNow() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if time.Since(q.unmarked) < unmarkEvery {
		return false
	}
	q.unmarked = time.Now()
	return true
}

// starts returns where to begin for each destination.
func (q *Queue) starts(now time.Time, wants []pipeline.Want) (times []time.Time, ids []int64, full []bool) {
	times = make([]time.Time, len(wants))
	ids = make([]int64, len(wants))
	full = make([]bool, len(wants))
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, w := range wants {
		c := q.cursors[w.Destination]
		if c == nil {
			c = &cursor{}
			q.cursors[w.Destination] = c
		}
		c.order = w.Order
		times[i], ids[i], full[i] = c.start(now)
		if full[i] {
			q.metrics.fullClaims.Inc()
		}
	}
	return times, ids, full
}

func (q *Queue) failed(statement string, err error) error {
	q.metrics.errors.WithLabelValues(statement).Inc()
	return fmt.Errorf("claim: %s: %w", statement, err)
}
