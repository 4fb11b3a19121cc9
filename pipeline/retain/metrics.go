package retain

import "github.com/prometheus/client_golang/prometheus"

// Metrics are what the stage exports. One per Keeper.
type Metrics struct {
	ahead, lastPass prometheus.Gauge
	made, dropped   prometheus.Counter
	pruned          *prometheus.CounterVec
	failures        *prometheus.CounterVec
}

// NewMetrics registers the metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "sluice_retain_" + name, Help: help})
	}
	counters := func(name, label, help string) *prometheus.CounterVec {
		opts := prometheus.CounterOpts{Name: "sluice_retain_" + name, Help: help}
		return prometheus.NewCounterVec(opts, []string{label})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: "sluice_retain_" + name, Help: help})
	}
	m := &Metrics{
		ahead: gauge("partitions_ahead",
			"Days after today, without a gap, that have a partition, at the last look; -1 if today has none."),
		lastPass: gauge("last_pass_timestamp_seconds",
			"When the last pass without a failure ended, in Unix time."),
		made:     counter("partitions_made_total", "Event partitions made ahead of time by this node."),
		dropped:  counter("partitions_dropped_total", "Event partitions dropped by this node."),
		pruned:   counters("pruned_rows_total", "table", "Rows deleted by this node since their time was over."),
		failures: counters("failures_total", "task", "Tasks of a pass that failed and will be tried again."),
	}
	reg.MustRegister(m.ahead, m.lastPass, m.made, m.dropped, m.pruned, m.failures)
	return m
}

// begin makes the series of all tasks, at 0: who watches for changes would miss the first failure of a series that is
// born with it.
func (m *Metrics) begin(tables []string) {
	for _, task := range []string{"partitions-ahead", "events"} {
		m.failures.WithLabelValues(task)
	}
	for _, table := range tables {
		m.failures.WithLabelValues(table)
		m.pruned.WithLabelValues(table)
	}
}
