package evaluate

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline"
	"sluice.example/sluice/pipeline/copyin"
	"sluice.example/sluice/pipeline/rules"
)

const benchProperties = `{"a":1,"b":"two","c":true,"d":4.5,"amount_cents":4999,"e":"five",` +
	`"f":null,"g":7,"h":"eight","i":9}`

// manyRules makes n rules, each of which listens to an event name of its own.
func manyRules(b *testing.B, n int) *rules.Set {
	b.Helper()
	var text strings.Builder
	text.WriteString("version: 1\nruleset: t\nrules:\n")
	for i := range n {
		r := oneRule(fmt.Sprint("r", i), "match: event.properties.amount_cents >= 50000")
		text.WriteString(strings.Replace(r, "on: x", fmt.Sprintf("on: [x%d]", i), 1))
	}
	return load(b, text.String())
}

// BenchmarkDecide measures what an event costs that no rule listens to, and one that a single rule of 10 or of 1,000
// listens to, in CPU time of this process. The two sets take turns, and turns at being first, so that the machine's
// moods hit both; the ratio is the median of those of the turns.
func BenchmarkDecide(b *testing.B) {
	few, many := engine(b, manyRules(b, 10)), engine(b, manyRules(b, 1000))
	for _, name := range []string{"page_viewed", "x7"} {
		b.Run("event="+name, func(b *testing.B) {
			events := make([]pipeline.Event, 1000)
			for i := range events {
				events[i] = event(name, "u", benchProperties)
			}
			const times = 10 // since CPU time is counted in microseconds
			decide := func(e *Engine) float64 {
				start := cpuTime()
				for range times {
					plan := e.Decide(events)
					if (plan != nil) != (name == "x7") || plan != nil && (len(plan.found.Matches)+len(plan.found.Failures) != 0) {
						b.Fatal("wrong result")
					}
				}
				return float64((cpuTime() - start).Nanoseconds()) / float64(times*len(events))
			}
			b.ReportAllocs()
			var ofFew, ofMany, ratios []float64
			for b.Loop() {
				if len(ratios)%2 == 0 {
					ofFew, ofMany = append(ofFew, decide(few)), append(ofMany, decide(many))
				} else {
					ofMany, ofFew = append(ofMany, decide(many)), append(ofFew, decide(few))
				}
				ratios = append(ratios, ofMany[len(ratios)]/ofFew[len(ratios)])
			}
			b.ReportMetric(median(ofFew), "ns/event-10-rules")
			b.ReportMetric(median(ofMany), "ns/event-1000-rules")
			b.ReportMetric(median(ratios), "ratio")
		})
	}
}

// BenchmarkDecideShop measures a batch of 2,000 page views by 20 rules of which three share 5 % of the events, nine
// look at the others and match none, and eight listen to names that never come: what bench/rules.go and bench/events.go
// make.
func BenchmarkDecideShop(b *testing.B) {
	var text strings.Builder
	text.WriteString("version: 1\nruleset: t\nrules:\n")
	for i := range 20 {
		on, match := "checkout_started", fmt.Sprintf("event.properties.lane == %d", i)
		switch {
		case i >= 12:
			on, match = fmt.Sprint("never_", i), "event.properties.price_cents > 0"
		case i >= 3:
			on, match = "page_viewed", fmt.Sprintf(`event.properties.price_cents > %d && event.properties.currency == "EUR"`,
				1_000_000+i)
		}
		text.WriteString(strings.Replace(oneRule(fmt.Sprint("r", i), "match: '"+match+"'", "subject: event.user_id",
			"dedupe_key: event.event_id",
			"payload:", "  event_id: event.event_id", "  user_id: event.user_id", "  price_cents: event.properties.price_cents"),
			"on: x", "on: "+on, 1))
	}
	e := engine(b, load(b, text.String()))
	events := make([]pipeline.Event, 2000)
	for i := range events {
		name := "page_viewed"
		if i%20 == 0 {
			name = "checkout_started"
		}
		events[i] = event(name, fmt.Sprintf("u-%06d", i), fmt.Sprintf(
			`{"sku":"SKU-%05d","price_cents":%d,"currency":"EUR","position":%d,`+
				`"lane":%d,"variant":"blue/large","in_stock":true}`,
			i, 500+i*43, i%40, i/20%3))
	}
	b.ReportAllocs()
	start, n := cpuTime(), 0
	for b.Loop() {
		if plan := e.Decide(events); len(plan.found.Matches) != len(events)/20 || len(plan.found.Failures) != 0 {
			b.Fatalf("%d matches, %d failures", len(plan.found.Matches), len(plan.found.Failures))
		}
		n += len(events)
	}
	b.ReportMetric(float64((cpuTime()-start).Nanoseconds())/float64(n), "cpu-ns/event")
}

