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
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: "pipeline_deliver_" + name, Help: help})
		reg.MustRegister(c)
		return c
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pipeline_deliver_" + name, Help: help}, labels)
		reg.MustRegister(c)
		return c
	}
	gauges := func(name, help, label string) *prometheus.GaugeVec {
		g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "pipeline_deliver_" + name, Help: help}, []string{label})
		reg.MustRegister(g)
		return g
	}
	seconds := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "pipeline_deliver_attempt_seconds",
		Help:    "Duration of attempts.",
		Buckets: prometheus.ExponentialBuckets(0.0005, 2, 17), // 0.5 ms to 33 s
	}, []string{"destination"})
	reg.MustRegister(seconds)
	return &Metrics{
		seconds: seconds,
		attempts: counters("attempts_total",
			"Leases by how they ended: sent, failed (to be tried again), dead, released (no attempt counted).",
			"destination", "result"),
		held: gauges("held_messages",
			"Messages that this process holds leases on: waiting for a sender, being sent, or waiting to be recorded.",
			"destination"),
		inFlight: gauges("in_flight_messages", "Messages being sent.", "destination"),
		recordErrors: counter("record_errors_total",
			"Tries to record results that failed; they are repeated."),
		unrecorded: counter("unrecorded_results_total",
			"Results given up when the process stopped without a database; the messages are delivered again."),
		claimErrors: counter("claim_errors_total", "Claims that failed; they are repeated."),
		lostLeases: counter("lost_leases_total",
			"Messages that another worker took while they waited here; they were not sent from here."),
		openings: counters("breaker_openings_total",
			"Times that a destination's circuit breaker opened: after failures in a row, or for its Retry-After.",
			"destination"),
	}
}
