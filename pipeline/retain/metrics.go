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
	m := &Metrics{
		ahead: prometheus.NewGauge(prometheus.GaugeOpts{Name: "pipeline_retain_partitions_ahead",
			Help: "Days after today, without a gap, that have a partition, at the last look."}),
		lastPass: prometheus.NewGauge(prometheus.GaugeOpts{Name: "pipeline_retain_last_pass_timestamp_seconds",
			Help: "When the last pass without a failure ended, in Unix time."}),
		made: prometheus.NewCounter(prometheus.CounterOpts{Name: "pipeline_retain_partitions_made_total",
			Help: "Event partitions made ahead of time by this node."}),
		dropped: prometheus.NewCounter(prometheus.CounterOpts{Name: "pipeline_retain_partitions_dropped_total",
			Help: "Event partitions dropped by this node."}),
		pruned: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pipeline_retain_pruned_rows_total",
			Help: "Rows deleted by this node since their time was over."}, []string{"table"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pipeline_retain_failures_total",
			Help: "Tasks of a pass that failed and will be tried again."}, []string{"task"}),
	}
	reg.MustRegister(m.ahead, m.lastPass, m.made, m.dropped, m.pruned, m.failures)
	return m
}
