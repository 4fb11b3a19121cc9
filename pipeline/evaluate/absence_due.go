package evaluate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"sluice.example/sluice/pipeline"
	"sluice.example/sluice/pipeline/rules"
)

// takeSQL locks timers that have run out. The partial index on (timer, armed_at) gives exactly these rows, oldest
// first. A timer that another transaction is just moving is passed over; it is due at the next look, if it still is.
const takeSQL = `
select ctid, tenant_id, key, armed_at, trigger_at, trigger_event_id, trigger_occurred_at, extract(epoch
	from now() - armed_at)::float8
from absence_timers
where timer = $1 and armed_at <= now() - $2::interval and armed_at > now() - $3::interval
order by armed_at limit $4 for update skip locked`

// absence decides about the timers of one rule that have run out.
func (s *Sweeper) absence(ctx context.Context, set *rules.Set, of *rules.Rule) error {
	a := of.Absence
	oldest := 0.0
	err := s.untilFew(ctx, func(ctx context.Context, tx pgx.Tx) (int, func(), error) {
		due, places, waited, err := take(ctx, tx, a, s.sweepBatch)
		if err != nil || len(due) == 0 {
			return 0, nil, err
		}
		oldest = max(oldest, waited-a.Within.Seconds())
		n := len(due)
		expired := 0
		if a.First {
			due, expired, err = firstAnchors(ctx, tx, a, due)
		} else {
			err = done(ctx, tx, due, places)
		}
		if err != nil {
			return 0, nil, err
		}
		r := s.engine.recorder()
		return n, func() {
			r.Committed()
			s.metrics.fired.WithLabelValues(of.Name).Add(float64(len(due)))
			s.metrics.expired.WithLabelValues(of.Name).Add(float64(expired))
		}, r.record(ctx, tx, set.Fire(of, due))
	})
	s.metrics.late.set(of, oldest)
	if err != nil {
		return fmt.Errorf("evaluate: timers of rule %s: %w", of.Name, err)
	}
	return nil
}

// anyTime is longer ago than any event.
const anyTime = 100 * 365 * 24 * time.Hour

// take returns the timers without their events, where their rows are, and for how many seconds the oldest has been
// armed.
func take(ctx context.Context, tx pgx.Tx, a *rules.Absence, limit int) (
	due []rules.Due, places []pgtype.TID, waited float64, err error) {
	lookback := a.Lookback
	if a.First {
		lookback = anyTime // the timer's clock is a bound from below; firstSQL looks at the real one
	}
	rows, err := tx.Query(ctx, takeSQL, a.Timer, a.Within, lookback, limit)
	if err != nil {
		return nil, nil, 0, err
	}
	var d rules.Due
	var place pgtype.TID
	var w float64
	_, err = pgx.ForEachRow(rows, []any{&place, &d.Tenant, &d.Key, &d.Anchor, &d.Latest, &d.Trigger.ID,
		&d.Trigger.OccurredAt, &w}, func() error {
		waited = max(waited, w)
		due, places = append(due, d), append(places, place)
		return nil
	})
	return due, places, waited, err
}

// doneSQL marks timers as dealt with, up to the trigger that was seen. The transaction that has them locked finds them
// by where they are. The statement that locks them could not: it does not see a row that moved just before.
const doneSQL = `update absence_timers set done_at = trigger_at where ctid = any($1)`

// planEachSQL has statements planned for their values. A prepared one gets, at its sixth execution, a plan for any
// value, if only to compare its cost: one of all days, with a lock on each, and thousands are more than PostgreSQL has
// room for.
const planEachSQL = `set local plan_cache_mode = force_custom_plan`

// eventsSQL reads the events that started timers, one by one by their key. The bounds tell which days they are of.
const eventsSQL = `
select n, ` + pipeline.EventColumns + `
from unnest($1::int[], $2::uuid[], $3::timestamptz[]) with ordinality as t (tenant, id, at, n)
cross join lateral (select * from events where tenant_id = tenant and event_id = id and occurred_at = at
	and occurred_at between $4 and $5 limit 1) e`

// done marks the timers, and completes them by their events.
func done(ctx context.Context, tx pgx.Tx, due []rules.Due, places []pgtype.TID) error {
	b := &pgx.Batch{}
	queueTriggers(b, due)
	b.Queue(doneSQL, places)
	return tx.SendBatch(ctx, b).Close()
}

// queueTriggers completes timers by their events, of which they have the key; the name of one that is no longer stored
// is empty.
func queueTriggers(b *pgx.Batch, due []rules.Due) {
	tenants, ids, at := make([]int32, len(due)), make([]pipeline.UUID, len(due)), make([]time.Time, len(due))
	for i, d := range due {
		tenants[i], ids[i], at[i] = d.Tenant, d.Trigger.ID, d.Trigger.OccurredAt
	}
	first, last := slices.MinFunc(at, time.Time.Compare), slices.MaxFunc(at, time.Time.Compare)
	b.Queue(planEachSQL)
	b.Queue(eventsSQL, tenants, ids, at, first, last).Query(func(rows pgx.Rows) error {
		var n int
		var e pipeline.EventRow
		_, err := pgx.ForEachRow(rows, append([]any{&n}, e.Fields()...), func() error {
			due[n-1].Trigger, _ = e.Event()
			return nil
		})
		return err
	})
}

