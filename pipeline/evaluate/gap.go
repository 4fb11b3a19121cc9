package evaluate

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"sluice.example/sluice/pipeline/rules"
)

// A process that stores events without a rule that others have in force, or that it had itself a moment ago, leaves a
// gap in what the rule's timers and counts know. It marks the gap, by moving back the moment when the rule was last
// seen everywhere; whoever has the rule in force then reads what was stored since, before anything of that rule fires.
// However short the gap was, nothing in it is missed.

// leave remembers which rules have just left this process.
func (e *Engine) leave(old, set *rules.Set) {
	if old == nil {
		return
	}
	timers, metrics := stateNames(set)
	wereTimers, wereMetrics := stateNames(old)
	e.gapMu.Lock()
	for _, name := range append(wereTimers, wereMetrics...) {
		if _, known := e.left[name]; !known && !slices.Contains(timers, name) && !slices.Contains(metrics, name) {
			e.left[name] = time.Now()
		}
	}
	e.gapMu.Unlock()
	select {
	case e.changed <- struct{}{}:
	default: // it is noticed already
	}
}

// stateNames are those of the timers and metrics of the rules in force.
func stateNames(set *rules.Set) (timers, metrics []string) {
	timers, metrics = []string{}, []string{}
	for _, r := range set.Absences() {
		timers = append(timers, r.Absence.Timer)
	}
	for _, r := range set.Rates() {
		metrics = append(metrics, r.Rate.Metric)
	}
	return timers, metrics
}

// $1 are the timers or metrics that left this process, and $2 for how many seconds they have been away. What others
// have in force, and not this process with its $3, is marked at most once in $4, since events are read again each time.
const (
	markTimersSQL = `
with away as (select * from unnest($1::text[], $2::float8[]) u(name, seconds))
update absence_seeds s set seen_at = case when a.name is not null
	then least(s.seen_at, now() - $4::interval - a.seconds * interval '1 second')
	else least(s.seen_at, now() - 3 * $4::interval) end
from absence_seeds o left join away a on a.name = o.timer
where s.timer = o.timer and (a.name is not null
	or o.timer <> all($3) and o.seen_at > now() - $4::interval and o.seeds > 1 and o.seeded_at <= now() - $4::interval)`

	markMetricsSQL = `
with away as (select * from unnest($1::text[], $2::float8[]) u(name, seconds))
update rate_fills s set seen_at = case when a.name is not null
	then least(s.seen_at, now() - $4::interval - a.seconds * interval '1 second')
	else least(s.seen_at, now() - 3 * $4::interval) end
from rate_fills o left join away a on a.name = o.metric
where s.metric = o.metric and (a.name is not null
	or o.metric <> all($3) and o.seen_at > now() - $4::interval and o.passes > 1 and o.began_at <= now() - $4::interval)`
)

// markGaps marks which rules this process stores events without. It does nothing in a process that stores none.
func (e *Engine) markGaps(ctx context.Context, db *pgxpool.Pool) error {
	if !e.stores.Load() {
		return nil
	}
	e.gapMu.Lock()
	left := maps.Clone(e.left)
	e.gapMu.Unlock()
	names, seconds := []string{}, []float64{}
	for name, at := range left {
		names = append(names, name)
		seconds = append(seconds, time.Since(at).Seconds())
	}
	ctx, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()
	timers, metrics := stateNames(e.inForce())
	_, err := db.Exec(ctx, markTimersSQL, names, seconds, timers, reseedAfter)
	if err == nil {
		_, err = db.Exec(ctx, markMetricsSQL, names, seconds, metrics, reseedAfter)
	}
	if err != nil {
		return fmt.Errorf("evaluate: mark what is stored without some rules: %w", err)
	}
	e.gapMu.Lock()
	defer e.gapMu.Unlock()
	maps.DeleteFunc(e.left, func(name string, at time.Time) bool { return left[name].Equal(at) })
	return nil
}
