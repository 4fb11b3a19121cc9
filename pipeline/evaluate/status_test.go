package evaluate

import (
	"log/slog"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline"
)

// TestAFailingRuleIsSeen: a rule that fails on every event is called failing, with a sample of why; the one beside it
// decides about all of them.
func TestAFailingRuleIsSeen(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	e, reg := engineWith(t, load(t, "version: 1\nruleset: t\nrules:\n"+oneRule("bad",
		"match: event.properties.a > 1")+oneRule("good")), nil)
	var events []pipeline.Event
	for range 200 {
		events = append(events, event("x", "u", ""))
	}
	mustCommit(t, db, e, events...)
	for range 2 { // a second report must not repeat the first
		if err := e.report(t.Context(), db); err != nil {
			t.Fatal(err)
		}
	}
	wantRows(t, query(t, db, `select concat_ws(' ', s.rule_id, s.state, s.owner, s.failing_at is not null,
		left(last_error, 30), h.evaluated, h.messages, h.errors)
		from rule_status s left join rule_hours h using (rule_id) order by 1`),
		"t/bad active me t expression: no such key: a (ev 200 0 200", "t/good active me f 200 200 0")
	if got := counted(t, reg, "sluice_evaluate_rule_failing", "t/bad"); got != 1 {
		t.Errorf("failing is %v after a report without events, which tell of no repair", got)
	}
	mustCommit(t, db, e, events...)
	if err := e.report(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	if bad, good := counted(t, reg, "sluice_evaluate_rule_failing", "t/bad"),
		counted(t, reg, "sluice_evaluate_rule_failing", "t/good"); bad != 1 || good != 0 {
		t.Errorf("failing: bad %v, good %v; want 1 and 0", bad, good)
	}
}

// TestFailingIsAShareOfTheLatestEvents, however slowly they come: a rule is failing while it fails on most of what it
// looks at, until it is edited or does better, and events without a key are not its fault.
func TestFailingIsAShareOfTheLatestEvents(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	text := func(match string) string {
		return "version: 1\nruleset: t\nrules:\n" + oneRule("r", "match: "+match) +
			"  - {id: wait, kind: absence, owner: me, response: r.md, trigger: {on: x}, cancel: {on: y}, within: 1h, " +
			"send_to: crm, key: event.session_id}\n"
	}
	e, reg := engineWith(t, load(t, text("event.properties.a > 1")), nil)
	look := func(reports, good, bad int, want float64) {
		t.Helper()
		for range reports {
			var events []pipeline.Event
			for range good {
				events = append(events, event("x", "u", `{"a": 2}`))
			}
			for range bad {
				events = append(events, event("x", "u", `{"a": "text"}`))
			}
			if len(events) > 0 {
				mustCommit(t, db, e, events...)
			}
			if err := e.report(t.Context(), db); err != nil {
				t.Fatal(err)
			}
		}
		if got := counted(t, reg, "sluice_evaluate_rule_failing", "t/r"); got != want {
			t.Errorf("after %d reports with %d good and %d bad events: failing is %v, want %v", reports, good, bad, got, want)
		}
	}
	look(4, 0, 1, 0)
	look(2, 0, 1, 1) // six in a row, one a report
	look(20, 0, 0, 1)
	look(1, 30, 0, 0)
	look(3, 30, 5, 0) // a small share
	look(1, 0, 500, 1)
	e.Use(load(t, text("event.properties.a == 2")))
	look(1, 1, 0, 0)
	wantRows(t, query(t, db, `select 'failing' from rule_status where failing_at is not null`))
	if got := counted(t, reg, "sluice_evaluate_rule_failing", "t/wait"); got != 0 {
		t.Errorf("a rule is failing, since no event had its key: %v", got)
	}
	if got := counted(t, reg, "sluice_evaluate_rule_errors_total", "no-key", "t/wait"); got == 0 {
		t.Errorf("events without a key are not counted")
	}
}

// series counts the series of a metric whose first label that is not a tenant has a value.
func series(t *testing.T, reg *prometheus.Registry, name, rule string) (n int) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if f.GetName() == name && l.GetValue() == rule {
					n++
				}
			}
		}
	}
	return n
}

