package child

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"sluice.example/sluice/internal/cli"
)

func TestMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	stored := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "stored_total", Help: "h"}, []string{"tenant", "rule"})
	took := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "took_seconds", Help: "h", Buckets: []float64{1, 2}},
		[]string{"status"})
	reg.MustRegister(stored, took)
	stored.WithLabelValues("1", `a "quoted", one`).Add(2)
	stored.WithLabelValues("1", "b").Add(3)
	stored.WithLabelValues("2", "b").Add(5)
	took.WithLabelValues("2xx").Observe(0.5)
	took.WithLabelValues("2xx").Observe(1.5)
	took.WithLabelValues("4xx").Observe(0.25)
	server := httptest.NewServer(http.StripPrefix("/metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{})))
	defer server.Close()
	m, err := (&Process{Ready: cli.Ready{Admin: server.URL}}).Metrics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	check := func(what string, got, want float64) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %g, want %g", what, got, want)
		}
	}
	check("all", m.Sum("stored_total"), 10)
	check("of a tenant", m.Sum("stored_total", "tenant=1"), 5)
	check("of a tenant and a rule", m.Sum("stored_total", "tenant=1", `rule=a "quoted", one`), 2)
	check("of nobody", m.Sum("stored_total", "tenant=3"), 0)
	check("of nothing", m.Sum("lost_total"), 0)
	check("by rule", m.By("stored_total", "rule")["b"], 8)
	check("sum of a histogram", m.Sum("took_seconds_sum", "status=2xx"), 2)
	check("count of a histogram", m.Sum("took_seconds_count"), 3)
	check("up to a bucket", m.AtMost("took_seconds", 1, "status=2xx"), 1)
	if _, err := (&Process{Ready: cli.Ready{Admin: server.URL + "/none"}}).Metrics(t.Context()); err == nil {
		t.Error("a page that is not there gave metrics")
	}
}
