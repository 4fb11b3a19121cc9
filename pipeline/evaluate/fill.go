package evaluate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/internal/pgtx"
	"sluice.example/sluice/pipeline"
	"sluice.example/sluice/pipeline/rules"
)

// noteRatesSQL notes which rate rules are in force, and which days of theirs have to be filled: for a new rule all days
// of its baseline; for one that no node had in force for a while those since then; and once more those in which batches
// of nodes that did not know it yet may have stored events. What arrives more than an hour after its rule's settle
// time is not part of any comparison, so days are not gone back further for it. Most of the time this writes nothing.
const noteRatesSQL = `
insert into rate_fills as f (metric, seen_at, passes, began_at, day, since, counts_from)
select metric, now(), 0, now(), (now() at time zone 'UTC')::date, (since at time zone 'UTC')::date, now()
from unnest($1::text[], $2::timestamptz[]) as u(metric, since)
where not exists (select from rate_fills f where f.metric = u.metric and f.seen_at > now() - $4::interval / 4
	and not (f.passes = 1 and f.day is null and f.began_at <= now() - $4::interval))
order by metric
on conflict (metric) do update set seen_at = now(),
	passes = case when f.seen_at <= now() - $4::interval then 0 else f.passes end,
	began_at = case when f.seen_at <= now() - $4::interval then now() else f.began_at end,
	day = case when f.seen_at <= now() - $4::interval or f.passes = 1 and f.day is null
		and f.began_at <= now() - $4::interval
		then excluded.day else f.day end,
	since = greatest(excluded.since, case
		when f.seen_at <= now() - $4::interval then least(case when f.day is not null then f.since end,
			((f.seen_at - $3::interval) at time zone 'UTC')::date)
		when f.passes = 1 and f.day is null and f.began_at <= now() - $4::interval
			then ((f.began_at - $3::interval) at time zone 'UTC')::date
		else f.since end)`

const filledSQL = `select metric from rate_fills where metric = any($1) and passes > 0`

// noteRates notes the rate rules in force, and returns those that can be judged.
func (s *Sweeper) noteRates(ctx context.Context, rates []*rules.Rule) (judged []*rules.Rule, err error) {
	if len(rates) == 0 {
		return nil, nil
	}
	metrics, since := make([]string, len(rates)), make([]time.Time, len(rates))
	settle := time.Duration(0)
	for i, r := range rates {
		metrics[i] = r.Rate.Metric
		since[i] = r.Rate.Oldest(time.Now())
		settle = max(settle, r.Rate.Settle)
	}
	filled := map[string]bool{}
	err = s.inTx(ctx, func(ctx context.Context, tx pgx.Tx) (func(), error) {
		if _, err := tx.Exec(ctx, noteRatesSQL, metrics, since, settle+time.Hour, s.reseedAfter); err != nil {
			return nil, err
		}
		rows, err := tx.Query(ctx, filledSQL, metrics)
		if err != nil {
			return nil, err
		}
		var metric string
		_, err = pgx.ForEachRow(rows, []any{&metric}, func() error { filled[metric] = true; return nil })
		return nil, err
	})
	if err != nil {
		return nil, fmt.Errorf("evaluate: note %d rate rules: %w", len(rates), err)
	}
	for _, r := range rates {
		if filled[r.Rate.Metric] {
			judged = append(judged, r)
		}
	}
	return judged, nil
}

// Fill counts, for rate rules, the stored events that were not counted when they were stored: those from before the
// rule came into force. It goes on until nothing is to do, a day in each transaction, the latest first, and rests after
// each day as long as it took. A rule that another node is at is left to that one.
func (s *Sweeper) Fill(ctx context.Context) error {
	set := s.engine.inForce()
	rates := set.Rates()
	s.metrics.unfilled.only(rates)
	if err := s.engine.markGaps(ctx, s.db); err != nil {
		return err
	}
	if _, err := s.noteRates(ctx, rates); err != nil {
		return err
	}
	var errs []error
	for _, r := range rates {
		for more := true; more; {
			start := time.Now()
			var err error
			if more, err = s.fillDay(ctx, set, r); err != nil && ctx.Err() == nil {
				s.metrics.errors.WithLabelValues("fill").Inc()
				errs = append(errs, fmt.Errorf("evaluate: count stored events for rule %s: %w", r.Name, err))
			}
			if more {
				select {
				case <-ctx.Done():
					return nil
				case <-time.After(time.Since(start)):
				}
			}
		}
	}
	return errors.Join(errs...)
}

const fillAloneSQL = `select pg_try_advisory_xact_lock(hashtextextended('sluice:fill ' || $1, 0))`

const toFillSQL = `select day, since from rate_fills where metric = $1 and day is not null`