// TestSeriesOfRulesThatAreGone: a gauge of a rule that is gone would keep its last value, and its alert would go on.
func TestSeriesOfRulesThatAreGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, errors30)
	reg := prometheus.NewRegistry()
	var err error
	if w.engine, err = New(DefaultConfig(), NewMetrics(reg), slog.New(slog.DiscardHandler), nil); err != nil {
		t.Fatal(err)
	}
	w.sweep = NewSweeper(w.engine, w.db, NewSweepMetrics(reg))
	gauges := map[string]string{
		"sluice_evaluate_rule_failing":    "t/bad",
		"sluice_sweep_fill_days":          "t/failures",
		"sluice_sweep_oldest_due_seconds": "t/cart",
	}
	look := func(text string, want int) {
		t.Helper()
		w.use(text)
		w.tick()
		if err := w.engine.report(t.Context(), w.db); err != nil {
			t.Fatal(err)
		}
		for name, rule := range gauges {
			if got := series(t, reg, name, rule); got != want {
				t.Errorf("with the rules %q, %s of %s has %d series, want %d", text, name, rule, got, want)
			}
		}
	}
	all := "  - {id: bad, on: x, match: event.properties.nope == 1, send_to: crm}\n" + errors30 + cart()
	look(all, 1)
	look("  - {id: good, on: x, send_to: crm}\n", 0)
	look(all, 1)
	look("  []\n", 0)
}

// TestSeriesBeginAtZero: what a rule may count is there before it is counted, so that the first failure is a rise.
func TestSeriesBeginAtZero(t *testing.T) {
	t.Parallel()
	w := newWorld(t, errors30)
	reg := prometheus.NewRegistry()
	var err error
	if w.engine, err = New(DefaultConfig(), NewMetrics(reg), slog.New(slog.DiscardHandler), nil); err != nil {
		t.Fatal(err)
	}
	w.sweep = NewSweeper(w.engine, w.db, NewSweepMetrics(reg))
	w.use("  - {id: a, on: x, dedupe_key: event.user_id, subject: event.user_id, cooldown: 1h, cap: {max: 1, per: 1h}, " +
		"send_to: crm}\n  - {id: b, on: x, state: off, send_to: crm}\n" + errors30 + cart())
	w.tick()
	check := func(name, rule string, want int) {
		t.Helper()
		if got := series(t, reg, name, rule); got != want {
			t.Errorf("%s of %s has %d series, want %d", name, rule, got, want)
		}
	}
	check("sluice_evaluate_rule_errors_total", "t/a", 6)
	check("sluice_evaluate_rule_errors_total", "t/b", 0)
	check("sluice_evaluate_suppressed_total", "t/a", 4)
	check("sluice_evaluate_suppressed_total", "t/cart", 1)
	for _, task := range []string{"seed", "absence", "digest", "rate", "fill", "clean"} {
		check("sluice_sweep_errors_total", task, 1)
	}
	for _, name := range []string{"fired_timers", "expired_timers", "seed_events"} {
		check("sluice_sweep_"+name+"_total", "t/cart", 1)
	}
	for _, name := range []string{"judged_windows", "fill_events"} {
		check("sluice_sweep_"+name+"_total", "t/failures", 1)
	}
}

// TestEventsWithoutAPropertyDoNotMakeARuleFailing, unless no event has it: then the rule is probably misspelt.
func TestEventsWithoutAPropertyDoNotMakeARuleFailing(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	e, reg := engineWith(t, load(t, "version: 1\nruleset: t\nrules:\n"+
		oneRule("good", "match: event.properties.cart.total > 1")+
		oneRule("guarded", "match: has(event.properties.cart.total) && event.properties.cart.total > 1")+
		oneRule("misspelt", "match: event.properties.cart.totl > 1")+
		oneRule("wrong", "match: event.properties.cart.total > 1 || event.properties.cart.items > 1")), nil)
	var events []pipeline.Event
	for i := range 100 {
		ev := event("x", "u", "")
		ev.Properties = []byte([]string{`{}`, `{"cart":{}}`, `{"cart":null}`, `{"cart":{"total":2}}`,
			`{"cart":{"total":0,"items":[]}}`}[i%5])
		events = append(events, ev)
	}
	mustCommit(t, db, e, events...)
	if err := e.report(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	wantRows(t, query(t, db, `select concat_ws(' ', s.rule_id, s.failing_at is not null, h.errors)
		from rule_status s left join rule_hours h using (rule_id) order by 1`),
		"t/good f 60", "t/guarded f 0", "t/misspelt t 100", "t/wrong f 80")
	if got := counted(t, reg, "sluice_evaluate_rule_failing", "t/misspelt"); got != 1 {
		t.Errorf("a rule whose property no event has is failing: %v, want 1", got)
	}
}
