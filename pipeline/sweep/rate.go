package sweep

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/pipeline"
)

// ratedTenantsSQL finds for whom a rule has windows to judge: who has a state, or was counted lately.
const ratedTenantsSQL = `
select tenant_id from rate_states where metric = $1
union select distinct tenant_id from rate_minutes where metric = $1 and minute > now() - $2::interval
order by 1`

const lockStateSQL = `select slot, state, firing from rate_states where metric = $1 and tenant_id = $2 for update skip locked`

const newStateSQL = `
insert into rate_states (metric, tenant_id, slot, firing, state) values ($1, $2, $3, false, '{}') on conflict do nothing`

const keepStateSQL = `update rate_states set slot = $3, firing = $4, state = $5 where metric = $1 and tenant_id = $2`

const startFiringSQL = `insert into rate_firings (metric, tenant_id, started_at) values ($1, $2, $3) on conflict do nothing`

const endFiringSQL = `update rate_firings set ended_at = $3 where metric = $1 and tenant_id = $2 and ended_at is null`

// sampleSQL sums the minutes of some windows, given by their ends: ranges of the primary key. A window in which nothing
// was counted, or in which the rule fired, is not usable for comparison; but a firing that is older than all of them is what
// is normal now, or it would never end.
const sampleSQL = `
select coalesce(m.n, 0), coalesce(m.x, 0), m.n is not null and not exists (select from rate_firings f where f.metric = $1 and f.tenant_id = $2
	and f.started_at >= $5 and f.started_at < w.until and coalesce(f.ended_at, 'infinity') > w.until - $4::interval)
from unnest($3::timestamptz[]) with ordinality as w(until, i), lateral (
	select sum(n)::float8 n, sum(x)::float8 x from rate_minutes
	where metric = $1 and tenant_id = $2 and minute >= w.until - $4::interval and minute < w.until) m
order by w.i`

// maxMissed is how old a window may be and still be judged. A guess: whoever reads a message that something is wrong can
// still do something about it.
const maxMissed = 24 * time.Hour

// maxSlots bounds how many missed windows one transaction makes up for.
const maxSlots = 300

// rate judges the windows of one rule that have settled since the last look, for every tenant.
func (s *Sweeper) rate(ctx context.Context, r pipeline.Rate) error {
	rows, err := s.db.Query(ctx, ratedTenantsSQL, r.Metric, r.Window+r.Settle)
	if err != nil {
		return fmt.Errorf("sweep: rule %s: %w", r.Rule, err)
	}
	tenants, err := pgx.CollectRows(rows, pgx.RowTo[int32])
	errs := []error{err}
	for _, tenant := range tenants {
		for more := true; more; {
			err := s.inTx(ctx, func(ctx context.Context, tx pgx.Tx) (committed func(), err error) {
				more, committed, err = s.windows(ctx, tx, r, tenant)
				return committed, err
			})
			if err != nil {
				errs = append(errs, fmt.Errorf("sweep: rule %s, tenant %d: %w", r.Rule, tenant, err))
				break
			}
		}
	}
	return errors.Join(errs...)
}

// windows judges one tenant's windows, oldest first, each exactly once: the state's row is locked, and a node that finds
// it locked leaves it alone.
func (s *Sweeper) windows(ctx context.Context, tx pgx.Tx, r pipeline.Rate, tenant int32) (more bool, committed func(), err error) {
	var now time.Time
	if err := tx.QueryRow(ctx, `select now()`).Scan(&now); err != nil {
		return false, nil, err
	}
	last := now.Add(-r.Settle).UTC().Truncate(r.Every)
	if _, err := tx.Exec(ctx, newStateSQL, r.Metric, tenant, last.Add(-r.Every)); err != nil {
		return false, nil, err
	}
	var slot time.Time
	var state []byte
	var firing bool
	err = tx.QueryRow(ctx, lockStateSQL, r.Metric, tenant).Scan(&slot, &state, &firing)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil, nil
	}
	if err != nil {
		return false, nil, err
	}
	var done []func()
	n := 0
	end := slot.UTC().Truncate(r.Every).Add(r.Every)
	if oldest := last.Add(-maxMissed).Truncate(r.Every); end.Before(oldest) {
		end = oldest
	}
	for ; !end.After(last) && n < maxSlots; end = end.Add(r.Every) {
		n++
		was := firing
		var one func()
		if state, firing, one, err = s.window(ctx, tx, r, tenant, end, state); err != nil {
			return false, nil, err
		}
		done = append(done, one)
		if firing && !was {
			_, err = tx.Exec(ctx, startFiringSQL, r.Metric, tenant, end)
		} else if was && !firing {
			_, err = tx.Exec(ctx, endFiringSQL, r.Metric, tenant, end)
		}
		if err != nil {
			return false, nil, err
		}
	}
	if n == 0 {
		return false, nil, nil
	}
	_, err = tx.Exec(ctx, keepStateSQL, r.Metric, tenant, end.Add(-r.Every), firing, state)
	return n == maxSlots, func() {
		s.metrics.windows.WithLabelValues(r.Rule).Add(float64(n))
		for _, f := range done {
			f()
		}
	}, err
}

func (s *Sweeper) window(ctx context.Context, tx pgx.Tx, r pipeline.Rate, tenant int32, end time.Time, state []byte) ([]byte, bool, func(), error) {
	periods := r.Periods(end)
	rows, err := tx.Query(ctx, sampleSQL, r.Metric, tenant, append([]time.Time{end}, periods...), r.Window, periods[len(periods)-1].Add(-r.Window))
	if err != nil {
		return nil, false, nil, err
	}
	samples, err := pgx.CollectRows(rows, pgx.RowToStructByPos[pipeline.Sample])
	if err != nil {
		return nil, false, nil, err
	}
	inhibited := false
	if len(r.Inhibitors) > 0 {
		err := tx.QueryRow(ctx, `select exists (select from rate_states where metric = any($1) and tenant_id = $2 and firing)`, r.Inhibitors, tenant).Scan(&inhibited)
		if err != nil {
			return nil, false, nil, err
		}
	}
	return s.rules.Judge(ctx, tx, r.Metric, tenant, end, samples[0], samples[1:], state, inhibited)
}

// forgetMinutesSQL removes minutes that no window is compared with any more.
const forgetMinutesSQL = `
delete from rate_minutes m using (select ctid from rate_minutes where metric = $1 and minute < $2 limit $3 for update skip locked) old
where m.ctid = old.ctid`

func (s *Sweeper) cleanRate(ctx context.Context, r pipeline.Rate) error {
	periods := r.Periods(time.Now())
	before := periods[len(periods)-1].Add(-r.Window - 25*time.Hour)
	err := s.untilFew(ctx, func(ctx context.Context, tx pgx.Tx) (int, func(), error) {
		tag, err := tx.Exec(ctx, forgetMinutesSQL, r.Metric, before, s.cfg.Batch)
		return int(tag.RowsAffected()), nil, err
	})
	if err != nil {
		return fmt.Errorf("sweep: clean counts of rule %s: %w", r.Rule, err)
	}
	return nil
}