func median(of []float64) float64 {
	slices.Sort(of)
	return of[len(of)/2]
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkBatch measures a batch's whole transaction, with 20 rules of which three match 5 % of the events, beside the
// same batch without rules: time, and the CPU time of this process and of PostgreSQL's. The server does not wait for
// its disk, so the share of the rules is larger than in production.
func BenchmarkBatch(b *testing.B) {
	for _, size := range []int{500, 2000} {
		b.Run(fmt.Sprintf("events=%d", size), func(b *testing.B) {
			// One connection for both, so that its process can be looked at.
			cfg, err := pgxpool.ParseConfig(pgtest.URL(b))
			if err != nil {
				b.Fatal(err)
			}
			cfg.MaxConns = 1
			db, err := pgxpool.NewWithConfig(b.Context(), cfg)
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(db.Close)
			pid := countRows(b, db, `select pg_backend_pid()`)
			var text strings.Builder
			text.WriteString("version: 1\nruleset: t\nrules:\n")
			for i := range 17 {
				text.WriteString(strings.Replace(oneRule(fmt.Sprint("r", i), "match: event.properties.amount_cents >= 50000"),
					"on: x", fmt.Sprintf("on: [x%d]", i%10), 1))
			}
			text.WriteString(strings.Replace(oneRule("m0", "dedupe_key: event.user_id", "payload: {u: event.user_id}"), "on: x",
				"on: [m0]", 1))
			text.WriteString(strings.Replace(oneRule("m1", "subject: event.user_id", "cooldown: 1h",
				"payload: {u: event.user_id}"), "on: x", "on: [m1]", 1))
			text.WriteString(strings.Replace(oneRule("m2", "match: event.properties.amount_cents > 1",
				"payload: {u: event.user_id}"), "on: x", "on: [m2]", 1))
			e, _ := engineWith(b, load(b, text.String()), nil)
			log := slog.New(slog.NewTextHandler(io.Discard, nil))
			writers := make([]*copyin.Writer, 2)
			for i, decide := range []copyin.DecideFunc{
				func([]pipeline.Event) copyin.Recorder { return nil },
				func(events []pipeline.Event) copyin.Recorder { return e.Decide(events) },
			} {
				var err error
				if writers[i], err = copyin.New(copyin.DefaultConfig(), db, decide, copyin.NewMetrics(prometheus.NewRegistry()),
					log); err != nil {
					b.Fatal(err)
				}
			}
			batch := func(n int) []pipeline.Event {
				events := make([]pipeline.Event, size)
				for i := range events {
					name := fmt.Sprintf("x%d", i%10)
					if i%20 == 0 {
						name = fmt.Sprintf("m%d", i/20%3)
					}
					events[i] = event(name, fmt.Sprintf("u%d-%d", n, i), benchProperties)
				}
				return events
			}
			var spent, cpu, server [2]time.Duration
			write := func(n, i int) {
				events := batch(2*n + i)
				start, startCPU, startServer := time.Now(), cpuTime(), processCPU(b, pid)
				if _, err := writers[i].Write(b.Context(), events); err != nil {
					b.Fatal(err)
				}
				spent[i] += time.Since(start)
				cpu[i] += cpuTime() - startCPU
				server[i] += processCPU(b, pid) - startServer
			}
			n := 0
			for ; n < 10; n++ { // statements are planned and tables warm
				write(n, 0)
				write(n, 1)
			}
			warm := n
			spent, cpu, server = [2]time.Duration{}, [2]time.Duration{}, [2]time.Duration{}
			for b.Loop() {
				write(n, n%2)
				write(n, 1-n%2)
				n++
			}
			if got := countRows(b, db, `select count(*) from outbox`); got != n*size/20 {
				b.Fatalf("%d messages, want %d", got, n*size/20)
			}
			per := float64(n-warm) * float64(size)
			b.ReportMetric(float64(spent[1])/float64(spent[0]), "time-ratio")
			b.ReportMetric(float64(server[1])/float64(server[0]), "server-cpu-ratio")
			b.ReportMetric(float64(cpu[1]+server[1])/float64(cpu[0]+server[0]), "cpu-ratio")
			b.ReportMetric(float64((cpu[1]-cpu[0]).Microseconds())/per, "us-program/event")
			b.ReportMetric(float64(cpu[0].Microseconds())/per, "us-program-without/event")
			b.ReportMetric(float64(server[0].Microseconds())/per, "us-server-without/event")
			b.ReportMetric(float64((server[1]-server[0]).Microseconds())/per, "us-server/event")
		})
	}
}

// processCPU is the time that a process on this machine has been on a CPU.
func processCPU(b *testing.B, pid int) time.Duration {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
	if err != nil {
		b.Fatal(err)
	}
	var ns int64
	if _, err := fmt.Sscan(string(text), &ns); err != nil {
		b.Fatal(err)
	}
	return time.Duration(ns)
}