// countedSQL reads one day: the counts that are there, negative, and the events. It is one statement, and so one
// moment: each event that it sees was counted by its batch in the minutes that it sees, or was not. Whatever commits
// later is not part of this day's pass. An event counts on the day on which it arrived if its clock was ahead; it is
// found if that was by less than 48 hours, which is what ingest takes by default.
// The join with no event gives both parts the same columns. Its range is empty and not just false, where PostgreSQL 18
// would lock every day.
const countedSQL = `
declare fill no scroll cursor for
select c.*, e.*
from (select tenant_id, minute, -sum(n)::bigint, -sum(x)::bigint, -sum(late_n)::bigint, -sum(late_x)::bigint
	from rate_minutes where metric = $1 and minute >= $2 and minute < $3 group by tenant_id, minute) c
left join (select ` + pipeline.EventColumns + ` from events where occurred_at >= $2 and occurred_at < $2) e on true
union all
select tenant_id, null, null, null, null, null, ` + pipeline.EventColumns + `
from events where occurred_at >= $2 and occurred_at < $5
	and least(occurred_at, received_at) < $3
	and least(occurred_at, received_at) >= $2
	and ($4::text[] is null or event_name = any($4))`

const dayFilledSQL = `
update rate_fills set day = case when day > since then day - 1 end,
	passes = case when day > since then passes else passes + 1 end
where metric = $1 and day = $2`

// fillDay adds what one day's events should count and do not. All of it commits together with the mark that the day is
// done; the lock keeps two nodes from doing the same day at the same time.
func (s *Sweeper) fillDay(ctx context.Context, set *rules.Set, r *rules.Rule) (more bool, err error) {
	metric := r.Rate.Metric
	ctx, cancel := context.WithTimeout(ctx, seedTimeout)
	defer cancel()
	events, left := 0, 0
	err = pgtx.InTx(ctx, s.db, readCommitted, seedBounds, func(tx pgx.Tx) error {
		var mine bool
		if err := tx.QueryRow(ctx, fillAloneSQL, metric).Scan(&mine); err != nil || !mine {
			return err
		}
		var day, since time.Time
		err := tx.QueryRow(ctx, toFillSQL, metric).Scan(&day, &since)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		var missing map[rules.Minute]rules.Counts
		if missing, events, err = s.uncounted(ctx, tx, set, r, day); err != nil {
			return err
		}
		var b pgx.Batch
		queueMinutes(&b, missing, fillShard)
		if err := tx.SendBatch(ctx, &b).Close(); err != nil {
			return fmt.Errorf("add %d minutes: %w", len(missing), err)
		}
		left = max(0, int(day.Sub(since)/(24*time.Hour)))
		more = left > 0
		_, err = tx.Exec(ctx, dayFilledSQL, metric, day)
		return err
	})
	if err != nil {
		return false, err
	}
	s.metrics.filled.WithLabelValues(r.Name).Add(float64(events))
	s.metrics.unfilled.set(r, float64(left))
	if events > 0 && !more {
		s.engine.log.Info("rate rule activated; earlier events counted", "rule", r.Name)
	}
	return more, nil
}

// uncounted is what is missing in the minutes of one day.
func (s *Sweeper) uncounted(ctx context.Context, tx pgx.Tx, set *rules.Set, r *rules.Rule, day time.Time) (
	missing map[rules.Minute]rules.Counts, read int, err error) {
	a := r.Rate
	end := day.AddDate(0, 0, 1)
	_, err = tx.Exec(ctx, countedSQL, pgx.QueryExecModeSimpleProtocol, a.Metric, day, end, a.Names, end.Add(48*time.Hour))
	if err != nil {
		return nil, 0, err
	}
	missing = map[rules.Minute]rules.Counts{}
	for {
		rows, err := tx.Query(ctx, "fetch 2000 from fill")
		if err != nil {
			return nil, 0, err
		}
		m := rules.Minute{Metric: a.Metric}
		var minute *time.Time
		var sums [4]*int64
		var e pipeline.EventRow
		var events []pipeline.Event
		n := 0
		_, err = pgx.ForEachRow(rows, append([]any{&m.Tenant, &minute, &sums[0], &sums[1], &sums[2], &sums[3]},
			e.Fields()...), func() error {
			n++
			if minute == nil {
				ev, _ := e.Event()
				events = append(events, ev)
				return nil
			}
			m.At = minute.UTC()
			sum := missing[m]
			for i := range sums {
				sum[i] += *sums[i]
			}
			missing[m] = sum
			return nil
		})
		if err != nil {
			return nil, 0, err
		}
		if n == 0 {
			break
		}
		read += len(events)
		rules.Rollup(missing, set.Revisit(r, events).Counts)
	}
	for m, sum := range missing {
		// Less than was counted: the events went with their day's partition.
		for i := range sum {
			sum[i] = max(0, sum[i])
		}
		if missing[m] = sum; sum == (rules.Counts{}) {
			delete(missing, m)
		}
	}
	_, err = tx.Exec(ctx, "close fill")
	return missing, read, err
}
