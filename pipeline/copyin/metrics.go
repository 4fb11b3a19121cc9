package copyin

import (
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"sluice.example/sluice/pipeline"
)

// Metrics are what the stage exports.
type Metrics struct {
	stored, duplicate, quarantined *prometheus.CounterVec
	batches                        *prometheus.CounterVec
	retries                        *prometheus.CounterVec
	inDoubt                        *prometheus.CounterVec
	conflicts, isolations          prometheus.Counter
	partitions                     prometheus.Counter
	failed                         *prometheus.CounterVec
	attemptSeconds, commitSeconds  prometheus.Histogram
	waitingCommits                 prometheus.Gauge

	tenants sync.Map // int32 -> *[3]prometheus.Counter, so that the hot path builds no label
}

// NewMetrics makes the metrics and registers them. Series whose labels are known, those of the tenants among them, are
// there at 0 from the start: who watches for changes would miss the first incident of a series that is born with it.
func NewMetrics(reg prometheus.Registerer, tenants ...int32) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "sluice_copyin_" + name, Help: help})
	}
	vector := func(name, label, help string) *prometheus.CounterVec {
		opts := prometheus.CounterOpts{Name: "sluice_copyin_" + name, Help: help}
		return prometheus.NewCounterVec(opts, []string{label})
	}
	histogram := func(name, help string) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "sluice_copyin_" + name, Help: help, Buckets: prometheus.ExponentialBuckets(0.0002, 2, 18),
		})
	}
	m := &Metrics{
		stored: vector("stored_events_total", "tenant", "Events newly stored."),
		duplicate: vector("duplicate_events_total", "tenant",
			"Events that were stored before, or stand earlier in their batch."),
		quarantined: vector("quarantined_events_total", "tenant",
			"Events that PostgreSQL could not store, now in quarantine; the client was told that they are rejected."),
		batches: vector("batches_total", "path", "Batches committed, by how they began: copy (COPY at once), "+
			"suspects (keys that this process wrote lately looked up before), lookup (all keys looked up before)."),
		retries: vector("retries_total", "cause", "Transactions begun again: "+
			"deadlock, serialization, lock, timeout, connection, session, in-doubt, record, commit, dropped."),
		inDoubt: vector("in_doubt_commits_total", "outcome",
			"COMMITs whose answer was lost, by what PostgreSQL reported afterwards: committed, aborted, unknown."),
		conflicts: counter("conflicts_total",
			"COPYs that ran into a key stored before; the batch's keys were then looked up."),
		isolations: counter("isolations_total",
			"COPYs that failed because of a row's content, each a step of finding that row."),
		partitions: counter("partitions_made_total", "Day partitions made because events needed them."),
		failed: vector("failed_batches_total", "cause", "Batches given up, by cause: unavailable (the database is away or "+
			"hangs; the outcome of a last COMMIT may be unknown), disk-full and lock (somebody holds one for "+
			"long; nothing of them is stored), fault (it answers, and cannot store until it is repaired)."),
		attemptSeconds: histogram("attempt_seconds", "One transaction, from waiting for a connection to its end."),
		commitSeconds:  histogram("commit_seconds", "COMMIT alone."),
		waitingCommits: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "sluice_copyin_waiting_commits", Help: "COMMITs that take longer than 10 s, as they do while a " +
				"synchronous standby is away. What they store is not acknowledged meanwhile."}),
	}
	reg.MustRegister(m.stored, m.duplicate, m.quarantined, m.batches, m.retries, m.inDoubt, m.conflicts, m.isolations,
		m.partitions, m.failed, m.attemptSeconds, m.commitSeconds, m.waitingCommits)
	for _, path := range []string{pathCopy, pathSuspects, pathLookup} {
		m.batches.WithLabelValues(path)
	}
	for _, c := range retried {
		m.retries.WithLabelValues(string(c))
	}
	for _, outcome := range []string{"committed", "aborted", "unknown"} {
		m.inDoubt.WithLabelValues(outcome)
	}
	for _, err := range []error{pipeline.ErrUnavailable, pipeline.ErrDiskFull, pipeline.ErrLocked, pipeline.ErrFault} {
		m.failed.WithLabelValues(failedAs(err))
	}
	for _, id := range tenants {
		m.tenant(id)
	}
	return m
}

func (m *Metrics) tenant(id int32) *[3]prometheus.Counter {
	if t, ok := m.tenants.Load(id); ok {
		return t.(*[3]prometheus.Counter)
	}
	label := strconv.Itoa(int(id))
	t, _ := m.tenants.LoadOrStore(id, &[3]prometheus.Counter{
		pipeline.Stored - 1:    m.stored.WithLabelValues(label),
		pipeline.Duplicate - 1: m.duplicate.WithLabelValues(label),
		pipeline.Rejected - 1:  m.quarantined.WithLabelValues(label),
	})
	return t.(*[3]prometheus.Counter)
}

// count adds a batch to the books, once for every run of events of one tenant.
func (m *Metrics) count(events []pipeline.Event, verdicts []pipeline.Verdict) {
	for i := 0; i < len(events); {
		var n [3]float64
		tenant := events[i].Tenant
		for ; i < len(events) && events[i].Tenant == tenant; i++ {
			n[verdicts[i].Outcome-1]++
		}
		counters := m.tenant(tenant)
		for o := range n {
			counters[o].Add(n[o])
		}
	}
}
