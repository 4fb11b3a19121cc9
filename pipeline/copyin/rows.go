package copyin

import (
	"context"
	"errors"
	"iter"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"sluice.example/sluice/pipeline"
)

const copySQL = "copy events (" + pipeline.EventColumns + ") from stdin (format binary)"

// copyRows returns the tag of the last statement of sql.
func copyRows(ctx context.Context, tx pgx.Tx, b *batch, positions []int32, sql string) (pgconn.CommandTag, error) {
	conn := tx.Conn().PgConn()
	tag, err := conn.CopyFrom(ctx, b.rows(positions), sql)
	if err != nil && conn.IsClosed() {
		// pgx may leave its sending goroutine behind, which reads the rows until it notices.
		b.shared = true
	}
	return tag, err
}

// rejectDropped finds out which of the positions are there, since a trigger can drop a row without an error. Those that
// are count as stored.
func rejectDropped(ctx context.Context, tx pgx.Tx, b *batch, positions []int32) error {
	duplicates, missed := b.duplicates, b.missed
	if err := lookUpKeys(ctx, tx, b, positions); err != nil {
		return err
	}
	b.duplicates, b.missed = duplicates, missed
	for _, p := range positions {
		if b.state[p] == duplicate {
			b.state[p] = fresh
		} else {
			b.reject(p, rejection{reason: "the database dropped it, as a trigger that returns null does"})
		}
	}
	return nil
}

// errDropped: PostgreSQL committed fewer rows than it got.
var errDropped = errors.New("the database dropped rows")

// A prepared statement gets, at its sixth execution, a plan for any value, if only to compare its cost: made of all
// days, with a lock on each. Thousands of days are a third of a second, and more locks than PostgreSQL has room for. So
// look-ups are planned for the days that they ask for, each time.
const (
	planEachSQL   = `set local plan_cache_mode = force_custom_plan`
	planAsEverSQL = `set local plan_cache_mode to default`
)

// lookUpKeysSQL is run once for each day, so that PostgreSQL leaves all other partitions alone. "offset 0" keeps the
// look-up a probe of the primary key for each row, whatever the statistics say.
const lookUpKeysSQL = `
select k.i
from unnest($1::integer[], $2::uuid[], $3::timestamptz[]) with ordinality as k (tenant_id, event_id, occurred_at, i)
where exists (select from events e
              where e.tenant_id = k.tenant_id and e.event_id = k.event_id and e.occurred_at = k.occurred_at
                and e.occurred_at >= $4 and e.occurred_at < $5
              offset 0)`

// lookUpKeys marks which of the positions, which ascend and are fresh, are stored already. What it finds is
// committed, so it also holds for later transactions.
func lookUpKeys(ctx context.Context, tx pgx.Tx, b *batch, positions []int32) error {
	var queries pgx.Batch
	queries.Queue(planEachSQL)
	for k := range b.keysByDay(positions) {
		queries.Queue(lookUpKeysSQL, k.tenants, k.ids, k.times, k.from, k.to).Query(b.markDuplicates(k.of))
	}
	queries.Queue(planAsEverSQL)
	if err := tx.SendBatch(ctx, &queries).Close(); err != nil {
		return err
	}
	for _, p := range positions {
		if _, suspect := slices.BinarySearch(b.suspects, p); b.state[p] == duplicate && !suspect {
			b.missed = true
		}
	}
	return nil
}

// writtenSQL counts what lookUpKeysSQL finds, of one transaction.
const writtenSQL = `
select count(*)
from unnest($1::integer[], $2::uuid[], $3::timestamptz[]) as k (tenant_id, event_id, occurred_at)
where exists (select from events e
              where e.tenant_id = k.tenant_id and e.event_id = k.event_id and e.occurred_at = k.occurred_at
                and e.occurred_at >= $4 and e.occurred_at < $5 and e.xmin = $6::text::xid8::xid
              offset 0)`

// dayKeys are the keys of one UTC day.
type dayKeys struct {
	of       []int32 // their positions
	tenants  pgtype.FlatArray[int32]
	ids      pgtype.FlatArray[pgtype.UUID]
	times    pgtype.FlatArray[time.Time]
	from, to time.Time
}

// keysByDay splits positions, which ascend, by day.
func (b *batch) keysByDay(positions []int32) iter.Seq[dayKeys] {
	return func(yield func(dayKeys) bool) {
		for rest := positions; len(rest) > 0; {
			day := dayOf(b.event(rest[0]).OccurredAt.UnixMicro())
			n := 1
			for n < len(rest) && dayOf(b.event(rest[n]).OccurredAt.UnixMicro()) == day {
				n++
			}
			k := dayKeys{
				of: rest[:n], tenants: make([]int32, n), ids: make([]pgtype.UUID, n), times: make([]time.Time, n),
				from: startOf(day), to: startOf(day + 1),
			}
			for i, p := range k.of {
				e := b.event(p)
				k.tenants[i], k.ids[i], k.times[i] = e.Tenant, pgtype.UUID{Bytes: e.ID, Valid: true}, e.OccurredAt
			}
			if rest = rest[n:]; !yield(k) {
				return
			}
		}
	}
}

