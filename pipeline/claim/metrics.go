package claim

import (
	"github.com/prometheus/client_golang/prometheus"

	"sluice.example/sluice/pipeline"
)

// Metrics are what claiming exports. One per Queue.
type Metrics struct {
	claims, emptyClaims, lateWrites, released, extended, fullClaims prometheus.Counter
	leases, finished                                                *prometheus.CounterVec
	claimSeconds, finishSeconds                                     prometheus.Histogram
	errors                                                          *prometheus.CounterVec

	due, leased, scheduled, behind, dead, oldestDue, blocked *prometheus.GaugeVec
	oldest                                                   *prometheus.GaugeVec // without labels; absent: not known
	counted                                                  prometheus.Gauge

	kept map[string]bool // destinations whose gauges stay
	set  map[string]bool // destinations whose gauges are there
}

// NewMetrics registers the metrics. Those of the destinations named are there from the start, at 0, and stay.
func NewMetrics(reg prometheus.Registerer, destinations ...string) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: "sluice_claim_" + name, Help: help})
		reg.MustRegister(c)
		return c
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "sluice_claim_" + name, Help: help}, labels)
		reg.MustRegister(c)
		return c
	}
	gauges := func(name, help, label string) *prometheus.GaugeVec {
		g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "sluice_claim_" + name, Help: help}, []string{label})
		reg.MustRegister(g)
		return g
	}
	seconds := func(name, help string) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "sluice_claim_" + name, Help: help,
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 15)}) // 0.5 ms to 8 s
		reg.MustRegister(h)
		return h
	}
	oldest := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "sluice_claim_oldest_snapshot_seconds",
		Help: "Age of the oldest transaction, prepared transaction or replication slot that keeps PostgreSQL from " +
			"clearing finished messages away, at the last count; absent if the role may not see others' transactions " +
			"(grant pg_read_all_stats). Alert above 600."}, nil)
	counted := prometheus.NewGauge(prometheus.GaugeOpts{Name: "sluice_claim_counted_timestamp_seconds",
		Help: "Unix time of the last count of the backlog, 0 before the first."})
	reg.MustRegister(oldest, counted)
	m := &Metrics{
		oldest:      oldest,
		counted:     counted,
		kept:        map[string]bool{},
		set:         map[string]bool{},
		claims:      counter("claims_total", "Claim statements that ended well."),
		emptyClaims: counter("empty_claims_total", "Claims that found nothing."),
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
		due: gauges("due_messages", "Messages that may be claimed now, at the last count; 10001 is more than 10000.",
			"destination"),
		leased: gauges("leased_messages", "Messages under a lease, at the last count; 10001 is more than 10000.",
			"destination"),
		scheduled: gauges("scheduled_messages",
			"Messages whose time has not come (retries, delays), at the last count; 10001 is more than 10000.",
			"destination"),
		behind: gauges("behind_messages",
			"Messages that wait for one before them of their subject, at the last count; 10001 is more than 10000.",
			"destination"),
		dead: gauges("dead_messages", "Messages given up, at the last count; 10001 is more than 10000.", "destination"),
		blocked: gauges("blocking_dead_seconds",
			"How long ago the message died that holds up others of its subject for longest, at the last count; "+
				"only with dead: block. Alert above 3600: retry or discard it.", "destination"),
		oldestDue: gauges("oldest_due_seconds",
			"How long ago the oldest due message could first have been claimed, at the last count.", "destination"),
	}
	for _, status := range []pipeline.DeliveryStatus{pipeline.Sent, pipeline.Failed, pipeline.Dead, pipeline.Skipped} {
		m.finished.WithLabelValues(string(status))
	}
	for _, statement := range []string{"claim", "begin", "finish", "pass", "extend", "count"} {
		m.errors.WithLabelValues(statement)
	}
	for _, d := range destinations {
		m.kept[d] = true
		m.leases.WithLabelValues(d)
		m.setBacklog(Backlog{Destination: d})
	}
	return m
}

// backlog takes a count of all destinations. Where nothing is left of one that is not kept, its gauges go.
func (m *Metrics) backlog(counts []Backlog) {
	gone := m.set
	m.set = map[string]bool{}
	for _, b := range counts {
		delete(gone, b.Destination)
		m.setBacklog(b)
	}
	for d := range gone {
		if m.kept[d] {
			m.setBacklog(Backlog{Destination: d})
			continue
		}
		for _, g := range []*prometheus.GaugeVec{m.due, m.leased, m.scheduled, m.behind, m.dead, m.oldestDue} {
			g.DeleteLabelValues(d)
		}
	}
	m.counted.SetToCurrentTime()
}

func (m *Metrics) setBacklog(b Backlog) {
	m.set[b.Destination] = true
	m.due.WithLabelValues(b.Destination).Set(float64(b.Due))
	m.leased.WithLabelValues(b.Destination).Set(float64(b.Leased))
	m.scheduled.WithLabelValues(b.Destination).Set(float64(b.Scheduled))
	m.behind.WithLabelValues(b.Destination).Set(float64(b.Behind))
	m.dead.WithLabelValues(b.Destination).Set(float64(b.Dead))
	m.oldestDue.WithLabelValues(b.Destination).Set(b.Oldest)
}
