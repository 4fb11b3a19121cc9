package rules

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"sluice.example/sluice/pipeline"
)

// manyRules is a file with n event rules, each for an event of its own.
func manyRules(n int) string {
	var b strings.Builder
	b.WriteString("version: 1\nruleset: t\nrules:\n")
	for i := range n {
		fmt.Fprintf(&b, "  - {id: r%d, owner: me, response: r.md, on: event_%d, send_to: crm,\n     "+
			"match: 'event.properties.amount > %d && event.properties.country == \"DE\"', subject: event.user_id,\n     "+
			"dedupe_key: event.properties.order, cooldown: 1h, payload: {order: event.properties.order, n: %d}}\n", i, i, i, i)
	}
	return b.String()
}

// BenchmarkLoadMany loads files of many rules; rules/s is what to compare.
func BenchmarkLoadMany(b *testing.B) {
	for _, n := range []int{100, 1000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			dir := b.TempDir()
			for name, text := range map[string]string{"rules.yaml": manyRules(n), "r.md": ""} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportAllocs()
			var set *Set
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			for b.Loop() {
				var err error
				if set, err = Load(dir, DefaultOptions()); err != nil || len(set.rules) != n {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "rules/s")
			runtime.GC()
			runtime.ReadMemStats(&after)
			b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/(1<<20), "MiB-held")
			last := pipeline.Event{Tenant: 1, Name: fmt.Sprint("event_", n-1), UserID: "u", Properties: fmt.Appendf(nil,
				`{"amount":%d,"country":"DE","order":"o"}`, n)}
			if found := set.Decide([]pipeline.Event{last}); found == nil || len(found.Matches) != 1 {
				b.Fatalf("the last rule found %+v", found)
			}
		})
	}
}

// BenchmarkNobodyListens decides about an event that no rule listens to, beside more and more rules.
func BenchmarkNobodyListens(b *testing.B) {
	for _, n := range []int{10, 1000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			set := load(b, manyRules(n))
			events := make([]pipeline.Event, 1000)
			for i := range events {
				events[i] = pipeline.Event{Tenant: 1, Name: fmt.Sprint("other_", i%50)}
			}
			for b.Loop() {
				if set.Decide(events) != nil {
					b.Fatal("somebody listens")
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/1000, "ns/event")
		})
	}
}
