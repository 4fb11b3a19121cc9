package standin

import (
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// kind is a metric's type: counter, gauge, rate or trend.
type kind string

// statistics are what a threshold may ask of each type.
var statistics = map[kind][]string{
	"counter": {"count", "rate"},
	"gauge":   {"value"},
	"rate":    {"rate"},
	"trend":   {"avg", "min", "max", "med", "p(N)"},
}

// builtin are k6's own metrics, as far as a threshold may name them. Those that depend on time stay empty.
var builtin = map[string]kind{
	"checks": "rate", "data_received": "counter", "data_sent": "counter", "dropped_iterations": "counter",
	"http_req_duration": "trend", "http_req_failed": "rate", "http_reqs": "counter", "iteration_duration": "trend",
	"iterations": "counter", "vus": "gauge", "vus_max": "gauge",
}

// metrics holds all values of a run. It is safe for concurrent use.
type metrics struct {
	mu sync.Mutex
	// series by name: a metric, or a metric and the tags in braces that a threshold names.
	series map[string]*series
}

type series struct {
	kind   kind
	name   string
	tags   map[string]string
	values []float64
}

func newMetrics() *metrics {
	m := &metrics{series: map[string]*series{}}
	for name, k := range builtin {
		m.series[name] = &series{kind: k, name: name}
	}
	return m
}

var metricName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)

// define makes a custom metric. Every user's init code does it anew.
func (m *metrics) define(name string, k kind) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !metricName.MatchString(name) {
		return fmt.Errorf("%q is not a name of a metric: up to 128 letters, digits and _", name)
	}
	if s := m.series[name]; s != nil && s.kind != k {
		return fmt.Errorf("metric %q is a %s already, it can't be a %s", name, s.kind, k)
	}
	if m.series[name] == nil {
		m.series[name] = &series{kind: k, name: name}
	}
	return nil
}

var subMetric = regexp.MustCompile(`^([A-Za-z0-9_]+)\{([^{}]*)\}$`)

// watch makes the series that a threshold names. Its metric has to exist.
func (m *metrics) watch(name string) (*series, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.series[name]; s != nil {
		return s, nil
	}
	parts := subMetric.FindStringSubmatch(name)
	if parts == nil || m.series[parts[1]] == nil {
		return nil, fmt.Errorf("there is no metric %q", name)
	}
	s := &series{kind: m.series[parts[1]].kind, name: parts[1], tags: map[string]string{}}
	for pair := range strings.SplitSeq(parts[2], ",") {
		key, value, ok := strings.Cut(pair, ":")
		if !ok {
			return nil, fmt.Errorf("%q: tags are written as name:value", name)
		}
		s.tags[strings.TrimSpace(key)] = strings.TrimSpace(value)
	}
	m.series[name] = s
	return s, nil
}

func (m *metrics) add(name string, value float64, tags map[string]string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.series {
		if s.name != name {
			continue
		}
		match := true
		for k, v := range s.tags {
			match = match && tags[k] == v
		}
		if match {
			s.values = append(s.values, value)
		}
	}
}

// get returns a statistic of a series. An empty one counts 0, as a sum does.
func (s *series) get(statistic string, seconds float64) (float64, error) {
	n := float64(len(s.values))
	sum := 0.0
	for _, v := range s.values {
		sum += v
	}
	percentile, isPercentile := strings.CutPrefix(statistic, "p(")
	known := statistics[s.kind]
	switch {
	case isPercentile && slices.Contains(known, "p(N)"):
		p, err := strconv.ParseFloat(strings.TrimSuffix(percentile, ")"), 64)
		return quantile(s.values, p/100), err
	case !slices.Contains(known, statistic):
		return 0, fmt.Errorf("a %s has no %q; it has %s", s.kind, statistic, strings.Join(known, ", "))
	case statistic == "count":
		return sum, nil
	case statistic == "rate" && s.kind == "counter":
		return sum / seconds, nil
	case n == 0:
		return 0, nil
	case statistic == "rate":
		return sum / n, nil
	case statistic == "value":
		return s.values[len(s.values)-1], nil
	case statistic == "avg":
		return sum / n, nil
	case statistic == "min":
		return slices.Min(s.values), nil
	case statistic == "max":
		return slices.Max(s.values), nil
	}
	return quantile(s.values, 0.5), nil // med
}

// quantile interpolates between the two nearest values.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	at := q * float64(len(sorted)-1)
	low, high := sorted[int(math.Floor(at))], sorted[int(math.Ceil(at))]
	return low + (high-low)*(at-math.Floor(at))
}

// summary is what handleSummary() gets, in the form of k6 1: metrics by name.
func (m *metrics) summary(seconds float64, trendStats []string) map[string]any {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(m.series)) {
		s := m.series[name]
		stats := map[kind][]string{"counter": {"count", "rate"}, "gauge": {"value"}, "rate": {"rate"},
			"trend": trendStats}[s.kind]
		values := map[string]float64{}
		for _, stat := range stats {
			if stat == "count" && s.kind == "trend" {
				values[stat] = float64(len(s.values))
			} else if v, err := s.get(stat, seconds); err == nil {
				values[stat] = v
			}
		}
		if len(s.values) > 0 {
			all[name] = map[string]any{"type": string(s.kind), "contains": "default", "values": values}
		}
	}
	return map[string]any{"metrics": all}
}
