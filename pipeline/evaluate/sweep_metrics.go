package evaluate

import (
	"github.com/prometheus/client_golang/prometheus"

	"sluice.example/sluice/pipeline/rules"
)

// SweepMetrics are those of a Sweeper.
type SweepMetrics struct {
	fired   *prometheus.CounterVec
	expired *prometheus.CounterVec
	seeded  *prometheus.CounterVec
	windows *prometheus.CounterVec
	filled  *prometheus.CounterVec
	// unfilled is for the goroutine of Fill, late for that of Sweep.
	unfilled ruleGauge
	late     ruleGauge
	errors   *prometheus.CounterVec
	duration prometheus.Histogram
}

// NewSweepMetrics registers the metrics of a Sweeper.
func NewSweepMetrics(reg prometheus.Registerer) *SweepMetrics {
	m := &SweepMetrics{
		fired: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "sluice_sweep_fired_timers_total",
			Help: "Timers of absence rules that ran out and were decided about."}, []string{"rule"}),
		expired: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "sluice_sweep_expired_timers_total",
			Help: "Timers that were due for longer than their rule's lookback, and so never fired."}, []string{"rule"}),
		seeded: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "sluice_sweep_seed_events_total",
			Help: "Stored events read to make the timers of a rule that came into force."}, []string{"rule"}),
		windows: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "sluice_sweep_judged_windows_total",
			Help: "Windows of rate rules that were judged, missed ones included."}, []string{"rule"}),
		filled: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "sluice_sweep_fill_events_total",
			Help: "Stored events read to make the counts of a rate rule that came into force."}, []string{"rule"}),
		unfilled: newRuleGauge("sluice_sweep_fill_days",
			"Days of stored events that are still to be counted for a rate rule that came into force, as the node "+
				"knows that counted last."),
		late: newRuleGauge("sluice_sweep_oldest_due_seconds",
			"For how long the oldest timer taken by the last look had been due; 0 if none was. Alert above 300."),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "sluice_sweep_errors_total",
			Help: "Failures, which are tried again at the next look, by task: seed, absence, digest, rate, fill, clean."},
			[]string{"task"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "sluice_sweep_duration_seconds",
			Help: "Time of one look at everything that is due.", Buckets: prometheus.ExponentialBuckets(0.0005, 3, 11)}),
	}
	reg.MustRegister(m.fired, m.expired, m.seeded, m.windows, m.filled, m.unfilled.vec, m.late.vec, m.errors, m.duration)
	for _, task := range []string{"seed", "absence", "digest", "rate", "fill", "clean"} {
		m.errors.WithLabelValues(task)
	}
	return m
}

// inForce lets the counters of the rules begin at 0.
func (m *SweepMetrics) inForce(set *rules.Set) {
	for _, r := range zeroed(set.Absences()) {
		m.fired.WithLabelValues(r.Name)
		m.expired.WithLabelValues(r.Name)
		m.seeded.WithLabelValues(r.Name)
	}
	for _, r := range zeroed(set.Rates()) {
		m.windows.WithLabelValues(r.Name)
		m.filled.WithLabelValues(r.Name)
	}
}
