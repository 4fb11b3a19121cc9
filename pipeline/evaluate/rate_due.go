package evaluate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/pipeline/rules"
)

// ratedTenantsSQL finds for whom a rule has windows to judge: who has a state, or was counted lately.
const ratedTenantsSQL = `
select tenant_id from rate_states where metric = $1
union select distinct tenant_id from rate_minutes where metric = $1 and minute > now() - $2::interval
order by 1`

const lockStateSQL = `
select slot, state, firing from rate_states where metric = $1 and tenant_id = $2 for update skip locked`

const newStateSQL = `
insert into rate_states (metric, tenant_id, slot, firing, state) values ($1, $2, $3, false, '{}')
on conflict do nothing`

const keepStateSQL = `update rate_states set slot = $3, firing = $4, state = $5 where metric = $1 and tenant_id = $2`

const startFiringSQL = `
insert into rate_firings (metric, tenant_id, started_at) values ($1, $2, $3) on conflict do nothing`

const endFiringSQL = `update rate_firings set ended_at = $3 where metric = $1 and tenant_id = $2 and ended_at is null`

// sampleSQL sums the minutes of some windows, given by their ends: ranges of the primary key. A window from before the
// rule counted, or in which the rule fired, is not usable for comparison; but a firing that is older than all of them
// is what is normal now, or it would never end. The rule has counted since it was noted, and since the first minute
// that was counted for the tenant; nothing in a window after that is a count of 0.
const sampleSQL = `
select coalesce(m.n, 0), coalesce(m.x, 0), (m.n is not null or w.until - $4::interval >= least(
		(select counts_from from rate_fills where metric = $1),
		(select min(minute) from rate_minutes where metric = $1 and tenant_id = $2)))
	and not exists (select from rate_firings f where f.metric = $1 and f.tenant_id = $2
	and f.started_at >= $5 and f.started_at < w.until and coalesce(f.ended_at, 'infinity') > w.until - $4::interval)
from unnest($3::timestamptz[]) with ordinality as w(until, i), lateral (
	select sum(n)::float8 n, sum(x)::float8 x from rate_minutes
	where metric = $1 and tenant_id = $2 and minute >= w.until - $4::interval and minute < w.until) m
order by w.i`

// maxMissed is how old a window may be and still be judged. A guess: whoever reads a message that something is wrong
// can still do something about it.
const maxMissed = 24 * time.Hour

// maxSlots bounds how many missed windows one transaction makes up for.
const maxSlots = 300

// rates judges the windows of rules that have settled since the last look, in the order of time: a rule that others
// inhibit is judged up to where they have been, and again once they have come further.
func (s *Sweeper) rates(ctx context.Context, set *rules.Set, judged []*rules.Rule) error {
	var errs []error
	todo := judged
	for len(todo) > 0 {
		var held []*rules.Rule
		moved := false
		for _, r := range todo {
			n, waits, err := s.rate(ctx, set, r, inhibitorsOf(r, set, judged))
			errs = append(errs, err)
			moved = moved || n > 0
			if waits {
				held = append(held, r)
			}
		}
		if !moved {
			break // another node is at it, or it failed
		}
		todo = held
	}
	return errors.Join(errs...)
}

// inhibitors are the rules that keep one from firing, as parameters of inhibitedSQL.
type inhibitors struct {
	metrics []string
	// settle is how long after its end a window is judged, and every how often, in seconds.
	settle, every []float64
	// before: of two windows that are judged at one moment the inhibitor's comes first.
	before []bool
	// judged: the inhibitor's windows are judged, so that they can be waited for.
	judged []bool
}

func inhibitorsOf(r *rules.Rule, set *rules.Set, judged []*rules.Rule) (in inhibitors) {
	rates := set.Rates()
	own := slices.Index(rates, r)
	for i, other := range rates {
		if !slices.Contains(r.Rate.Inhibitors, other.Rate.Metric) {
			continue
		}
		in.metrics = append(in.metrics, other.Rate.Metric)
		in.settle = append(in.settle, other.Rate.Settle.Seconds())
		in.every = append(in.every, other.Rate.Every.Seconds())
		in.before = append(in.before, i < own)
		in.judged = append(in.judged, slices.Contains(judged, other))
	}
	return in
}

