package claim

import "github.com/prometheus/client_golang/prometheus"

// Metrics are what claiming exports. One per Queue.
type Metrics struct {
	claims, emptyClaims, lateWrites, released, extended, fullClaims prometheus.Counter
	leases, finished                                                *prometheus.CounterVec
	claimSeconds, finishSeconds                                     prometheus.Histogram
	errors                                                          *prometheus.CounterVec

	due, leased, scheduled, dead, oldestDue *prometheus.GaugeVec
	oldestSnapshot                          prometheus.Gauge
}

// NewMetrics registers the metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: "pipeline_claim_" + name, Help: help})
		reg.MustRegister(c)
		return c
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pipeline_claim_" + name, Help: help}, labels)
		reg.MustRegister(c)
		return c
	}
	gauges := func(name, help, label string) *prometheus.GaugeVec {
		g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "pipeline_claim_" + name, Help: help}, []string{label})
		reg.MustRegister(g)
		return g
	}
	seconds := func(name, help string) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "pipeline_claim_" + name, Help: help,
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 15)}) // 0.5 ms to 8 s
		reg.MustRegister(h)
		return h
	}
	oldestSnapshot := prometheus.NewGauge(prometheus.GaugeOpts{Name: "pipeline_claim_oldest_snapshot_seconds",
		Help: "Age of the oldest transaction that keeps PostgreSQL from clearing finished messages away, " +
			"at the last count; 0 if the role may not see others'. Alert above 600."})
	reg.MustRegister(oldestSnapshot)
	return &Metrics{
		oldestSnapshot: oldestSnapshot,
		claims:         counter("claims_total", "Claim statements that ended well."),
		emptyClaims:    counter("empty_claims_total", "Claims that found nothing."),
		fullClaims: counter("full_walks_total",
			"Walks of a claim that began at a destination's oldest message, and not where the last one ended."),
		lateWrites: counter("late_writes_total",
			"Results that changed nothing: another worker, or an operator, has the message since the lease ran out."),
		released: counter("released_messages_total", "Leases given back without an attempt."),
		extended: counter("extended_leases_total",
			"Leases extended while their message waited or was being sent."),
		leases: counters("leases_total", "Leases given out.", "destination"),
		finished: counters("finished_messages_total",
			"Results recorded: sent, failed (to be tried again), dead, skipped.", "status"),
		claimSeconds: seconds("seconds", "Duration of a claim statement, with its round trip."),
		finishSeconds: seconds("finish_seconds",
			"Duration of the statement that records results, with its round trip."),
		errors: counters("errors_total", "Statements that failed.", "statement"),
		due:    gauges("due_messages", "Messages that may be claimed now, at the last count.", "destination"),
		leased: gauges("leased_messages", "Messages under a lease, at the last count.", "destination"),
		scheduled: gauges("scheduled_messages",
			"Messages whose time has not come (retries, delays), at the last count.", "destination"),
		dead: gauges("dead_messages", "Messages given up, at the last count.", "destination"),
		oldestDue: gauges("oldest_due_seconds",
			"How long ago the oldest due message could first have been claimed, at the last count.", "destination"),
	}
}
