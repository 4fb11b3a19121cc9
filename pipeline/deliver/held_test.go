package deliver_test

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"

	"log/slog"
	"net/http/httptest"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline/claim"
	"sluice.example/sluice/pipeline/deliver"
)

// A row that a person holds in psql stops nothing but its own result.
func TestHeldRowStopsNoRecording(t *testing.T) {
	pool := pgtest.New(t)
	var requests atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requests.Add(1) }))
	t.Cleanup(s.Close)
	log := slog.New(slog.DiscardHandler)
	q, err := claim.New(claim.DefaultConfig(), pool, claim.NewMetrics(prometheus.NewRegistry()), log)
	if err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	d, err := deliver.New(deliver.DefaultConfig(), hook(t, s.URL), q, claim.DefaultConfig().Lease,
		deliver.NewMetrics(reg), log)
	if err != nil {
		t.Fatal(err)
	}
	insert(t, pool, 1)
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	leased := make(chan struct{})
	s.Config.Handler = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		if requests.Add(1) == 1 {
			if _, err := tx.Exec(context.Background(), `update outbox set headers = headers`); err != nil {
				t.Error(err)
			}
			close(leased)
		}
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	<-leased
	insert(t, pool, 300)
	d.Nudge()
	until(t, pool, 300, `select count(*) from outbox where status = 'sent'`)
	if n := gauge(t, reg, "sluice_deliver_unrecordable_results"); n != 1 {
		t.Errorf("unrecordable_results = %v; want 1", n)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	until(t, pool, 301, `select count(*) from outbox where status = 'sent'`)
	pgtest.Eventually(t, "nothing is unrecordable", func() bool {
		return gauge(t, reg, "sluice_deliver_unrecordable_results") == 0
	})
	if n := requests.Load(); n != 301 {
		t.Errorf("%d requests for 301 messages", n)
	}
}

func gauge(t *testing.T, reg *prometheus.Registry, name string) float64 {
	t.Helper()
	if n, err := testutil.GatherAndCount(reg, name); err != nil || n != 1 {
		t.Fatal(fmt.Errorf("%s has %d series, %w", name, n, err))
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	return 0
}
