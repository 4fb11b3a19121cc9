package evaluate

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/pipeline"
)

// errors30 counts failures against the three half-hours before; small windows so that the test is short.
const errors30 = `  - id: failures
    kind: rate
    count: {on: failed}
    window: 10m
    every: 5m
    settle: 1m
    baseline: {step: 30m, periods: 3, require: 2}
    minimum: {expected: 10}
    fire: {rise: 100%, z: 3, for: 2}
    clear: {rise: 50%, for: 2}
    repeat: 20m
    send_to: crm
    payload: {state: rate.state, got: rate.numerator, usual: rate.baseline}
`

// minutes ingests n events a minute for some minutes.
func (w *world) minutes(name string, minutes, n int) {
	w.t.Helper()
	for range minutes {
		var batch []pipeline.Event
		for range n {
			batch = append(batch, w.event(name, "s", 0))
		}
		if n > 0 {
			w.ingest(batch...)
		}
		w.advance(time.Minute)
	}
}

func (w *world) states() []string {
	return w.texts(`select payload ->> 'state' from outbox order by message_id`)
}

// TestRateRule: nothing is said without a baseline; a rise fires once and repeats; a restart, and a sweep that missed
// windows, change nothing; the time of the firing is no baseline; the all-clear comes.
func TestRateRule(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(mode.String(), func(t *testing.T) { t.Parallel(); rateRule(t, mode) })
	}
}

func rateRule(t *testing.T, mode pgx.QueryExecMode) {
	w := newWorldIn(t, mode, errors30)
	w.set(w.now.Truncate(time.Hour))
	w.minutes("failed", 30, 20)
	w.tick()
	w.want(`select state ->> 'state' from rate_states`, "unknown")
	w.minutes("failed", 70, 20)
	w.tick()
	w.want(`select (state ->> 'state') || ' ' || firing from rate_states`, "ok false")
	w.want(`select 'none' from outbox`)

	w.restart(errors30)
	w.minutes("failed", 30, 60) // nobody sweeps meanwhile
	w.advance(2 * time.Minute)
	w.tick()
	w.tick()
	if got := strings.Join(w.states(), " "); got != "firing firing" && got != "firing" {
		t.Fatalf("messages %q, want firing once, or once and repeated after 20 minutes", got)
	}
	w.want(`select firing || ' ' || (select count(*) from rate_firings where ended_at is null) from rate_states`, "true 1")
	before := len(w.states())
	w.minutes("failed", 38, 20)
	w.tick()
	w.tick()
	got := w.states()[before:]
	if len(got) == 0 || got[len(got)-1] != "resolved" {
		t.Fatalf("messages after the rise %q, want the last to be resolved", got)
	}
	w.want(`select firing || ' ' || (select count(*) from rate_firings where ended_at is not null) from rate_states`,
		"false 1")
	w.want(`select count(*)::text from (select dedupe_key from outbox group by dedupe_key having count(*) > 1) d`, "0")
	w.want(`select count(*)::text from outbox where status <> 'pending' or destination <> 'crm'`, "0")
}

// TestRateConstantNeverFires: 99 events an hour, judged in the middle of an hour, are no drop.
func TestRateConstantNeverFires(t *testing.T) {
	t.Parallel()
	rule := strings.NewReplacer("rise: 100%", "drop: 40%", "rise: 50%", "drop: 20%", "expected: 10",
		"expected: 5").Replace(errors30)
	w := newWorld(t, rule)
	w.set(w.now.Truncate(time.Hour).Add(20 * time.Minute))
	for i := range 240 {
		if i%2 == 0 {
			w.minutes("failed", 1, 3)
		} else {
			w.minutes("failed", 1, 0)
		}
		if i%5 == 4 {
			w.tick()
		}
	}
	w.want(`select payload::text from outbox`)
	w.want(`select state ->> 'state' from rate_states`, "ok")
}