// lockIDsSQL takes the locks in the order of the array, which is sorted.
const lockIDsSQL = `select pg_advisory_xact_lock(k) from unnest($1::bigint[]) as k`

// lockIDs holds off every other batch that carries one of the ids that come without a time, until this one ends. Two
// different ids may share a lock; then one waits for the other without need.
func lockIDs(ctx context.Context, tx pgx.Tx, b *batch) error {
	keys := make([]int64, len(b.timeless))
	for i, p := range b.timeless {
		e := b.event(p)
		hi, lo := halves(e.ID)
		keys[i] = int64(hi ^ lo*31 ^ uint64(uint32(e.Tenant))<<32)
	}
	slices.Sort(keys)
	_, err := tx.Exec(ctx, lockIDsSQL, slices.Compact(keys))
	return err
}

// lookUpIDsSQL probes the primary key of each day in the window, by its first two columns.
const lookUpIDsSQL = `
select k.i
from unnest($1::integer[], $2::uuid[]) with ordinality as k (tenant_id, event_id, i)
where exists (select from events e
              where e.tenant_id = k.tenant_id and e.event_id = k.event_id
                and e.occurred_at >= $3 and e.occurred_at < $4
              offset 0)`

// lookUpIDs marks the events without a time whose id is stored within the window. It needs the locks of lockIDs, and
// a statement, and so a snapshot, of its own after them. Where clients say how long ago events were, some may lie far
// from the others: they are looked up apart, since one window around all would reach over every day in between.
func lookUpIDs(ctx context.Context, tx pgx.Tx, b *batch, window time.Duration) error {
	of := b.remainingOf(b.timeless)
	if len(of) == 0 {
		return nil
	}
	var queries pgx.Batch
	queries.Queue(planEachSQL)
	for len(of) > 0 {
		near := b.near(of, 2*window)
		tenants := make(pgtype.FlatArray[int32], len(near.of))
		ids := make(pgtype.FlatArray[pgtype.UUID], len(near.of))
		for i, p := range near.of {
			e := b.event(p)
			tenants[i], ids[i] = e.Tenant, pgtype.UUID{Bytes: e.ID, Valid: true}
		}
		queries.Queue(lookUpIDsSQL, tenants, ids, near.from.Add(-window), near.to.Add(window)).
			Query(b.markDuplicates(near.of))
		of = of[len(near.of):]
	}
	queries.Queue(planAsEverSQL)
	return tx.SendBatch(ctx, &queries).Close()
}

// span is positions whose events lie between two times.
type span struct {
	of       []int32
	from, to time.Time
}

// near returns the first of some positions, which ascend by day, and those after it up to a gap.
func (b *batch) near(of []int32, gap time.Duration) span {
	first := b.event(of[0]).OccurredAt
	s := span{from: first, to: first}
	for n, p := range of {
		at := b.event(p).OccurredAt
		if at.Sub(s.to) > gap {
			s.of = of[:n]
			return s
		}
		if at.Before(s.from) {
			s.from = at
		}
		if at.After(s.to) {
			s.to = at
		}
	}
	s.of = of
	return s
}

// markDuplicates reads ordinals, from 1, of a look-up of the given positions.
func (b *batch) markDuplicates(of []int32) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		var i int64
		_, err := pgx.ForEachRow(rows, []any{&i}, func() error {
			b.state[of[i-1]] = duplicate
			b.duplicates++
			return nil
		})
		return err
	}
}

const quarantineSQL = `
insert into quarantine (tenant_id, event_id, occurred_at, event, sqlstate, reason)
select * from unnest($1::integer[], $2::uuid[], $3::timestamptz[], $4::bytea[], $5::text[], $6::text[])
on conflict (tenant_id, event_id, occurred_at) do update
set quarantined_at = now(), event = excluded.event, sqlstate = excluded.sqlstate, reason = excluded.reason`

// quarantine writes the rejected rows, in the order of the batch.
func quarantine(ctx context.Context, tx pgx.Tx, b *batch) error {
	n := len(b.rejections)
	tenants := make([]int32, 0, n)
	ids := make(pgtype.FlatArray[pgtype.UUID], 0, n)
	times := make([]time.Time, 0, n)
	events := make([][]byte, 0, n)
	states := make([]string, 0, n)
	reasons := make([]string, 0, n)
	for p, s := range b.state {
		if s != poison {
			continue
		}
		e, r := b.event(int32(p)), b.rejections[int32(p)]
		tenants = append(tenants, e.Tenant)
		ids = append(ids, pgtype.UUID{Bytes: e.ID, Valid: true})
		times = append(times, e.OccurredAt)
		events = append(events, e.AppendJSON(nil))
		states = append(states, r.sqlstate)
		reasons = append(reasons, r.reason)
	}
	_, err := tx.Exec(ctx, quarantineSQL, tenants, ids, times, events, states, reasons)
	return err
}