// rate judges the windows of one rule for every tenant. It returns how many, and whether some have to wait for those of
// an inhibitor.
func (s *Sweeper) rate(ctx context.Context, set *rules.Set, r *rules.Rule, in inhibitors) (
	judged int, waits bool, err error) {
	a := r.Rate
	rows, err := s.db.Query(ctx, ratedTenantsSQL, a.Metric, a.Window+a.Settle)
	if err != nil {
		return 0, false, fmt.Errorf("evaluate: rule %s: %w", r.Name, err)
	}
	tenants, err := pgx.CollectRows(rows, pgx.RowTo[int32])
	errs := []error{err}
	for _, tenant := range tenants {
		for more := true; more; {
			var done progress
			err := s.inTx(ctx, func(ctx context.Context, tx pgx.Tx) (committed func(), err error) {
				done, committed, err = s.windows(ctx, tx, set, r, in, tenant)
				return committed, err
			})
			more = done.more
			judged += done.judged
			waits = waits || done.waits
			if err != nil {
				errs = append(errs, fmt.Errorf("evaluate: rule %s, tenant %d: %w", r.Name, tenant, err))
				break
			}
		}
	}
	return judged, waits, errors.Join(errs...)
}

// progress is how far a tenant's windows were judged.
type progress struct {
	judged int
	// more: there are others. waits: an inhibitor has to be judged first.
	more, waits bool
}

// windows judges one tenant's windows, oldest first, each exactly once: the state's row is locked, and a node that
// finds it locked leaves it alone.
func (s *Sweeper) windows(ctx context.Context, tx pgx.Tx, set *rules.Set, r *rules.Rule, in inhibitors,
	tenant int32) (done progress, committed func(), err error) {
	a := r.Rate
	var now time.Time
	if err := tx.QueryRow(ctx, `select now()`).Scan(&now); err != nil {
		return progress{}, nil, err
	}
	last := now.Add(-a.Settle).UTC().Truncate(a.Every)
	if _, err := tx.Exec(ctx, newStateSQL, a.Metric, tenant, last.Add(-a.Every)); err != nil {
		return progress{}, nil, err
	}
	var slot time.Time
	var kept []byte
	var firing bool
	err = tx.QueryRow(ctx, lockStateSQL, a.Metric, tenant).Scan(&slot, &kept, &firing)
	if errors.Is(err, pgx.ErrNoRows) {
		return progress{}, nil, nil
	}
	if err != nil {
		return progress{}, nil, err
	}
	var state rules.RateState
	if err := json.Unmarshal(kept, &state); err != nil {
		return progress{}, nil, fmt.Errorf("state of %s: %w", a.Metric, err)
	}
	end := slot.UTC().Truncate(a.Every).Add(a.Every)
	if oldest := last.Add(-maxMissed).Truncate(a.Every); end.Before(oldest) {
		end = oldest
	}
	var judged []*recorder
	for ; !end.After(last) && len(judged) < maxSlots; end = end.Add(a.Every) {
		inhibited, behind, err := in.at(ctx, tx, tenant, end.Add(a.Settle))
		if err != nil {
			return progress{}, nil, err
		}
		if done.waits = behind; behind {
			break
		}
		w, err := s.window(ctx, tx, a, tenant, end)
		if err != nil {
			return progress{}, nil, err
		}
		w.Inhibited = inhibited
		was := state.Firing()
		var found *rules.Findings
		state, found = set.Judge(r, state, w)
		one := s.engine.recorder()
		one.outcome.evaluated[r]++
		if err := one.record(ctx, tx, found); err != nil {
			return progress{}, nil, err
		}
		judged = append(judged, one)
		if err := noteFiring(ctx, tx, a.Metric, w, was, state.Firing()); err != nil {
			return progress{}, nil, err
		}
	}
	if len(judged) == 0 {
		return done, nil, nil
	}
	done.judged, done.more = len(judged), len(judged) == maxSlots
	if kept, err = json.Marshal(state); err != nil {
		return progress{}, nil, fmt.Errorf("state of %s: %w", a.Metric, err)
	}
	_, err = tx.Exec(ctx, keepStateSQL, a.Metric, tenant, end.Add(-a.Every), state.Firing(), string(kept))
	return done, func() {
		s.metrics.windows.WithLabelValues(r.Name).Add(float64(len(judged)))
		for _, one := range judged {
			one.Committed()
		}
	}, err
}

