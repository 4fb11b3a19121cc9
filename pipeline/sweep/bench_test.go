package sweep

import (
	"testing"
	"time"
)

// BenchmarkTick measures one look with 100 due timers among 1,000,000 that wait: reading them with their events,
// recording 100 messages, and the COMMIT.
func BenchmarkTick(b *testing.B) {
	w := newWorld(b, cart("once_per: episode"))
	cfg := DefaultConfig()
	w.sweep.cfg.Batch = cfg.Batch
	w.tick()
	w.exec(`insert into events (event_id, tenant_id, event_name, occurred_at, session_id, properties, received_at)
		select gen_random_uuid(), 1, 'add_to_cart', clock.now() - interval '2 hours' - n * interval '1 ms', 's' || n, '{"sku":"x"}', clock.now()
		from generate_series(1, 1000000) n`)
	timer := w.texts(`select timer from absence_seeds`)[0]
	w.exec(`insert into absence_timers (tenant_id, timer, key, trigger_at, trigger_event_id, trigger_occurred_at, done_at)
		select 1, $1, session_id, occurred_at + interval '2 hours', event_id, occurred_at, null from events`, timer)
	w.exec(`vacuum analyze absence_timers`)
	w.exec(`vacuum analyze events`)
	w.exec(`analyze dedupe_keys`)
	absence := w.engine.Absences()[0]
	b.ResetTimer()
	var spent time.Duration
	n := 0
	for b.Loop() {
		n++
		// 100 others are due: their clocks go back by a little more than an hour.
		w.exec(`update absence_timers set trigger_at = clock.now() - interval '61 minutes' - $2 * interval '1 ms' where timer = $1 and key in
			(select 's' || g from generate_series($2 * 100, $2 * 100 + 99) g)`, timer, n)
		start := time.Now()
		if err := w.sweep.absence(b.Context(), absence); err != nil {
			b.Fatal(err)
		}
		spent += time.Since(start)
	}
	b.StopTimer()
	if got := len(w.texts(`select '' from outbox`)); got != 100*n {
		b.Fatalf("%d messages, want %d", got, 100*n)
	}
	b.ReportMetric(spent.Seconds()*1000/float64(n), "ms/tick")
}
