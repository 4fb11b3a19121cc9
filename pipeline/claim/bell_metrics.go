package claim

import "github.com/prometheus/client_golang/prometheus"

// BellMetrics are what a Bell exports. One per Bell.
type BellMetrics struct {
	rung, heard prometheus.Counter
	failed      *prometheus.CounterVec
}

// NewBellMetrics registers the metrics.
func NewBellMetrics(reg prometheus.Registerer) *BellMetrics {
	m := &BellMetrics{
		rung:   prometheus.NewCounter(prometheus.CounterOpts{Name: "pipeline_claim_rings_total", Help: "Times that this node told others of due messages."}),
		heard:  prometheus.NewCounter(prometheus.CounterOpts{Name: "pipeline_claim_heard_rings_total", Help: "Times that this node was woken by another."}),
		failed: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pipeline_claim_ring_failures_total", Help: "Times that ringing or listening failed; polling finds the messages."}, []string{"part"}),
	}
	reg.MustRegister(m.rung, m.heard, m.failed)
	return m
}
