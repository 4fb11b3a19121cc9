package deliver_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline"
	"sluice.example/sluice/pipeline/claim"
	"sluice.example/sluice/pipeline/deliver"
)

// counting is a receiver that remembers how often each key came.
func counting(t *testing.T, delay time.Duration) (url string, keys func() map[string]int) {
	var mu sync.Mutex
	got := map[string]int{}
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		time.Sleep(delay) // a receiver's own work
		mu.Lock()
		got[r.Header.Get("Idempotency-Key")]++
		mu.Unlock()
	}))
	t.Cleanup(s.Close)
	return s.URL, func() map[string]int {
		mu.Lock()
		defer mu.Unlock()
		all := map[string]int{}
		for k, n := range got {
			all[k] = n
		}
		return all
	}
}

// through returns a pool whose connections go through a proxy.
func through(t *testing.T, pool *pgxpool.Pool) (*pgxpool.Pool, *pgtest.Proxy) {
	t.Helper()
	proxy := pgtest.NewProxy(t, pool.Config().ConnString())
	cfg, err := pgxpool.ParseConfig(proxy.URL())
	if err != nil {
		t.Fatal(err)
	}
	cfg.ConnConfig.ConnectTimeout = 2 * time.Second
	cut, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cut.Close)
	return cut, proxy
}

func run(t *testing.T, pool *pgxpool.Pool, ds deliver.Destinations, cfg claim.Config,
	reg prometheus.Registerer) (stop func()) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	q, err := claim.New(cfg, pool, claim.NewMetrics(reg), log)
	if err != nil {
		t.Fatal(err)
	}
	d, err := deliver.New(deliver.DefaultConfig(), ds, q, cfg.Lease, deliver.NewMetrics(prometheus.NewRegistry()), log)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { d.Run(ctx) })
	stop = func() { cancel(); running.Wait() }
	t.Cleanup(stop)
	return stop
}

// failedClaims is how many claims failed.
func failedClaims(t *testing.T, reg prometheus.Gatherer) (n float64) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "sluice_claim_errors_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			n += m.GetCounter().GetValue()
		}
	}
	return n
}

// The database goes away again and again while messages are delivered: every loop recovers, and every message arrives.
func TestDatabaseRestarts(t *testing.T) {
	const messages = 2000
	pool := pgtest.New(t)
	url, keys := counting(t, 5*time.Millisecond)
	insert(t, pool, messages)
	shaky, proxy := through(t, pool)
	cfg := claim.DefaultConfig()
	cfg.Lease = 45 * time.Second
	run(t, shaky, hook(t, url), cfg, prometheus.NewRegistry())
	for i := range 5 {
		before := len(keys())
		pgtest.Eventually(t, fmt.Sprintf("outage %d: messages are delivered", i),
			func() bool { return len(keys()) >= min(messages, before+150) }, func() any { return len(keys()) })
		proxy.SetDown(true)
		proxy.Cut()
		time.Sleep(100 * time.Millisecond) // the outage
		proxy.SetDown(false)
	}
	// Claims whose answer was lost come back when their leases end.
	until(t, pool, messages, `select count(*) from outbox where status = 'sent'`,
		`update outbox set locked_until = now() where status <> 'sent'
			and locked_until < now() + interval '35 seconds'`)
	if n := len(keys()); n != messages {
		t.Errorf("%d messages arrived; want %d", n, messages)
	}
}

