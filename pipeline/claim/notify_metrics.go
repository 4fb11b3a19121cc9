package claim

import "github.com/prometheus/client_golang/prometheus"

// NotifierMetrics are what a Notifier exports. One per Notifier.
type NotifierMetrics struct {
	sent, received prometheus.Counter
	failed         *prometheus.CounterVec
}

// NewNotifierMetrics registers the metrics.
func NewNotifierMetrics(reg prometheus.Registerer) *NotifierMetrics {
	m := &NotifierMetrics{
		sent: prometheus.NewCounter(prometheus.CounterOpts{Name: "sluice_claim_notifications_sent_total",
			Help: "Notifications of due messages that this node sent to others."}),
		received: prometheus.NewCounter(prometheus.CounterOpts{Name: "sluice_claim_notifications_received_total",
			Help: "Notifications of due messages by which another node woke this one."}),
		failed: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "sluice_claim_notification_failures_total",
			Help: "Failures to notify other nodes or to listen to them; polling finds the messages."},
			[]string{"part"}),
	}
	reg.MustRegister(m.sent, m.received, m.failed)
	for _, part := range []string{"notify", "listen"} {
		m.failed.WithLabelValues(part)
	}
	return m
}
