package evaluate

import "github.com/prometheus/client_golang/prometheus"

// SweepMetrics are those of a Sweeper.
type SweepMetrics struct {
	fired   *prometheus.CounterVec
	expired *prometheus.CounterVec
	seeded  *prometheus.CounterVec
	windows *prometheus.CounterVec
	filled  *prometheus.CounterVec
	// unfilled: see Fill.
	unfilled *prometheus.GaugeVec
	late     *prometheus.GaugeVec
	errors   *prometheus.CounterVec
	duration prometheus.Histogram
}

// NewSweepMetrics registers the metrics of a Sweeper.
func NewSweepMetrics(reg prometheus.Registerer) *SweepMetrics {
	m := &SweepMetrics{
		fired: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pipeline_sweep_fired_timers_total",
			Help: "Timers of absence rules that ran out and were decided about."}, []string{"rule"}),
		expired: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pipeline_sweep_expired_timers_total",
			Help: "Timers that were due for longer than their rule's lookback, and so never fired."}, []string{"rule"}),
		seeded: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pipeline_sweep_seed_events_total",
			Help: "Stored events read to make the timers of a rule that came into force."}, []string{"rule"}),
		windows: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pipeline_sweep_judged_windows_total",
			Help: "Windows of rate rules that were judged, missed ones included."}, []string{"rule"}),
		filled: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pipeline_sweep_fill_events_total",
			Help: "Stored events read to make the counts of a rate rule that came into force."}, []string{"rule"}),
		unfilled: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "pipeline_sweep_fill_days",
			Help: "Days of stored events that are still to be counted for a rate rule that came into force, as the node " +
				"knows that counted last."}, []string{"rule"}),
		late: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "pipeline_sweep_oldest_due_seconds",
			Help: "For how long the oldest timer taken by the last look had been due; 0 if none was. Alert above 300."},
			[]string{"rule"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pipeline_sweep_errors_total",
			Help: "Failures, which are tried again at the next look, by task: seed, absence, digest, rate, fill, clean."},
			[]string{"task"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "pipeline_sweep_duration_seconds",
			Help: "Time of one look at everything that is due.", Buckets: prometheus.ExponentialBuckets(0.0005, 3, 11)}),
	}
	reg.MustRegister(m.fired, m.expired, m.seeded, m.windows, m.filled, m.unfilled, m.late, m.errors, m.duration)
	return m
}