// noteFiring remembers in which windows the rule fires.
func noteFiring(ctx context.Context, tx pgx.Tx, metric string, w rules.Window, was, is bool) (err error) {
	if is && !was {
		_, err = tx.Exec(ctx, startFiringSQL, metric, w.Tenant, w.End)
	} else if was && !is {
		_, err = tx.Exec(ctx, endFiringSQL, metric, w.Tenant, w.End)
	}
	return err
}

// inhibitedSQL looks at inhibitors as they were at $2, when a window that settles then is judged: whether one fired,
// and whether one has windows to be judged before. An interval of a microsecond makes "before" of "not after".
const inhibitedSQL = `
with i as (
	select metric, settle * interval '1 second' as settle, every * interval '1 second' as every, judged,
		$2::timestamptz - case when before then interval '0' else interval '1 microsecond' end as at
	from unnest($3::text[], $4::float8[], $5::float8[], $6::bool[], $7::bool[]) u(metric, settle, every, before, judged))
select
	exists (select from i join rate_firings f on f.metric = i.metric and f.tenant_id = $1
		where f.started_at + i.settle <= i.at and coalesce(f.ended_at + i.settle, 'infinity') > i.at),
	exists (select from i join rate_states s on s.metric = i.metric and s.tenant_id = $1
		where i.judged and s.slot + i.every + i.settle <= i.at)`

// at reports whether an inhibitor fires at a time, and whether one is behind, so that this is not known yet.
func (in inhibitors) at(ctx context.Context, tx pgx.Tx, tenant int32, at time.Time) (fires, behind bool, err error) {
	if len(in.metrics) == 0 {
		return false, false, nil
	}
	err = tx.QueryRow(ctx, inhibitedSQL, tenant, at, in.metrics, in.settle, in.every, in.before, in.judged).
		Scan(&fires, &behind)
	return fires, behind, err
}

// window reads one window and those that it is compared with.
func (s *Sweeper) window(ctx context.Context, tx pgx.Tx, a *rules.Rate, tenant int32, end time.Time) (
	w rules.Window, err error) {
	w = rules.Window{Tenant: tenant, End: end}
	ends := append([]time.Time{end}, a.Periods(end)...)
	rows, err := tx.Query(ctx, sampleSQL, a.Metric, tenant, ends, a.Window, a.Oldest(end))
	if err != nil {
		return w, err
	}
	samples, err := pgx.CollectRows(rows, pgx.RowToStructByPos[rules.Sample])
	if err != nil {
		return w, err
	}
	w.Current, w.Before = samples[0], samples[1:]
	return w, nil
}

// forgetMinutesSQL removes minutes that no window is compared with any more.
const forgetMinutesSQL = `
delete from rate_minutes m using (
	select ctid from rate_minutes where metric = $1 and minute < $2 limit $3 for update skip locked) old
where m.ctid = old.ctid`

func (s *Sweeper) cleanRate(ctx context.Context, r *rules.Rule) error {
	before := r.Rate.Oldest(time.Now()).Add(-25 * time.Hour)
	err := s.untilFew(ctx, func(ctx context.Context, tx pgx.Tx) (int, func(), error) {
		tag, err := tx.Exec(ctx, forgetMinutesSQL, r.Rate.Metric, before, s.sweepBatch)
		return int(tag.RowsAffected()), nil, err
	})
	if err != nil {
		return fmt.Errorf("evaluate: clean counts of rule %s: %w", r.Name, err)
	}
	return nil
}
