package evaluate

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sluice.example/sluice/pipeline"
	"sluice.example/sluice/pipeline/rules"
)

// TestARenamedRuleSendsNothingAgain: with was, timers, keys, cooldowns, caps and counts are those of the former id.
func TestARenamedRuleSendsNothingAgain(t *testing.T) {
	t.Parallel()
	const limited = "  - {id: told, on: x, subject: event.session_id, cap: {max: 2, per: 1d}, send_to: crm}\n" +
		"  - {id: once, on: y, dedupe_key: event.session_id, send_to: crm}\n"
	renamed := strings.NewReplacer("id: cart\n", "id: new-cart\n    was: cart\n",
		"{id: told,", "{id: new-told, was: told,", "{id: once,", "{id: new-once, was: t/once,").Replace
	w := newWorld(t, cart()+limited)
	w.tick()
	var carts []pipeline.Event
	for i := range 10 {
		carts = append(carts, w.event("add_to_cart", fmt.Sprint("waits", i), 0))
	}
	w.ingest(carts...)
	w.advance(time.Hour)
	w.tick()
	w.ingest(w.event("add_to_cart", "late", 0), w.event("x", "s", 0), w.event("x", "s", 0), w.event("y", "s", 0))
	w.want(`select count(*)::text from outbox`, "13")

	w.restart(renamed(cart() + limited))
	w.tick()
	w.ingest(w.event("x", "s", 0), w.event("y", "s", 0))
	w.advance(time.Hour)
	w.tick()
	w.want(`select rule_id || ' ' || subject_key from outbox order by message_id offset 13`, "t/new-cart late")
}

// TestARenamedRateKeepsItsCounts, and is listed with its state.
func TestARenamedRateKeepsItsCounts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, errors30)
	w.set(w.now.Truncate(time.Hour))
	w.minutes("failed", 100, 20)
	w.tick()
	w.exec(`truncate events`) // so that it can be counted from the minutes alone
	w.use(strings.Replace(errors30, "id: failures\n", "id: new\n    was: failures\n", 1))
	w.minutes("failed", 30, 60)
	w.advance(2 * time.Minute)
	w.tick()
	w.tick()
	if got := w.states(); len(got) == 0 || got[0] != "firing" {
		t.Errorf("messages %q, want firing", got)
	}
	if err := w.engine.report(t.Context(), w.db); err != nil {
		t.Fatal(err)
	}
	w.want(`select rule_id || ' ' || state_key from rule_status`, "t/new t/failures")
}

// TestReloadTellsOfRenames: a change of id without was is a warning, and one with it is told.
func TestReloadTellsOfRenames(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	e, err := New(DefaultConfig(), NewMetrics(prometheus.NewRegistry()), slog.New(slog.NewTextHandler(&log, nil)), nil)
	if err != nil {
		t.Fatal(err)
	}
	reload := func(text, want string) {
		t.Helper()
		log.Reset()
		set := load(t, text)
		e.reload(func() (*rules.Set, error) { return set, nil }, false)
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log has\n%s\nwant %q", log.String(), want)
		}
	}
	reload(ruleText("subject: event.user_id"), "rules reloaded")
	head := "version: 1\nruleset: t\nrules:\n"
	reload(head+oneRule("b", "subject: event.user_id"), "level=WARN msg=rules")
	reload(head+oneRule("c", "subject: event.user_id", "was: b"), "carries on what t/b knows")
}
