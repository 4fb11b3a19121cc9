package deliver_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline/claim"
	"sluice.example/sluice/pipeline/deliver"
)

// node is one process's claim and deliver, on a database.
func node(t *testing.T, pool *pgxpool.Pool, ds deliver.Destinations) (d *deliver.Dispatcher, stop func()) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	q, err := claim.New(claim.DefaultConfig(), pool, claim.NewMetrics(prometheus.NewRegistry()), log)
	if err != nil {
		t.Fatal(err)
	}
	cfg := deliver.DefaultConfig()
	cfg.PollInterval = 50 * time.Millisecond
	d, err = deliver.New(cfg, ds, q, claim.DefaultConfig().Lease, deliver.NewMetrics(prometheus.NewRegistry()), log)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := d.Run(ctx); err != nil {
			t.Errorf("Run = %v; want nil", err)
		}
	})
	stop = func() { cancel(); running.Wait() }
	t.Cleanup(stop)
	return d, stop
}

func hook(t *testing.T, url string, settings ...string) deliver.Destinations {
	t.Helper()
	ds, err := deliver.Parse("destinations.yaml", fmt.Appendf(nil, "destinations: [{%s}]",
		strings.Join(append(settings, "name: crm", "url: '"+url+"'", "secret_env: S", "allow_private: true"), ", ")),
		func(string) (string, bool) { return "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", true })
	if err != nil {
		t.Fatal(err)
	}
	return ds
}

func insert(t *testing.T, pool *pgxpool.Pool, n int) {
	t.Helper()
	exec(t, pool, `insert into outbox (tenant_id, type, dedupe_key, destination, payload, rule_id)
		select 1, 'welcome', gen_random_uuid()::text, 'crm', jsonb_build_object('i', i), 'welcome'
		    from generate_series(1, $1) i`, n)
}

func exec(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// until repeats a change and a count until the count is n.
func until(t *testing.T, pool *pgxpool.Pool, n int, count string, change ...string) {
	t.Helper()
	var got int
	pgtest.Eventually(t, fmt.Sprintf("%s = %d", count, n), func() bool {
		for _, sql := range change {
			exec(t, pool, sql)
		}
		if err := pool.QueryRow(t.Context(), count).Scan(&got); err != nil {
			t.Fatal(err)
		}
		return got == n
	}, func() any { return got })
}

// soon makes what waits for its next attempt due.
const soon = `update outbox set run_after = now() where status = 'failed' and run_after > now()
    and locked_until is null`

// A receiver that fails at random, and that sometimes does the work and loses the answer: in its own books every
// message stands, and a repeat has the key of the first.
func TestEveryMessageArrives(t *testing.T) {
	const messages = 300
	pool := pgtest.New(t)
	var mu sync.Mutex
	done := map[string]int{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch rand.IntN(4) {
		case 0:
			w.WriteHeader(503)
			return
		case 1:
			defer panic(http.ErrAbortHandler)
		}
		mu.Lock()
		done[r.Header.Get("Idempotency-Key")]++
		mu.Unlock()
	}))
	t.Cleanup(s.Close)
	insert(t, pool, messages)
	node(t, pool, hook(t, s.URL))
	node(t, pool, hook(t, s.URL))
	// Attempts are given back, so that chance alone does not make a message dead.
	until(t, pool, messages, `select count(*) from outbox where status = 'sent'`, soon, `update outbox set attempts = 1
		where attempts > 2 and locked_until is null`)
	if len(done) != messages {
		t.Errorf("the receiver has %d messages; want %d", len(done), messages)
	}
	var unknown int
	keys := make([]string, 0, len(done))
	for k := range done {
		keys = append(keys, k)
	}
	if err := pool.QueryRow(t.Context(), `select count(*) from unnest($1::text[]) k
		where k::uuid not in (select idempotency_key from outbox)`, keys).Scan(&unknown); err != nil || unknown != 0 {
		t.Errorf("%d keys at the receiver are those of no message (%v)", unknown, err)
	}
}

