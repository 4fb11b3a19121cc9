package ingest

import (
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics counts what comes through the door. received = rejected + refused + what the buffer admitted.
type Metrics struct {
	received   *prometheus.CounterVec
	rejected   *prometheus.CounterVec
	refused    *prometheus.CounterVec
	requests   *prometheus.CounterVec
	limited    *prometheus.CounterVec
	overloaded *prometheus.CounterVec
	seconds    *prometheus.HistogramVec
	wire       prometheus.Counter
	decoded    prometheus.Counter
	panics     prometheus.Counter
	inFlight   prometheus.Gauge
	reading    prometheus.Gauge
	reloadOK   prometheus.Gauge

	// Looking labels up costs more than counting, so what was found is kept.
	tenants  sync.Map // int32 -> prometheus.Counter
	statuses sync.Map // int -> prometheus.Counter
	classes  [6]prometheus.Observer
}

// Why events are rejected, in a word.
const (
	causeType           = "type"
	causeMissing        = "missing"
	causeUnknownField   = "unknown_field"
	causeDuplicateField = "duplicate_field"
	causeTooLong        = "too_long"
	causeTooDeep        = "too_deep"
	causeTime           = "time"
	causeMalformed      = "malformed"
	causeUnstorable     = "unstorable"
)

// causes are all of them.
var causes = []string{causeType, causeMissing, causeUnknownField, causeDuplicateField, causeTooLong, causeTooDeep,
	causeTime, causeMalformed, causeUnstorable}

// Why events are refused, in a word.
const (
	refusedFull     = "full"
	refusedDraining = "draining"
	refusedAway     = "away"
)

// NewMetrics registers the metrics of one Server.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		reg.MustRegister(c)
		return c
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
		reg.MustRegister(c)
		return c
	}
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
		reg.MustRegister(g)
		return g
	}
	m := &Metrics{
		received: counters("sluice_ingest_received_events_total",
			"Events in requests that could be decoded.", "tenant"),
		rejected: counters("sluice_ingest_rejected_events_total",
			"Events that can never be stored as they are, by reason.", "tenant", "reason"),
		refused: counters("sluice_ingest_refused_events_total",
			"Valid events that there was no room for, to be sent again, by cause.", "tenant", "cause"),
		requests: counters("sluice_ingest_requests_total",
			"Requests answered, by status code.", "status"),
		limited: counters("sluice_ingest_rate_limited_requests_total",
			"Requests refused because the tenant was over its limits, before their events were counted.", "tenant"),
		overloaded: counters("sluice_ingest_overloaded_requests_total",
			"Requests refused because the buffer was full; nearly always before they were decoded, "+
				"and then their events are in no counter.", "tenant"),
		wire: counter("sluice_ingest_body_bytes_total",
			"Bytes of request bodies as they came over the wire."),
		decoded: counter("sluice_ingest_decoded_bytes_total",
			"Bytes of request bodies after decompression."),
		panics: counter("sluice_ingest_panics_total",
			"Requests that hit a bug of ours and were answered 500; see the log."),
		inFlight: gauge("sluice_ingest_in_flight_requests",
			"Requests being answered."),
		reading: gauge("sluice_ingest_reading_bytes",
			"Memory of the bodies being read and decoded (bound: ingest.max-reading-bytes)."),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "sluice_ingest_request_duration_seconds",
			Help:    "From a request's header to its answer, by class of status code (2xx, 4xx, ...).",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .015, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}, []string{"status"}),
	}
	reg.MustRegister(m.seconds)
	m.reloadOK = gauge("sluice_ingest_tenants_reload_ok",
		"1 if the tenants file was good when it was last read; else the tenants from before are in force.")
	m.reloadOK.Set(1)
	for _, i := range []int{2, 4, 5} { // there are no others
		m.classes[i] = m.seconds.WithLabelValues(strconv.Itoa(i) + "xx")
	}
	return m
}

// begin makes the series of the tenants and of what is answered often, at zero. Who watches for changes would miss
// the first incident of a series that is born with it, and there may be no second.
func (m *Metrics) begin(ids map[string]int32) {
	for _, id := range ids {
		tenant := tenantLabel(id)
		m.receivedEvents(id, 0)
		for _, cause := range causes {
			m.rejected.WithLabelValues(tenant, cause)
		}
		for _, cause := range []string{refusedFull, refusedDraining, refusedAway} {
			m.refused.WithLabelValues(tenant, cause)
		}
		m.limited.WithLabelValues(tenant)
		m.overloaded.WithLabelValues(tenant)
	}
	for _, status := range []int{200, 202, 204, 400, 401, 404, 405, 408, 413, 415, 422, 429, 431, 500, 503, 505} {
		m.requests.WithLabelValues(strconv.Itoa(status))
	}
}

func (m *Metrics) request(status int, took time.Duration) {
	c, ok := m.statuses.Load(status)
	if !ok {
		c, _ = m.statuses.LoadOrStore(status, m.requests.WithLabelValues(strconv.Itoa(status)))
	}
	c.(prometheus.Counter).Inc()
	if o := m.classes[min(status/100, 5)]; o != nil {
		o.Observe(took.Seconds())
	}
}

func (m *Metrics) receivedEvents(tenant int32, n int) {
	c, ok := m.tenants.Load(tenant)
	if !ok {
		c, _ = m.tenants.LoadOrStore(tenant, m.received.WithLabelValues(tenantLabel(tenant)))
	}
	c.(prometheus.Counter).Add(float64(n))
}

func (m *Metrics) rejectedEvents(tenant int32, rejected []rejection) {
	for i := range rejected {
		m.rejected.WithLabelValues(tenantLabel(tenant), rejected[i].cause).Inc()
	}
}

func (m *Metrics) refusedEvents(tenant int32, cause string, n int) {
	m.refused.WithLabelValues(tenantLabel(tenant), cause).Add(float64(n))
}

func tenantLabel(tenant int32) string { return strconv.Itoa(int(tenant)) }
