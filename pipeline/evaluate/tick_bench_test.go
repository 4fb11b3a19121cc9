package evaluate

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"sluice.example/sluice/internal/pgtest"
)

// BenchmarkTick measures one look with 100 due timers among 1,000,000 that wait: reading them with their events,
// recording 100 messages, and the COMMIT; as time, and as CPU time of PostgreSQL.
func BenchmarkTick(b *testing.B) {
	cfg, err := pgxpool.ParseConfig(pgtest.URL(b))
	if err != nil {
		b.Fatal(err)
	}
	setup, err := pgxpool.NewWithConfig(b.Context(), cfg.Copy()) // another process, so that a profile shows ticks alone
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(setup.Close)
	cfg.MaxConns = 1 // so that its process can be looked at
	db, err := pgxpool.NewWithConfig(b.Context(), cfg)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(db.Close)
	w := &world{t: b, db: db, now: time.Now().UTC()}
	w.restart(cart("once_per: episode"))
	w.sweep.sweepBatch = sweepBatch
	w.tick()
	w.exec(`insert into events (event_id, tenant_id, event_name, occurred_at, session_id, properties, received_at)
		select gen_random_uuid(), 1, 'add_to_cart', now() - n * interval '1 ms', 's' || n, '{"sku":"x"}', now()
		from generate_series(1, 1000000) n`)
	timer := w.texts(`select timer from absence_seeds`)[0]
	w.exec(`insert into absence_timers (tenant_id, timer, key, trigger_at, trigger_event_id, trigger_occurred_at)
		select 1, $1, session_id, now() - interval '30 minutes' * random(), event_id, occurred_at from events`, timer)
	w.exec(`vacuum analyze absence_timers`)
	w.exec(`vacuum analyze events`)
	w.exec(`analyze dedupe_keys`)
	absence := w.engine.inForce().Absences()[0]
	pid := countRows(b, db, `select pg_backend_pid()`)
	var spent, own, server time.Duration
	n := 0
	for b.Loop() {
		n++
		// 100 others are due: their clocks go back by a little more than an hour.
		if _, err := setup.Exec(b.Context(),
			`update absence_timers set trigger_at = now() - interval '61 minutes' - $2 * interval '1 ms' where tenant_id = 1
			and timer = $1 and
			key in (select 's' || g from generate_series($2 * 100, $2 * 100 + 99) g)`, timer, n); err != nil {
			b.Fatal(err)
		}
		start, startOwn, startServer := time.Now(), cpuTime(), processCPU(b, pid)
		if err := w.sweep.absence(b.Context(), w.engine.inForce(), absence); err != nil {
			b.Fatal(err)
		}
		spent += time.Since(start)
		own += cpuTime() - startOwn
		server += processCPU(b, pid) - startServer
	}
	if got := len(w.texts(`select '' from outbox`)); got != 100*n {
		b.Fatalf("%d messages, want %d", got, 100*n)
	}
	b.ReportMetric(spent.Seconds()*1000/float64(n), "ms/tick")
	b.ReportMetric(own.Seconds()*1000/float64(n), "ms-program-cpu/tick")
	b.ReportMetric(server.Seconds()*1000/float64(n), "ms-server-cpu/tick")
}
