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

	mu      sync.Mutex
	cursors map[string]*cursor

	slots  slots // Run's alone
	hidden bool  // some transactions can't be seen, and that is logged; Run's alone

	passed func() // OnPassed's; nil: none
}

// OnPassed has f called whenever the end of a message was recorded for which others may have waited: another node may
// have room for them where this one has none. f must not block. Call it before the queue is used.
func (q *Queue) OnPassed(f func()) { q.passed = f }

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
// Where order is kept, a message waits for those before it, of the same subject, that are not final; outbox_order finds
// them. Ids are given out before transactions commit, so the order is that of messages which the application itself
// made one after the other.
// The update touches no indexed column, so it is a HOT update: no index entry is written.
const claimSQL = `
with due as materialized (
    select o.message_id
    from unnest($1::text[], $2::integer[], $5::smallint[], $6::timestamptz[], $7::bigint[])
        as w (destination, room, keep_order, after_time, after_id)
    cross join lateral (
        select message_id
        from outbox m
        where destination = w.destination and status in ('pending', 'failed') and run_after <= now()
            and (run_after, message_id) > (w.after_time, w.after_id)
            and (locked_until is null or locked_until <= now())
            and (w.keep_order = 0 or not exists (
                select from outbox before
                where before.destination = m.destination and before.tenant_id = m.tenant_id
                    and before.subject_key = m.subject_key
                    and before.message_id < m.message_id and before.status in ('pending', 'failed', 'dead')
                    and (before.status <> 'dead' or w.keep_order = 2)))
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
    rule_id is not null, created_at, attempts + 1, redrives, lost_leases, run_after`

// Claim leases at most want.Room due messages of each destination, in the order of message ids. It names a destination
// once. Payloads that want.Bytes has no room for are not read; see pipeline.Lease.Unread. It returns as soon as they
// are committed, or with the error, after which nothing is known to be leased: whatever is comes back by itself when
// the lease ends.
func (q *Queue) Claim(ctx context.Context, wants []pipeline.Want) ([]pipeline.Lease, error) {
	if len(wants) == 0 {
		return nil, nil
	}
	wants = slices.Clone(wants)
	slices.SortFunc(wants, func(a, b pipeline.Want) int { return cmp.Compare(a.Destination, b.Destination) })
	destinations := make([]string, len(wants))
	rooms := make([]int32, len(wants))
	order := make([]int16, len(wants))
	for i, w := range wants {
		destinations[i] = w.Destination
		rooms[i] = int32(w.Room)
		order[i] = int16(w.Order)
	}
	ctx, cancel := context.WithTimeout(ctx, q.cfg.timeout())
	defer cancel()
	token := pipeline.NewUUIDv4()
	start := time.Now() // before the statement, so that Until errs on the early side
	times, ids, full := q.starts(start, wants)
	rows, err := q.pool.Query(ctx, claimSQL, q.mode, destinations, rooms, q.cfg.Lease.Seconds(), token, order, times,
		ids)
	if err != nil {
		return nil, q.failed("claim", err)
	}
	taken, ends := map[string]int{}, map[string]end{}
	budget := newBudget(wants)
	var l pipeline.Lease // what rows are scanned into, one after the other
	scan := func(row pgx.CollectableRow) (pipeline.Lease, error) {
		l = pipeline.Lease{Token: token, Until: start.Add(q.cfg.Lease)}
		raw := row.RawValues()
		var payload any = &l.Payload
		s := budget[string(raw[destinationColumn])]
		if size := len(raw[payloadColumn]); !s.take(size) {
			payload, l.Unread = nil, size
		}
		err := row.Scan(&l.ID, &l.Tenant, &l.Type, &l.SubjectKey, &l.IdempotencyKey, &l.Destination, payload,
			&l.Headers, &l.Rule, &l.CreatedAt, &l.Attempt, &l.Redrives, &l.Lost, &l.DueAt)
		this := end{l.DueAt, l.ID}
		if err == nil && this.after(ends[l.Destination]) {
			ends[l.Destination] = this
		}
		if err == nil && l.Unread > 0 {
			s.left(this)
		}
		taken[l.Destination]++
		return l, err
	}
	leases, err := pgx.AppendRows(make([]pipeline.Lease, 0, q.last.Load()), rows, scan)
	if err != nil {
		return nil, q.failed("claim", err)
	}
	q.last.Store(int64(len(leases)))
	q.metrics.claims.Inc()
	took := time.Since(start)
	q.metrics.claimSeconds.Observe(took.Seconds())
	q.mu.Lock()
	for i, w := range wants {
		last := ends[w.Destination]
		filled := taken[w.Destination] >= w.Room
		if s := budget[w.Destination]; s.cut { // the next one begins with what was not read
			last, filled = end{s.least.time, s.least.id - 1}, true
		}
		q.cursors[w.Destination].ended(time.Now(), full[i], filled, last.time, last.id, took, q.cfg.Lease/2)
	}
	q.mu.Unlock()
	if len(leases) == 0 {
		q.metrics.emptyClaims.Inc()
		return nil, nil
	}
	slices.SortFunc(leases, func(a, b pipeline.Lease) int { return cmp.Compare(a.ID, b.ID) })
	for d, n := range taken {
		q.metrics.leases.WithLabelValues(d).Add(float64(n))
	}
	return leases, nil
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

// starts returns where to begin for each destination. Where order is kept that is always the beginning: a message
// becomes due when the one before it is final, however old it is.
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
		if w.Order == pipeline.Unordered {
			times[i], ids[i], full[i] = c.start(now)
		}
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
