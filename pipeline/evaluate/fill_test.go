package evaluate

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/pipeline"
)

// TestRateRuleKnowsItsBaselineAtOnce: what was stored before a rule came into force, and while it was off, is counted;
// a rule that was off for days does not tell what happened then.
func TestRateRuleKnowsItsBaselineAtOnce(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(mode.String(), func(t *testing.T) { t.Parallel(); knowsItsBaseline(t, mode) })
	}
}

func knowsItsBaseline(t *testing.T, mode pgx.QueryExecMode) {
	w := newWorldIn(t, mode, cart())
	off := strings.Replace(errors30, "kind: rate", "kind: rate\n    state: off", 1)
	w.set(w.now.Truncate(time.Hour))
	w.minutes("failed", 100, 20)
	w.use(errors30)
	if err := w.sweep.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.want(`select metric from rate_states`) // it is not judged before it is filled
	w.tick()
	w.want(`select state ->> 'state' from rate_states`, "ok")

	w.use(off)
	w.minutes("failed", 40, 60)
	w.use(errors30)
	w.minutes("failed", 1, 60)
	w.tick()
	if got := w.states(); len(got) == 0 || got[0] != "firing" {
		t.Fatalf("messages %q, want firing from what was stored while the rule was off", got)
	}
	w.use(off)
	before := len(w.states())
	w.minutes("failed", 60, 20)
	w.advance(36 * time.Hour)
	w.exec(`select create_events_partition((clock.now() at time zone 'UTC')::date + n) from generate_series(0, 2) n`)
	w.minutes("failed", 90, 20)
	w.use(errors30)
	w.tick()
	for _, s := range w.states()[before:] {
		if s == "resolved" {
			return
		}
	}
	t.Fatalf("messages %q, want resolved: an hour and a half of normal traffic was looked at", w.states())
}

// TestFilledCountsAreThoseOfIngest: two rules count the same, one in force all along, the other switched on, off and on
// again while writers commit, some of which do not know it yet. Late, future-stamped and repeated events. In the end
// both counted the same.
func TestFilledCountsAreThoseOfIngest(t *testing.T) {
	t.Parallel()
	for seed := range uint64(*seeds) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) { t.Parallel(); fillBesideWriters(t, seed) })
	}
}

func fillBesideWriters(t *testing.T, seed uint64) {
	rule := func(id string) string {
		return fmt.Sprintf(`  - {id: %s, kind: rate, window: 60m, settle: 5m, baseline: {step: 1d, periods: 3, require: 1},
     numerator: {on: bought, match: event.properties.amount_cents > 50}, denominator: {on: [started, bought]},
     send_to: crm, fire: {drop: 99%%}}
`, id)
	}
	w := newWorld(t, rule("live"))
	w.tick()
	w.exec(`select create_events_partition((clock.now() at time zone 'UTC')::date - n) from generate_series(0, 6) n`)
	rng := rand.New(rand.NewPCG(seed, 3))
	var mu sync.Mutex // around rng
	var all []pipeline.Event
	batch := func(received func() time.Time) []pipeline.Event {
		mu.Lock()
		defer mu.Unlock()
		var events []pipeline.Event
		for range 1 + rng.IntN(30) {
			at := received()
			ev := pipeline.Event{ID: pipeline.NewUUIDv7(w.now), Tenant: int32(1 + rng.IntN(2)),
				Name:       []string{"started", "bought", "seen"}[rng.IntN(3)],
				OccurredAt: at.Add(-time.Duration(rng.IntN(240)) * time.Second), ReceivedAt: at,
				Properties: fmt.Appendf(nil, `{"amount_cents":%d}`, rng.IntN(100))}
			switch rng.IntN(6) {
			case 0:
				ev.OccurredAt = at.Add(-time.Duration(rng.IntN(600)) * time.Minute)
			case 1:
				ev.OccurredAt = at.Add(time.Duration(rng.IntN(24*60)) * time.Minute)
			}
			if len(all) > 0 && rng.IntN(10) == 0 {
				ev = all[rng.IntN(len(all))]
			}
			events = append(events, ev)
			all = append(all, ev)
		}
		return events
	}
	now := func() time.Time { return w.now }
	write := func(engine *Engine, events []pipeline.Event, underWay func()) {
		if err := w.store(engine, events, underWay); err != nil {
			t.Error(err)
		}
	}
	for range 40 {
		w.ingest(batch(func() time.Time { return w.now.Add(-time.Duration(rng.IntN(70*60)) * time.Minute) })...)
	}
	old, both := w.engine, w.newEngine(rule("live")+rule("late"))

	// on switches the rule on, or on again, while writers are at it and one holds a batch that does not know it.
	on := func() {
		t.Helper()
		var writers sync.WaitGroup
		release := make(chan struct{})
		held := make(chan struct{})
		writers.Go(func() { write(old, batch(now), func() { close(held); <-release }) })
		<-held
		for n := range 2 {
			writers.Go(func() {
				for i := range 15 {
					engine := both
					if n == 0 && i < 5 {
						engine = old
					}
					write(engine, batch(now), func() {})
				}
			})
		}
		w.sweep.engine = both
		if err := w.sweep.Fill(t.Context()); err != nil {
			t.Fatal(err)
		}
		close(release)
		writers.Wait()
		for range 2 {
			w.advance(time.Minute)
			if err := w.sweep.Fill(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		const sums = `select tenant_id, minute, sum(n)::text n, sum(x)::text x from rate_minutes where metric like %s
			and (n > 0 or x > 0) group by 1, 2`
		live, late := fmt.Sprintf(sums, "'t/live#%'"), fmt.Sprintf(sums, "'t/late#%'")
		w.want(`select row_to_json(d)::text from (` + live + ` except ` + late + `) d`)
		w.want(`select row_to_json(d)::text from (` + late + ` except ` + live + `) d`)
		w.want(`select count(*)::text from (select count(*) filter (where metric like 't/late#%') a,
			sum(case when metric like 't/late#%' then -1 else 1 end * late_n) late
			from rate_minutes group by tenant_id, minute) m where late < 0`, "0")
		w.want(`select passes || ' ' || coalesce(day::text, 'nothing to do') from rate_fills where metric like 't/late#%'`,
			"2 nothing to do")
	}
	on()
	w.sweep.engine = old
	for range 10 {
		w.advance(time.Minute)
		write(old, batch(now), func() {})
	}
	on()
	w.want(`select (sum(n) > 500)::text from rate_minutes where metric like 't/late#%'`, "true")
	w.want(`select count(distinct shard)::text from rate_minutes where metric like 't/late#%' and shard = -1`, "1")
}
