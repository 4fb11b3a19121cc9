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
	limited      *prometheus.GaugeVec
	writers      prometheus.Gauge
	maxEvents    prometheus.Gauge
	maxWait      prometheus.Gauge

	tenants sync.Map // int32 -> *tenantMetrics, so that the hot path builds no label
}

type tenantMetrics struct {
	inFlight prometheus.Gauge
	failed   prometheus.Counter
}

// NewMetrics makes the metrics and registers them.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		sealed: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pipeline_buffer_sealed_batches_total",
			Help: "Batches handed to a writer, by what sealed them: events, bytes, age, idle (no batch was being written), drain, retry."}, []string{"trigger"}),
		batchEvents: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "pipeline_buffer_batch_events",
			Help: "Events per batch.", Buckets: prometheus.ExponentialBuckets(1, 2, 14)}),
		batchBytes: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "pipeline_buffer_batch_bytes",
			Help: "Bytes per batch, by the weight that counts against buffer.max-bytes.", Buckets: prometheus.ExponentialBuckets(1024, 4, 9)}),
		wait: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "pipeline_buffer_wait_seconds",
			Help: "From Add to the outcome, per request that waited for it.", Buckets: prometheus.ExponentialBuckets(0.0005, 2, 17)}),
		writeSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "pipeline_buffer_write_seconds",
			Help: "Writing one batch, retries included.", Buckets: prometheus.ExponentialBuckets(0.0005, 2, 17)}),
		usedBytes: prometheus.NewGauge(prometheus.GaugeOpts{Name: "pipeline_buffer_used_bytes",
			Help: "Bytes of events in memory."}),
		maxBytes: prometheus.NewGauge(prometheus.GaugeOpts{Name: "pipeline_buffer_capacity_bytes",
			Help: "The bound on pipeline_buffer_used_bytes (buffer.max-bytes)."}),
		refused: prometheus.NewCounter(prometheus.CounterOpts{Name: "pipeline_buffer_refused_events_total",
			Help: "Events refused because the buffer was full."}),
		asyncRetried: prometheus.NewCounter(prometheus.CounterOpts{Name: "pipeline_buffer_async_retried_events_total",
			Help: "Events acknowledged before they were written that went into another batch because theirs failed."}),
		inFlight: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "pipeline_buffer_in_flight_events",
			Help: "Events admitted whose outcome is still open."}, []string{"tenant"}),
		failed: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pipeline_buffer_failed_events_total",
			Help: "Events admitted whose batch could not be written; the client was told so."}, []string{"tenant"}),
		limited: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "pipeline_buffer_limited_by",
			Help: "1 for what limits the rate now, 0 for the others: commit, cpu (this process's, or PostgreSQL's), clients."}, []string{"by"}),
		writers: prometheus.NewGauge(prometheus.GaugeOpts{Name: "pipeline_buffer_writers",
			Help: "Batches that may be written at the same time (buffer.writers, or what auto makes of it)."}),
		maxEvents: prometheus.NewGauge(prometheus.GaugeOpts{Name: "pipeline_buffer_max_events",
			Help: "Events that seal a batch (buffer.max-events, or what auto makes of it)."}),
		maxWait: prometheus.NewGauge(prometheus.GaugeOpts{Name: "pipeline_buffer_max_wait_seconds",
			Help: "Age that seals a batch (buffer.max-wait, or what auto makes of it)."}),
	}
	reg.MustRegister(m.sealed, m.batchEvents, m.batchBytes, m.wait, m.writeSeconds, m.usedBytes, m.maxBytes, m.refused,
		m.asyncRetried, m.inFlight, m.failed, m.limited, m.writers, m.maxEvents, m.maxWait)
	return m
}

func (m *Metrics) tenant(id int32) *tenantMetrics {
	if t, ok := m.tenants.Load(id); ok {
		return t.(*tenantMetrics)
	}
	label := strconv.Itoa(int(id))
	t, _ := m.tenants.LoadOrStore(id, &tenantMetrics{m.inFlight.WithLabelValues(label), m.failed.WithLabelValues(label)})
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

func (m *Metrics) took(b *batch) {
	m.sealed.WithLabelValues(string(b.trigger)).Inc()
	m.batchEvents.Observe(float64(b.count))
	m.batchBytes.Observe(float64(b.bytes))
}

func seconds(since time.Time) float64 { return time.Since(since).Seconds() }

func (m *Metrics) tuned(k knobs) {
	m.writers.Set(float64(k.writers))
	m.maxEvents.Set(float64(k.maxEvents))
	m.maxWait.Set(k.maxWait.Seconds())
}

func (m *Metrics) limitedBy(now limit) {
	for _, l := range []limit{byCommit, byCPU, byClients} {
		value := 0.0
		if l == now {
			value = 1
		}
		m.limited.WithLabelValues(string(l)).Set(value)
	}
}