// The whole life of a message that nobody takes: six attempts, then dead, with the reason and without a lease.
func TestDeadAfterSixAttempts(t *testing.T) {
	pool := pgtest.New(t)
	var mu sync.Mutex
	keys := map[string]int{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		keys[r.Header.Get("Idempotency-Key")]++
		mu.Unlock()
		http.Error(w, "out of order", 500)
	}))
	t.Cleanup(s.Close)
	insert(t, pool, 1)
	node(t, pool, hook(t, s.URL))
	until(t, pool, 1, `select count(*) from outbox where status = 'dead' and attempts = 6 and finished_at is not null
		and lease_token is null
		and last_error = 'HTTP 500: out of order (attempt 6 of 6)'`, soon)
	mu.Lock()
	defer mu.Unlock()
	if len(keys) != 1 {
		t.Errorf("keys at the receiver: %v; want one", keys)
	}
	for key, n := range keys {
		if n != 6 {
			t.Errorf("%d requests with key %s; want 6", n, key)
		}
	}
}

// A node that stops gives back what it did not send; another one goes on at once, and no lease is waited for.
func TestStopHandsOver(t *testing.T) {
	const messages = 400
	pool := pgtest.New(t)
	entered, release := make(chan struct{}, messages), make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		entered <- struct{}{}
		<-release
	}))
	t.Cleanup(s.Close)
	insert(t, pool, messages)
	_, stop := node(t, pool, hook(t, s.URL))
	for range 64 {
		<-entered
	}
	var stopping sync.WaitGroup
	stopping.Go(stop)
	until(t, pool, messages-64, `select count(*) from outbox where locked_until is null and attempts = 0`)
	close(release)
	stopping.Wait()
	until(t, pool, 64, `select count(*) from outbox where status = 'sent' and attempts = 1`)
	node(t, pool, hook(t, s.URL))
	until(t, pool, messages, `select count(*) from outbox where status = 'sent' and attempts = 1`)
}

// An idle node is woken by a nudge.
func TestNudge(t *testing.T) {
	pool := pgtest.New(t)
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(s.Close)
	d, _ := node(t, pool, hook(t, s.URL))
	insert(t, pool, 1)
	d.Nudge()
	until(t, pool, 1, `select count(*) from outbox where status = 'sent'`)
}

// A receiver that takes some messages a second, and answers 429 or 503 with Retry-After otherwise: all of them
// arrive at about its rate, and none loses an attempt.
func TestRateLimitIsSurvived(t *testing.T) {
	for _, c := range []struct {
		name, kind string
		status     int
	}{{"webhook 429", "webhook", 429}, {"webhook 503", "webhook", 503}, {"slack 429", "slack", 429}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			const messages, perSecond = 200, 20
			limit := rate.NewLimiter(perSecond, perSecond)
			var refused atomic.Int32
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if !limit.Allow() {
					refused.Add(1)
					w.Header().Set("Retry-After", "1")
					w.WriteHeader(c.status)
				}
			}))
			t.Cleanup(s.Close)
			pool := pgtest.New(t)
			insert(t, pool, messages)
			ds := hook(t, s.URL)
			if c.kind == "slack" {
				var err error
				ds, err = deliver.Parse("d",
					[]byte("destinations: [{name: crm, type: slack, url_env: U, allow_private: true}]"),
					func(string) (string, bool) { return s.URL + "/services/x", true })
				if err != nil {
					t.Fatal(err)
				}
			}
			began := time.Now()
			node(t, pool, ds)
			until(t, pool, messages, `select count(*) from outbox where status = 'sent' and attempts = 1`)
			took, ideal := time.Since(began), time.Duration(messages-perSecond)*time.Second/perSecond
			t.Logf("%d messages in %s, at best %s; %d requests were refused", messages, took, ideal, refused.Load())
			if took > 3*ideal {
				t.Errorf("%d messages took %s; at best it is %s", messages, took, ideal)
			}
			if n := value(t, pool, `select count(*)::text from outbox_attempts`); n != "0" {
				t.Errorf("%s attempts that failed are on record; want none", n)
			}
		})
	}
}

// value returns the one text that a query selects.
func value(t *testing.T, pool *pgxpool.Pool, sql string) (s string) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), sql).Scan(&s); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return s
}