// TestRateLateEvents: a third of the events arrives 8 minutes late, always. On-time is compared with on-time, so that
// is no drop, and what came late is shown.
func TestRateLateEvents(t *testing.T) {
	t.Parallel()
	rule := strings.NewReplacer("rise: 100%", "drop: 20%", "rise: 50%", "drop: 10%").Replace(errors30)
	w := newWorld(t, rule)
	w.set(w.now.Truncate(time.Hour))
	for range 150 {
		var batch []pipeline.Event
		for i := range 30 {
			ago := time.Duration(0)
			if i < 10 {
				ago = 8 * time.Minute
			}
			batch = append(batch, w.event("failed", "s", ago))
		}
		w.ingest(batch...)
		w.advance(time.Minute)
	}
	w.tick()
	w.want(`select payload::text from outbox`)
	w.want(`select sum(x)::text || ' ' || sum(late_x) from rate_minutes`, fmt.Sprintf("%d %d", 150*20, 150*10))
}

// TestRateThatBeginsAtNothing: windows in which the rule counted nothing are a baseline of 0; what begins then fires,
// and is over when nothing is left of it.
func TestRateThatBeginsAtNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, errors30)
	w.set(w.now.Truncate(time.Hour))
	w.minutes("other", 1, 1)
	w.tick()
	for range 24 {
		w.advance(5 * time.Minute)
		w.tick()
	}
	for range 4 {
		w.minutes("failed", 5, 20)
		w.tick()
	}
	if got := w.states(); len(got) == 0 || got[0] != "firing" {
		t.Fatalf("messages %q, want firing", got)
	}
	for range 6 {
		w.advance(5 * time.Minute)
		w.tick()
	}
	if got := w.states(); got[len(got)-1] != "resolved" {
		t.Errorf("messages %q, want the last to be resolved", got)
	}
}

// TestRateOfAnEventBeforeItsRule: from before a rule counted nothing is known, so nothing is not what is usual.
func TestRateOfAnEventBeforeItsRule(t *testing.T) {
	t.Parallel()
	w := newWorld(t, errors30)
	w.set(w.now.Truncate(time.Hour))
	for range 12 {
		w.minutes("failed", 5, 20)
		w.tick()
	}
	w.want(`select 'none' from outbox`)
}

// TestInhibitedRule: while the rule that explains it fires, the other one does not.
func TestInhibitedRule(t *testing.T) {
	t.Parallel()
	other := strings.Replace(strings.Replace(errors30, "id: failures", "id: orders", 1), "send_to: crm",
		"send_to: sales\n    inhibited_by: failures", 1)
	w := newWorld(t, errors30+other)
	w.set(w.now.Truncate(time.Hour))
	w.minutes("failed", 100, 20)
	w.tick()
	for range 5 {
		w.minutes("failed", 5, 60)
		w.tick()
	}
	w.want(`select distinct destination from outbox`, "crm")
}

// TestInhibitionInCatchUp: windows that nobody judged for hours are judged in the order of time, over all rules: the
// cause began to fire and ended within the gap, and kept the effect from firing then. In a circle of rules, too, each
// is judged as it would have been at its time.
func TestInhibitionInCatchUp(t *testing.T) {
	t.Parallel()
	effect := func(id, by string) string {
		return strings.NewReplacer("id: failures", "id: "+id, "send_to: crm", "send_to: "+id+
			"\n    inhibited_by: "+by).Replace(errors30)
	}
	story := func(text string, live bool) []string {
		w := newWorld(t, text)
		w.set(w.now.Truncate(time.Hour))
		w.minutes("failed", 100, 20)
		w.tick()
		for minute := range 120 {
			n := 20
			if minute >= 30 && minute < 60 {
				n = 60
			}
			w.minutes("failed", 1, n)
			if live {
				w.tick()
			}
		}
		w.tick()
		return w.texts(`select concat_ws(' ', destination, payload ->> 'state') from outbox order by message_id`)
	}
	check := func(text string, fires ...string) {
		t.Helper()
		live, late := story(text, true), story(text, false)
		slices.Sort(live)
		slices.Sort(late)
		if strings.Join(live, ", ") != strings.Join(late, ", ") {
			t.Errorf("live: %q\nin catch-up: %q", live, late)
		}
		for _, to := range []string{"crm", "a", "b"} {
			if got := slices.Contains(late, to+" firing"); got != slices.Contains(fires, to) {
				t.Errorf("%s fired is %t: %q", to, got, late)
			}
		}
	}
	check(effect("a", "failures")+effect("b", "a")+errors30, "b", "crm")
	check(effect("a", "b")+effect("b", "a"), "b")
}
