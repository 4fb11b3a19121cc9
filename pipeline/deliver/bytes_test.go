package deliver_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline/claim"
	"sluice.example/sluice/pipeline/deliver"
)

// insertBig adds n messages with payloads of so many bytes, which compress well.
func insertBig(t *testing.T, pool *pgxpool.Pool, destination string, n, bytes int) {
	t.Helper()
	exec(t, pool, `insert into outbox (tenant_id, type, dedupe_key, destination, payload, rule_id)
		select 1, 'welcome', gen_random_uuid()::text, $1, to_jsonb(repeat('x', $3 - 2)), 'welcome'
		    from generate_series(1, $2) i`, destination, n, bytes)
}

// bounded runs a node that may hold so many bytes, with one destination for each name.
func bounded(t *testing.T, pool *pgxpool.Pool, reg *prometheus.Registry, maxBytes int, url string, names ...string) {
	t.Helper()
	text := "destinations:\n"
	for _, name := range names {
		text += fmt.Sprintf("  - {name: %s, url: '%s/%s', signatures: none, allow_private: true, timeout: 7s}\n", name,
			url, name)
	}
	ds, err := deliver.Parse("d.yaml", []byte(text), func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	q, err := claim.New(claim.DefaultConfig(), pool, claim.NewMetrics(prometheus.NewRegistry()), log)
	if err != nil {
		t.Fatal(err)
	}
	cfg := deliver.DefaultConfig()
	cfg.PollInterval = 50 * time.Millisecond
	cfg.MaxBytes = maxBytes
	cfg.DrainTimeout = time.Second
	d, err := deliver.New(cfg, ds, q, claim.DefaultConfig().Lease, deliver.NewMetrics(reg), log)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = d.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
}

// A destination that answers late and well, with more bytes waiting than may be held, does not hold up another one.
func TestBigMessagesHoldUpTheirDestinationOnly(t *testing.T) {
	pool := pgtest.New(t)
	release := make(chan struct{})
	var late atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.URL.Path == "/late" {
			late.Add(1)
			select {
			case <-release:
			case <-time.After(6 * time.Second):
			}
		}
	}))
	t.Cleanup(s.Close)
	t.Cleanup(func() { close(release) })
	insertBig(t, pool, "late", 4000, 205_000)
	bounded(t, pool, prometheus.NewRegistry(), 64<<20, s.URL, "late", "healthy")
	pgtest.Eventually(t, "64 requests to the late one", func() bool { return late.Load() >= 64 })
	began := time.Now()
	insertBig(t, pool, "healthy", 1000, 20_000)
	until(t, pool, 1000, `select count(*) from outbox where destination = 'healthy' and status = 'sent'`)
	// While the first requests to the late one are not answered, or a little longer on a busy machine.
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("1,000 messages to the healthy destination took %s", took)
	}
}

// Four destinations, each with 300 messages of 1 MB, do not hold more than deliver.max-bytes and a message each.
func TestMemoryOfBigMessagesIsBounded(t *testing.T) {
	const maxBytes, size = 64 << 20, 1 << 20
	pool := pgtest.New(t)
	release := make(chan struct{})
	var requests atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		requests.Add(1)
		<-release
	}))
	t.Cleanup(s.Close)
	names := []string{"a", "b", "c", "d"}
	for _, name := range names {
		insertBig(t, pool, name, 300, size)
	}
	var before runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	reg := prometheus.NewRegistry()
	bounded(t, pool, reg, maxBytes, s.URL, names...)
	var open sync.Once
	t.Cleanup(func() { open.Do(func() { close(release) }) })
	check := func() {
		t.Helper()
		var now runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&now)
		// Beside what counts: a message that each may have over its part, twice, and buffers of connections.
		const margin = 4*2*size + 16<<20
		if live := int64(now.HeapAlloc) - int64(before.HeapAlloc); live > maxBytes+margin {
			t.Fatalf("%d MiB are in use; want at most %d", live>>20, (maxBytes+margin)>>20)
		}
		if held := sum(t, reg, "sluice_deliver_held_bytes"); held > maxBytes+4*2*size {
			t.Fatalf("%.0f bytes are held; want at most %d", held, maxBytes+4*2*size)
		}
	}
	pgtest.Eventually(t, "each destination has its part", func() bool {
		check()
		return requests.Load() >= 4*4
	})
	open.Do(func() { close(release) })
	pgtest.Eventually(t, "100 of each were sent", func() bool {
		check()
		return requests.Load() >= 400
	})
}

// sum is the sum of a metric over its labels.
func sum(t *testing.T, reg *prometheus.Registry, name string) (total float64) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name {
				total += m.GetGauge().GetValue()
			}
		}
	}
	return total
}