// firstSQL works out, from the whole history of keys, where the current streak of triggers began. A streak fires once:
// after it has, a cancel has to come before anything fires again. What fires, and what has fired, is done; the clock
// of a streak that began later than the timer knew is set to its beginning.
const firstSQL = `
with asked as (select * from unnest($2::int[], $3::text[]) as u(tenant_id, key)),
streak as (
	select t.tenant_id, t.key, t.trigger_at, t.fired_at, t.cancel_at, f.at, f.event_id, f.occurred_at
	from asked a join absence_timers t on t.timer = $1 and t.tenant_id = a.tenant_id and t.key = a.key
	cross join lateral (select h.at, h.event_id, h.occurred_at from absence_history h
		where h.timer = $1 and h.tenant_id = t.tenant_id and h.key = t.key and not h.cancels
			and h.at > coalesce(t.cancel_at, '-infinity') order by h.at, h.event_id limit 1) f),
verdict as (
	select *, fired_at is not null and coalesce(cancel_at, '-infinity') <= fired_at as over,
		at <= now() - $4::interval as ripe,
		at <= now() - $5::interval as expired
	from streak),
moved as (
	update absence_timers t set first_at = v.at,
		done_at = case when v.over or v.ripe then v.trigger_at else t.done_at end,
		fired_at = case when not v.over and v.ripe and not v.expired then v.at else t.fired_at end
	from verdict v where t.timer = $1 and t.tenant_id = v.tenant_id and t.key = v.key)
select v.expired, v.tenant_id, v.key, v.at, v.trigger_at, v.event_id, v.occurred_at
from verdict v where not v.over and v.ripe order by v.at`

// firstAnchors replaces timers that woke by those that fire.
func firstAnchors(ctx context.Context, tx pgx.Tx, a *rules.Absence, woken []rules.Due) (
	fire []rules.Due, expired int, err error) {
	tenants, keys := make([]int32, len(woken)), make([]string, len(woken))
	for i, d := range woken {
		tenants[i], keys[i] = d.Tenant, d.Key
	}
	rows, err := tx.Query(ctx, firstSQL, a.Timer, tenants, keys, a.Within, a.Lookback)
	if err != nil {
		return nil, 0, err
	}
	var d rules.Due
	var late bool
	fields := []any{&late, &d.Tenant, &d.Key, &d.Anchor, &d.Latest, &d.Trigger.ID, &d.Trigger.OccurredAt}
	_, err = pgx.ForEachRow(rows, fields, func() error {
		if late {
			expired++
			return nil
		}
		fire = append(fire, d)
		return nil
	})
	if err != nil || len(fire) == 0 {
		return nil, expired, err
	}
	b := &pgx.Batch{}
	queueTriggers(b, fire)
	return fire, expired, tx.SendBatch(ctx, b).Close()
}

// expireSQL counts timers that nobody looked at while they could fire, and stops their clocks.
const expireSQL = `
update absence_timers t set done_at = t.trigger_at from (
	select tenant_id, key from absence_timers where timer = $1 and armed_at <= now() - $2::interval
	order by armed_at limit $3 for update skip locked) late
where t.timer = $1 and t.tenant_id = late.tenant_id and t.key = late.key`

// forgetSQL removes timers that no event can make fire any more: everything about them is older than the lookback. They
// are kept for a day longer, for messages that wait to be sent.
const forgetSQL = `
delete from absence_timers t using (
	select tenant_id, key from absence_timers
	where timer = $1 and armed_at is null and greatest(trigger_at, cancel_at,
		activity_at) <= now() - $2::interval - interval '1 day'
	limit $3 for update skip locked) old
where t.timer = $1 and t.tenant_id = old.tenant_id and t.key = old.key`

const forgetHistorySQL = `
delete from absence_history h using (
	select tenant_id, key, at, event_id from absence_history where timer = $1
		and at <= now() - $2::interval - interval '1 day'
	limit $3 for update skip locked) old
where h.timer = $1 and (h.tenant_id, h.key, h.at, h.event_id) = (old.tenant_id, old.key, old.at, old.event_id)`

// clean removes what a rule's timers do not need any more.
func (s *Sweeper) cleanTimers(ctx context.Context, of *rules.Rule) error {
	a := of.Absence
	var errs []error
	for _, sql := range []string{expireSQL, forgetSQL, forgetHistorySQL} {
		if sql == forgetHistorySQL && !a.First || sql == expireSQL && a.First {
			continue
		}
		errs = append(errs, s.untilFew(ctx, func(ctx context.Context, tx pgx.Tx) (int, func(), error) {
			tag, err := tx.Exec(ctx, sql, a.Timer, a.Lookback, s.sweepBatch)
			n := int(tag.RowsAffected())
			return n, func() {
				if sql == expireSQL {
					s.metrics.expired.WithLabelValues(of.Name).Add(float64(n))
				}
			}, err
		}))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("evaluate: clean timers of rule %s: %w", of.Name, err)
	}
	return nil
}
