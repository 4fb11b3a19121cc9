package deliver

import "github.com/prometheus/client_golang/prometheus"

// Metrics are what delivery exports. One per Dispatcher.
type Metrics struct {
	attempts     *prometheus.CounterVec
	seconds      *prometheus.HistogramVec
	held         *prometheus.GaugeVec
	inFlight     *prometheus.GaugeVec
	recordErrors prometheus.Counter
	unrecorded   prometheus.Counter
	claimErrors  prometheus.Counter
	lostLeases   prometheus.Counter
	openings     *prometheus.CounterVec
}

// NewMetrics registers the metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pipeline_deliver_attempts_total",
			Help: "Leases by how they ended: sent, failed (to be tried again), dead, released (not attempted)."}, []string{"destination", "result"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "pipeline_deliver_attempt_seconds",
			Help: "Duration of attempts.", Buckets: prometheus.ExponentialBuckets(0.0005, 2, 17)}, []string{"destination"}), // 0.5 ms to 33 s
		held: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "pipeline_deliver_held_messages",
			Help: "Messages that this process holds leases on: waiting for a sender, being sent, or waiting to be recorded."}, []string{"destination"}),
		inFlight: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "pipeline_deliver_in_flight_messages",
			Help: "Messages being sent."}, []string{"destination"}),
		recordErrors: prometheus.NewCounter(prometheus.CounterOpts{Name: "pipeline_deliver_record_errors_total",
			Help: "Tries to record results that failed; they are repeated."}),
		unrecorded: prometheus.NewCounter(prometheus.CounterOpts{Name: "pipeline_deliver_unrecorded_results_total",
			Help: "Results given up when the process stopped without a database; the messages are delivered again."}),
		claimErrors: prometheus.NewCounter(prometheus.CounterOpts{Name: "pipeline_deliver_claim_errors_total",
			Help: "Claims that failed; they are repeated."}),
		lostLeases: prometheus.NewCounter(prometheus.CounterOpts{Name: "pipeline_deliver_lost_leases_total",
			Help: "Messages that another worker took while they waited here; they were not sent from here."}),
		openings: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pipeline_deliver_breaker_openings_total",
			Help: "Times that a destination's circuit breaker opened: after failures in a row, or for its Retry-After."},
			[]string{"destination"}),
	}
	reg.MustRegister(m.attempts, m.seconds, m.held, m.inFlight, m.recordErrors, m.unrecorded, m.claimErrors, m.lostLeases, m.openings)
	return m
}
