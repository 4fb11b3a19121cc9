// Package history keeps what a process's metrics were, in memory: one point a second for 15 minutes, and one for every
// 10 s for 12 hours. Its memory is bounded: 21 kB for each series, and at most maxSeries of them. Nothing outlives the
// process.
package history

import (
	"context"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

const (
	fineEvery   = time.Second
	finePoints  = 15 * 60
	coarseEvery = 10 * time.Second
	coarseMost  = 12 * 60 * 6
	// maxSeries is enough for 50 destinations, and bounds the memory to 21 MB. Later series are left out.
	maxSeries = 1000
)

// History is safe for concurrent use. Its points come with Run.
type History struct {
	reg  prometheus.Gatherer
	only map[string]bool // nil: every metric

	mu     sync.RWMutex
	fine   clock
	coarse clock
	series map[string][]*series // by name
	count  int
}

// New makes a history of the metrics in reg, or of those that are named. Nothing is read until Run.
func New(reg prometheus.Gatherer, only ...string) *History {
	h := &History{reg: reg, series: map[string][]*series{}, fine: clock{most: finePoints}, coarse: clock{most: coarseMost}}
	if len(only) > 0 {
		h.only = map[string]bool{}
		for _, name := range only {
			h.only[name] = true
		}
	}
	return h
}

// Run reads the metrics once a second until ctx ends; then it returns nil.
func (h *History) Run(ctx context.Context) error {
	tick := time.NewTicker(fineEvery)
	defer tick.Stop()
	h.sample(time.Now())
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			h.sample(now)
		}
	}
}

// sample adds a point to each series. What Gather could not read is left out.
func (h *History) sample(now time.Time) {
	families, _ := h.reg.Gather()
	h.mu.Lock()
	defer h.mu.Unlock()
	since := h.fine.add(now)
	// Ten seconds that all nodes share, so that their points can be laid beside each other.
	window := time.Duration(0)
	ends := h.coarse.last.IsZero() || now.Truncate(coarseEvery).After(h.coarse.last.Truncate(coarseEvery))
	if ends {
		window = h.coarse.add(now)
	}
	for _, f := range families {
		if h.only != nil && !h.only[f.GetName()] {
			continue
		}
		for _, m := range f.GetMetric() {
			h.take(f, m, since)
		}
	}
	for _, all := range h.series {
		for _, s := range all {
			s.step(since, window, ends)
		}
	}
}

// take notes the present value of one metric.
func (h *History) take(f *dto.MetricFamily, m *dto.Metric, since time.Duration) {
	switch f.GetType() {
	case dto.MetricType_COUNTER:
		h.of(f.GetName(), m, rate, since).now = m.GetCounter().GetValue()
	case dto.MetricType_GAUGE:
		h.of(f.GetName(), m, value, since).now = m.GetGauge().GetValue()
	case dto.MetricType_HISTOGRAM:
		g := m.GetHistogram()
		h.of(f.GetName()+"_count", m, rate, since).now = float64(g.GetSampleCount())
		h.of(f.GetName()+"_sum", m, rate, since).now = g.GetSampleSum()
		buckets := bucketsOf(g)
		h.of(f.GetName()+":p50", m, median, since).buckets = buckets
		h.of(f.GetName()+":p99", m, p99, since).buckets = buckets
	}
}

// of returns a series, which is made where it is new. Past maxSeries it is one that nobody reads.
func (h *History) of(name string, m *dto.Metric, k kind, since time.Duration) *series {
	for _, s := range h.series[name] {
		if s.is(m.GetLabel()) {
			s.seen = true
			return s
		}
	}
	// A counter that comes later than the first look counts from zero.
	s := &series{kind: k, labels: map[string]string{}, seen: true, known: since > 0}
	if h.count == maxSeries {
		return s
	}
	s.fine, s.coarse = h.fine.empty(), h.coarse.empty()
	for _, l := range m.GetLabel() {
		s.labels[l.GetName()] = l.GetValue()
	}
	h.count++
	h.series[name] = append(h.series[name], s)
	return s
}

// Series returns the points of the last 15 minutes, one a second, oldest first. A counter's are what came in a second,
// by the second; a gauge's are its values. A histogram NAME has NAME_count and NAME_sum, as counters, and NAME:p50 and
// NAME:p99, over each point's own time. Series with these labels, whatever their others, count together: by their sum,
// quantiles by their highest. Where nothing is known a point is NaN.
func (h *History) Series(name string, labels map[string]string) ([]time.Time, []float64) {
	return h.Read(Query{Name: name, Labels: labels})
}

// Query is what to read. Long asks for the points of 12 hours, one for each 10 s, instead of those of Series. Highest
// takes the highest of several series instead of their sum.
type Query struct {
	Name    string
	Labels  map[string]string
	Long    bool
	Highest bool
}

// Read returns the points of a query, oldest first; see Series.
func (h *History) Read(q Query) ([]time.Time, []float64) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	clock := &h.fine
	if q.Long {
		clock = &h.coarse
	}
	highest := q.Highest || strings.Contains(q.Name, ":")
	times := clock.times()
	values := make([]float64, len(times))
	for i := range values {
		values[i] = math.NaN()
	}
	for _, s := range h.series[q.Name] {
		if !s.has(q.Labels) {
			continue
		}
		ring := s.fine
		if q.Long {
			ring = s.coarse
		}
		for i := range values {
			v := ring.at(i)
			switch {
			case math.IsNaN(v):
			case math.IsNaN(values[i]):
				values[i] = v
			case highest:
				values[i] = max(values[i], v)
			default:
				values[i] += v
			}
		}
	}
	return times, values
}

// Values lists what a label of a metric is, in no order that means anything.
func (h *History) Values(name, label string) (values []string) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	seen := map[string]bool{}
	for _, s := range h.series[name] {
		if v, ok := s.labels[label]; ok && !seen[v] {
			seen[v] = true
			values = append(values, v)
		}
	}
	return values
}
