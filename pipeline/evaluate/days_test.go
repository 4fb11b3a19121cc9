package evaluate

import (
	"context"
	"testing"
	"time"
)

// hold takes the strongest lock on a day long ago, as a VACUUM FULL does. What waits for it asks days that it has no
// use for, and with thousands of days needs more locks than PostgreSQL has.
func (w *world) hold() {
	w.t.Helper()
	w.exec(`select create_events_partition((clock.now() at time zone 'UTC')::date - 200)`)
	tx, err := w.db.Begin(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { tx.Rollback(context.Background()) })
	day := w.texts(`select 'events_' || to_char((clock.now() at time zone 'UTC')::date - 200, 'YYYYMMDD')`)[0]
	if _, err := tx.Exec(context.Background(), `lock table `+day+` in access exclusive mode`); err != nil {
		w.t.Fatal(err)
	}
	// Who waits fails, in place of a test that hangs.
	w.exec(`do $$ begin execute format('alter database %I set lock_timeout = 5000', current_database()); end $$`)
	w.db.Reset()
}

func TestTimersAskTheirDaysAlone(t *testing.T) {
	t.Parallel()
	for _, anchor := range []string{"last", "first", "idle"} {
		t.Run(anchor, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, cart("lookback: 2h", "anchor: "+anchor))
			w.ingest(w.event("add_to_cart", "before", 0)) // stored while no rule was in force, as far as anybody knows
			w.exec(`delete from absence_timers`)
			w.exec(`delete from absence_history`)
			w.hold()
			w.tick()
			for i := range 8 { // a prepared statement gets another plan after some executions
				w.ingest(w.event("add_to_cart", string(rune('a'+i)), 0))
				w.advance(time.Minute)
				w.tick()
			}
			for range 70 {
				w.advance(time.Minute)
				w.tick()
			}
			w.want(`select count(*)::text || ' ' || count(payload ->> 'sku') from outbox`, "9 9")
		})
	}
}

func TestRatesAskTheirDaysAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, cart())
	w.set(w.now.Truncate(time.Hour))
	w.minutes("failed", 100, 20)
	w.hold()
	w.use(errors30)
	for range 8 {
		w.tick()
	}
	w.want(`select state ->> 'state' from rate_states`, "ok")
}
