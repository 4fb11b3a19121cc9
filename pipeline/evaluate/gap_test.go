package evaluate

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sluice.example/sluice/pipeline"
)

// TestAShortGapMissesNothing: a rule is away for seconds, by each of the ways in which that happens. A cart of that
// time is told of, and a buyer of that time is not.
func TestAShortGapMissesNothing(t *testing.T) {
	t.Parallel()
	for name, without := range map[string]string{
		"taken out": "  - {id: other, on: x, send_to: crm}\n", "off": cart("state: off"),
		"edited and back": cart("anchor: first"),
	} {
		for _, anchor := range []string{"last", "idle"} {
			t.Run(name+" "+anchor, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, cart("anchor: "+anchor))
				for range 5 {
					w.advance(time.Minute)
					w.tick()
				}
				w.want(`select seeds::text from absence_seeds`, "2") // nothing is left to do by itself
				w.ingest(w.event("add_to_cart", "leaves", 0), w.event("add_to_cart", "buys", 0))
				w.advance(time.Minute)
				w.tick()
				w.use(without)
				w.advance(2 * time.Second)
				w.ingest(w.event("purchase_completed", "buys", 0), w.event("add_to_cart", "gap", 0))
				w.advance(8 * time.Second)
				w.use(cart("anchor: " + anchor))
				for range 70 {
					w.tick()
					w.advance(time.Minute)
				}
				w.want(`select subject_key from outbox where rule_id = 't/cart' order by 1`, "gap", "leaves")
				w.want(`select key from absence_timers where timer in (select timer from absence_timers where key = 'leaves'
					and done_at is not null) and cancel_at is not null`, "buys")
			})
		}
	}
}

// TestNodesOfTwoVersions: while one node has a rule in force, another one stores events without it, also a node without
// any rules. What that one stored counts, after the time within which it is marked.
func TestNodesOfTwoVersions(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{"other rules": "  - {id: other, on: x, send_to: crm}\n", "no rules": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, cart())
			w.tick()
			w.advance(3 * time.Minute)
			w.tick()
			old := w.withoutRules()
			if text != "" {
				old.Use(w.load(text))
			}
			store := func(events ...pipeline.Event) {
				t.Helper()
				if err := w.store(old, events, func() {}); err != nil {
					t.Fatal(err)
				}
			}
			w.ingest(w.event("add_to_cart", "leaves", 0), w.event("add_to_cart", "buys", 0), w.event("add_to_cart", "late", 0))
			for minute := range 62 {
				switch minute {
				case 10:
					store(w.event("purchase_completed", "buys", 0), w.event("add_to_cart", "gap", 30*time.Minute))
				case 50:
					store(w.event("purchase_completed", "late", 0))
				}
				if err := old.markGaps(t.Context(), w.db); err != nil {
					t.Fatal(err)
				}
				w.advance(time.Minute)
				w.tick()
			}
			w.want(`select subject_key from outbox order by 1`, "gap", "leaves")
		})
	}
}

// TestNoRuleFiresBeforeItKnows: while another node reads what a rule has to know, this one leaves the rule alone.
func TestNoRuleFiresBeforeItKnows(t *testing.T) {
	t.Parallel()
	w := newWorld(t, cart())
	w.tick()
	w.ingest(w.event("add_to_cart", "s", 0))
	w.advance(2 * time.Hour) // nobody had the rule in force, as far as the database knows
	other, err := w.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Rollback(t.Context())
	if _, err := other.Exec(t.Context(), `select from absence_seeds for update`); err != nil {
		t.Fatal(err)
	}
	w.tick()
	w.want(`select subject_key from outbox`)
	if err := other.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.tick()
	w.want(`select subject_key from outbox`, "s")
}

// TestASecondSeedReadsWhatIsNew and not the whole lookback again.
func TestASecondSeedReadsWhatIsNew(t *testing.T) {
	t.Parallel()
	w := newWorld(t, cart())
	reg := prometheus.NewRegistry()
	w.sweep.metrics = NewSweepMetrics(reg)
	for range 10 {
		w.ingest(w.event("add_to_cart", "s", 0))
	}
	w.advance(time.Hour)
	w.tick()
	w.ingest(w.event("add_to_cart", "t", 0))
	w.advance(3 * time.Minute)
	w.tick()
	if got := counted(t, reg, "sluice_sweep_seed_events_total", "t/cart"); got != 11 {
		t.Errorf("%v events were read, want 10 by the first seed and the one that arrived since", got)
	}
}

// TestACountGapIsFilled: a rate rule that was away for seconds counts what was stored meanwhile.
func TestACountGapIsFilled(t *testing.T) {
	t.Parallel()
	w := newWorld(t, errors30)
	w.set(w.now.Truncate(time.Hour))
	w.minutes("failed", 5, 3)
	w.tick()
	w.advance(3 * time.Minute)
	w.tick()
	w.use(cart())
	w.minutes("failed", 1, 7)
	w.use(errors30)
	w.tick()
	w.want(`select sum(x)::text from rate_minutes`, "22")
}
