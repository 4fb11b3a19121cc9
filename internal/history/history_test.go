package history

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// begin is on a border of ten seconds.
var begin = time.Date(2026, 12, 3, 12, 0, 0, 0, time.UTC)

func TestWhatSeriesAreMadeOf(t *testing.T) {
	reg := prometheus.NewRegistry()
	sent := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "sent_total"}, []string{"destination", "result"})
	fill := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "fill"}, []string{"destination"})
	wait := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "wait_seconds", Buckets: []float64{1, 2, 4}})
	reg.MustRegister(sent, fill, wait)
	h := New(reg)
	crm, erp := sent.WithLabelValues("crm", "sent"), sent.WithLabelValues("erp", "sent")
	crm.Add(1000) // before anybody looked
	fill.WithLabelValues("crm").Set(0.5)
	fill.WithLabelValues("erp").Set(0.25)
	h.sample(begin)
	crm.Add(10)
	erp.Add(4)
	for range 98 {
		wait.Observe(0.5)
	}
	wait.Observe(3)
	wait.Observe(3)
	h.sample(begin.Add(2 * time.Second))
	sent.WithLabelValues("crm", "dead").Add(6) // a series that is born with its first value
	h.sample(begin.Add(3 * time.Second))
	h.sample(begin.Add(10 * time.Second))

	nan := math.NaN()
	check := func(q Query, want ...float64) {
		t.Helper()
		times, got := h.Read(q)
		same := len(got) == len(want) && len(times) == len(want)
		for i := range want {
			same = same && (math.Abs(got[i]-want[i]) < 1e-6 || math.IsNaN(got[i]) && math.IsNaN(want[i]))
		}
		if !same {
			t.Errorf("%+v: %v, want %v", q, got, want)
		}
	}
	check(Query{Name: "sent_total", Labels: map[string]string{"destination": "crm", "result": "sent"}}, nan, 5, 0, 0)
	check(Query{Name: "sent_total", Labels: map[string]string{"destination": "crm"}}, nan, 5, 6, 0)
	check(Query{Name: "sent_total"}, nan, 7, 6, 0)
	check(Query{Name: "sent_total", Long: true}, nan, 2)
	check(Query{Name: "fill"}, 0.75, 0.75, 0.75, 0.75)
	check(Query{Name: "fill", Highest: true}, 0.5, 0.5, 0.5, 0.5)
	check(Query{Name: "wait_seconds_count"}, nan, 50, 0, 0)
	check(Query{Name: "wait_seconds:p99"}, nan, 3, nan, nan)
	check(Query{Name: "wait_seconds:p50", Long: true}, nan, 50.0/98)
	check(Query{Name: "nothing"}, nan, nan, nan, nan)
	if got := fmt.Sprint(len(h.Values("sent_total", "destination")), len(h.Values("sent_total", "tenant"))); got != "2 0" {
		t.Errorf("values of destination and tenant: %s, want 2 0", got)
	}
	only := New(reg, "fill")
	only.sample(begin)
	if len(only.series) != 1 {
		t.Errorf("a history of one metric has %d", len(only.series))
	}
}

// Whatever time passes and whatever comes, the memory is bounded, and the newest points are there.
func TestMemoryOfHistoryIsBounded(t *testing.T) {
	reg := prometheus.NewRegistry()
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "g"}, []string{"n"})
	reg.MustRegister(g)
	h := New(reg)
	now := begin
	for i := range coarseMost + 10 { // one look each 10 s
		g.WithLabelValues("0").Set(float64(i))
		h.sample(now)
		now = now.Add(coarseEvery)
	}
	late := g.WithLabelValues("late")
	late.Set(1)
	h.sample(now)
	for long, most := range map[bool]int{false: finePoints, true: coarseMost} {
		times, values := h.Read(Query{Name: "g", Labels: map[string]string{"n": "0"}, Long: long})
		if len(times) != most || values[most-1] != coarseMost+9 || values[0] != float64(coarseMost+9-most+2) ||
			!times[most-1].Equal(now) || !times[0].Equal(now.Add(-time.Duration(most-1)*coarseEvery)) {
			t.Errorf("%d points from %g at %s to %g at %s", len(times), values[0], times[0], values[most-1], times[most-1])
		}
		_, values = h.Read(Query{Name: "g", Labels: map[string]string{"n": "late"}, Long: long})
		if !math.IsNaN(values[most-2]) || values[most-1] != 1 {
			t.Errorf("a series that came late ends with %v, want NaN and 1", values[most-2:])
		}
	}
	for i := range 2 * maxSeries {
		g.WithLabelValues(fmt.Sprint("more", i)).Set(1)
	}
	h.sample(now.Add(time.Second))
	if n := len(h.series["g"]); n != maxSeries {
		t.Errorf("%d series, want %d", n, maxSeries)
	}
}

func BenchmarkSample(b *testing.B) {
	reg := prometheus.NewRegistry()
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "c"}, []string{"n"})
	reg.MustRegister(c)
	for i := range 300 {
		c.WithLabelValues(fmt.Sprint(i)).Inc()
	}
	h := New(reg)
	now := begin
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(time.Second)
		h.sample(now)
	}
}
