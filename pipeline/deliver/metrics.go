package deliver

import "github.com/prometheus/client_golang/prometheus"

// Metrics are what delivery exports. One per Dispatcher.
type Metrics struct {
	attempts     *prometheus.CounterVec
	seconds      *prometheus.HistogramVec
	held         *prometheus.GaugeVec
	inFlight     *prometheus.GaugeVec
	heldBytes    *prometheus.GaugeVec
	recordErrors prometheus.Counter
	unrecorded   prometheus.Counter
	rowsHeld     prometheus.Gauge
	claimErrors  prometheus.Counter
	lostLeases   prometheus.Counter
	openings     *prometheus.CounterVec
	open         *prometheus.GaugeVec
	paused       *prometheus.GaugeVec
	concurrency  *prometheus.GaugeVec
	lag          *prometheus.HistogramVec
}

// NewMetrics registers the metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: "sluice_deliver_" + name, Help: help})
		reg.MustRegister(c)
		return c
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "sluice_deliver_" + name, Help: help}, labels)
		reg.MustRegister(c)
		return c
	}
	gauges := func(name, help, label string) *prometheus.GaugeVec {
		g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "sluice_deliver_" + name, Help: help}, []string{label})
		reg.MustRegister(g)
		return g
	}
	seconds := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "sluice_deliver_attempt_seconds",
		Help:    "Duration of attempts.",
		Buckets: prometheus.ExponentialBuckets(0.0005, 2, 17), // 0.5 ms to 33 s
	}, []string{"destination"})
	lag := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "sluice_deliver_lag_seconds",
		Help:    "From when a message was due to the answer that took it; deliberate waits between attempts do not count.",
		Buckets: prometheus.ExponentialBuckets(0.002, 2.5, 17), // 2 ms to an hour and a quarter
	}, []string{"destination"})
	reg.MustRegister(seconds, lag)
	rowsHeld := prometheus.NewGauge(prometheus.GaugeOpts{Name: "sluice_deliver_unrecordable_results",
		Help: "Results that can't be recorded now, since others hold their messages' rows. Alert above 0 for a minute."})
	reg.MustRegister(rowsHeld)
	return &Metrics{
		rowsHeld: rowsHeld,
		seconds:  seconds,
		lag:      lag,
		open: gauges("breaker_open",
			"1 while a destination's circuit breaker is open or half-open: little or nothing is sent.", "destination"),
		paused: gauges("paused", "1 for a destination that its file or an operator pauses.", "destination"),
		concurrency: gauges("concurrency",
			"How many messages may be under way to a destination at the same time.", "destination"),
		attempts: counters("attempts_total",
			"Leases by how they ended: sent, failed (to be tried again), dead, released (no attempt counted).",
			"destination", "result"),
		held: gauges("held_messages",
			"Messages that this process holds leases on: waiting for a sender, being sent, or waiting to be recorded.",
			"destination"),
		inFlight: gauges("in_flight_messages", "Messages being sent.", "destination"),
		heldBytes: gauges("held_bytes",
			"Memory of the messages held, by deliver.max-bytes: twice the bytes of their payloads.", "destination"),
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
