package buffer

import (
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sluice.example/sluice/pipeline"
)

// Metrics are what the stage exports.
type Metrics struct {
	sealed       *prometheus.CounterVec
	batchEvents  prometheus.Histogram
	batchBytes   prometheus.Histogram
	wait         prometheus.Histogram
	writeSeconds prometheus.Histogram
	usedBytes    prometheus.Gauge
	maxBytes     prometheus.Gauge
	refused      prometheus.Counter
	asyncRetried prometheus.Counter
	inFlight     *prometheus.GaugeVec
	failed       *prometheus.CounterVec
	lost202      *prometheus.CounterVec
	limited      *prometheus.GaugeVec
	writers      prometheus.Gauge
	maxEvents    prometheus.Gauge
	maxWait      prometheus.Gauge

	tenants sync.Map // int32 -> *tenantMetrics, so that the hot path builds no label
}

type tenantMetrics struct {
	inFlight prometheus.Gauge
	failed   prometheus.Counter
	lost202  prometheus.Counter
}

// NewMetrics makes the metrics and registers them. Series whose labels are known, those of the tenants among them, are
// there at 0 from the start: who watches for changes would miss the first incident of a series that is born with it.
func NewMetrics(reg prometheus.Registerer, tenants ...int32) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "sluice_buffer_" + name, Help: help})
	}
	counters := func(name, label, help string) *prometheus.CounterVec {
		opts := prometheus.CounterOpts{Name: "sluice_buffer_" + name, Help: help}
		return prometheus.NewCounterVec(opts, []string{label})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: "sluice_buffer_" + name, Help: help})
	}
	gauges := func(name, label, help string) *prometheus.GaugeVec {
		opts := prometheus.GaugeOpts{Name: "sluice_buffer_" + name, Help: help}
		return prometheus.NewGaugeVec(opts, []string{label})
	}
	histogram := func(name, help string, least, factor float64, count int) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: "sluice_buffer_" + name, Help: help,
			Buckets: prometheus.ExponentialBuckets(least, factor, count)})
	}
	m := &Metrics{
		sealed: counters("sealed_batches_total", "trigger", "Batches handed to a writer, by what sealed them: "+
			"events, bytes, age, idle (no batch was being written), drain, retry."),
		batchEvents: histogram("batch_events", "Events per batch.", 1, 2, 14),
		batchBytes: histogram("batch_bytes",
			"Bytes per batch, by the weight that counts against buffer.max-bytes.", 1024, 4, 9),
		wait: histogram("wait_seconds",
			"From Add to the outcome, per request that waited for it.", 0.0005, 2, 17),
		writeSeconds: histogram("write_seconds", "Writing one batch, retries included.", 0.0005, 2, 17),
		usedBytes:    gauge("used_bytes", "Bytes of events in memory."),
		maxBytes:     gauge("capacity_bytes", "The bound on sluice_buffer_used_bytes (buffer.max-bytes)."),
		refused:      counter("refused_events_total", "Events refused because the buffer was full."),
		asyncRetried: counter("async_retried_events_total",
			"Events acknowledged before they were written that went into another batch because theirs failed."),
		inFlight: gauges("in_flight_events", "tenant", "Events admitted whose outcome is still open."),
		failed: counters("failed_events_total", "tenant",
			"Events admitted that were not written. The client got an error, unless it had been answered 202 (see "+
				"sluice_buffer_lost_accepted_events_total)."),
		lost202: counters("lost_accepted_events_total", "tenant",
			"Events answered 202 (respond-async) that were not written when the process stopped; also in "+
				"sluice_buffer_failed_events_total."),
		limited: gauges("limited_by", "by", "1 for what limits the rate now, 0 for the others: "+
			"commit, cpu (this process's, or PostgreSQL's), clients, outage (no batch is written at all)."),
		writers:   gauge("writers", "Batches that may be written at the same time (buffer.writers)."),
		maxEvents: gauge("max_events", "Events that seal a batch (buffer.max-events)."),
		maxWait: gauge("max_wait_seconds",
			"Age that seals a batch (buffer.max-wait, or what auto makes of it)."),
	}
	reg.MustRegister(m.sealed, m.batchEvents, m.batchBytes, m.wait, m.writeSeconds, m.usedBytes, m.maxBytes, m.refused,
		m.asyncRetried, m.inFlight, m.failed, m.lost202, m.limited, m.writers, m.maxEvents, m.maxWait)
	for _, t := range []trigger{byEvents, byBytes, byAge, byIdle, byDrain, byRetry} {
		m.sealed.WithLabelValues(string(t))
	}
	for _, id := range tenants {
		m.tenant(id)
	}
	return m
}

func (m *Metrics) tenant(id int32) *tenantMetrics {
	if t, ok := m.tenants.Load(id); ok {
		return t.(*tenantMetrics)
	}
	label := strconv.Itoa(int(id))
	made := &tenantMetrics{inFlight: m.inFlight.WithLabelValues(label), failed: m.failed.WithLabelValues(label),
		lost202: m.lost202.WithLabelValues(label)}
	t, _ := m.tenants.LoadOrStore(id, made)
	return t.(*tenantMetrics)
}

// perTenant calls f once for every run of events of one tenant; a request usually is a single run.
func (m *Metrics) perTenant(events []pipeline.Event, f func(t *tenantMetrics, n float64)) {
	for start := 0; start < len(events); {
		end := start + 1
		for end < len(events) && events[end].Tenant == events[start].Tenant {
			end++
		}
		f(m.tenant(events[start].Tenant), float64(end-start))
		start = end
	}
}

func admitted(t *tenantMetrics, n float64) { t.inFlight.Add(n) }
func resolved(t *tenantMetrics, n float64) { t.inFlight.Sub(n) }
func lost(t *tenantMetrics, n float64)     { t.inFlight.Sub(n); t.failed.Add(n) }
func lost202(t *tenantMetrics, n float64)  { t.lost202.Add(n) }

func (m *Metrics) took(b *batch) {
	m.sealed.WithLabelValues(string(b.trigger)).Inc()
	m.batchEvents.Observe(float64(b.count))
	m.batchBytes.Observe(float64(b.bytes))
}

func seconds(since time.Time) float64 { return time.Since(since).Seconds() }

func (m *Metrics) limitedBy(now limit) {
	for _, l := range []limit{byCommit, byCPU, byClients, byOutage} {
		value := 0.0
		if l == now {
			value = 1
		}
		m.limited.WithLabelValues(string(l)).Set(value)
	}
}