// A connection that swallows everything holds delivery up for one timeout.
func TestBlackHole(t *testing.T) {
	pool := pgtest.New(t)
	url, keys := counting(t, 0)
	shaky, proxy := through(t, pool)
	cfg := claim.DefaultConfig()
	cfg.Lease = 3 * time.Second // a statement takes half of it at most
	reg := prometheus.NewRegistry()
	stop := run(t, shaky, hook(t, url, "timeout: 500ms", "prefetch: 2"), cfg, reg)
	insert(t, pool, 10)
	until(t, pool, 10, `select count(*) from outbox where status = 'sent'`)
	proxy.SetBlackHole(true)
	insert(t, pool, 10)
	pgtest.Eventually(t, "a claim that gets no answer ends", func() bool { return failedClaims(t, reg) > 0 })
	if n := len(keys()); n != 10 {
		t.Fatalf("%d messages arrived through a black hole; want the first 10", n)
	}
	proxy.SetBlackHole(false)
	until(t, pool, 20, `select count(*) from outbox where status = 'sent'`)
	stop()
}

// crash claims everything that is due, begins what is asked for, and dies.
func crash(t *testing.T, pool *pgxpool.Pool, begin bool) {
	t.Helper()
	q, err := claim.New(claim.DefaultConfig(), pool, claim.NewMetrics(prometheus.NewRegistry()),
		slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	leases, err := q.Claim(t.Context(), []pipeline.Want{{Destination: "crm", Room: 100}})
	if err != nil || len(leases) == 0 {
		t.Fatalf("claimed %d, %v", len(leases), err)
	}
	if begin {
		for i := range leases {
			if held, err := q.Begin(t.Context(), &leases[i]); err != nil || !held {
				t.Fatalf("Begin = %t, %v", held, err)
			}
		}
	}
	exec(t, pool, `update outbox set locked_until = now() - interval '1 second' where locked_until is not null`)
}

// Workers die again and again with messages that they have not begun: each of those is sent, however few attempts it
// has.
func TestCrashLoopKillsNoMessageThatWasNeverSent(t *testing.T) {
	pool := pgtest.New(t)
	url, keys := counting(t, 0)
	insert(t, pool, 8)
	for range 10 {
		crash(t, pool, false)
	}
	run(t, pool, hook(t, url, "attempts: 2"), claim.DefaultConfig(), prometheus.NewRegistry())
	until(t, pool, 8, `select count(*) from outbox where status = 'sent' and attempts = 1 and lost_leases = 10`)
	if n := len(keys()); n != 8 {
		t.Errorf("%d messages arrived; want 8", n)
	}
}

// A message that kills its worker each time is begun as often as attempts allow, and no more.
func TestMessageThatKillsItsWorkersIsDead(t *testing.T) {
	pool := pgtest.New(t)
	url, keys := counting(t, 0)
	insert(t, pool, 1)
	crash(t, pool, false) // the first attempt is not on record
	crash(t, pool, true)
	crash(t, pool, true)
	run(t, pool, hook(t, url, "attempts: 2"), claim.DefaultConfig(), prometheus.NewRegistry())
	until(t, pool, 1, `select count(*) from outbox where status = 'dead' and attempts = 2
		and last_error like 'given up before attempt 3: only 2 are allowed, and its workers died%'`)
	if n := len(keys()); n != 0 {
		t.Errorf("%d messages arrived; want none", n)
	}
}

// A node that dies with hundreds of messages in its hands: all of them are delivered by another one when the lease
// ends, none of which has lost an attempt.
func TestDeadNodeIsTakenOver(t *testing.T) {
	const messages = 300
	pool := pgtest.New(t)
	url, keys := counting(t, 0)
	insert(t, pool, messages)
	cfg := claim.DefaultConfig()
	cfg.Lease = 3 * time.Second
	dead, err := claim.New(cfg, pool, claim.NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	leases, err := dead.Claim(t.Context(), []pipeline.Want{{Destination: "crm", Room: messages}})
	if err != nil || len(leases) != messages {
		t.Fatalf("claimed %d, %v", len(leases), err)
	}
	run(t, pool, hook(t, url), claim.DefaultConfig(), prometheus.NewRegistry())
	until(t, pool, messages, `select count(*) from outbox where status = 'sent' and attempts = 1 and lost_leases = 1`)
	if n := len(keys()); n != messages {
		t.Errorf("%d messages arrived; want %d", n, messages)
	}
}
