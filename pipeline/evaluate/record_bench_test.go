package evaluate

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline"
)

// BenchmarkRecord measures what recording decisions costs PostgreSQL and this process, without the events themselves: n
// in one transaction, all of one kind of rule.
func BenchmarkRecord(b *testing.B) {
	for _, kind := range []struct {
		name  string
		lines []string
	}{
		{"event", nil},
		{"event-traced", nil},
		{"key", []string{"dedupe_key: event.properties.k"}},
		{"cooldown", []string{"cooldown: 1h"}},
		{"key+cap", []string{"dedupe_key: event.properties.k", "cap: {max: 3, per: 1h}"}},
	} {
		for _, n := range []int{1, 25, 100} {
			b.Run(fmt.Sprintf("%s/n=%d", kind.name, n), func(b *testing.B) {
				cfg, err := pgxpool.ParseConfig(pgtest.URL(b))
				if err != nil {
					b.Fatal(err)
				}
				cfg.MaxConns = 1 // so that its process can be looked at
				db, err := pgxpool.NewWithConfig(b.Context(), cfg)
				if err != nil {
					b.Fatal(err)
				}
				b.Cleanup(db.Close)
				pid := countRows(b, db, `select pg_backend_pid()`)
				e := engine(b, load(b, ruleText(append(kind.lines, "subject: event.user_id",
					"payload: {u: event.user_id, k: event.properties.k, a: event.properties.amount_cents}")...)))
				made := 0
				batch := func() []pipeline.Event {
					events := make([]pipeline.Event, n)
					for i := range events {
						made++
						events[i] = event("x", fmt.Sprint("u", made), strings.Replace(benchProperties, "{",
							fmt.Sprintf(`{"k":"key-%d",`, made), 1))
						if kind.name == "event-traced" {
							events[i].Trace = &pipeline.Trace{Parent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
						}
					}
					return events
				}
				for range 20 {
					mustCommit(b, db, e, batch()...)
				}
				var spent, own, server time.Duration
				rounds := 0
				for b.Loop() {
					events := batch()
					start, startCPU, startServer := time.Now(), cpuTime(), processCPU(b, pid)
					mustCommit(b, db, e, events...)
					spent += time.Since(start)
					own += cpuTime() - startCPU
					server += processCPU(b, pid) - startServer
					rounds++
				}
				if got := countRows(b, db, `select count(*) from outbox`); got != made {
					b.Fatalf("%d messages, want %d", got, made)
				}
				per := float64(rounds * n)
				b.ReportMetric(float64(spent.Nanoseconds())/1000/per, "us/decision")
				b.ReportMetric(float64(own.Nanoseconds())/1000/per, "us-program/decision")
				b.ReportMetric(float64(server.Nanoseconds())/1000/per, "us-server/decision")
			})
		}
	}
}
