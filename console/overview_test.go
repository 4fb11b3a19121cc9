package console

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"sluice.example/sluice/internal/history"
	"sluice.example/sluice/internal/pgtest"
)

// The overview says in sentences what is wrong, and shows what the process did.
func TestOverview(t *testing.T) {
	pool := pgtest.New(t)
	execute(t, pool, `insert into outbox (tenant_id, type, dedupe_key, destination, payload, status, finished_at)
		values (1, 'x', 'k', $1, '{}', 'dead', now())`, hostile)
	reg := prometheus.NewRegistry()
	received := prometheus.NewCounter(prometheus.CounterOpts{Name: "sluice_ingest_received_events_total"})
	limited := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "sluice_buffer_limited_by"}, []string{"by"})
	reg.MustRegister(received, limited)
	limited.WithLabelValues("commit").Set(1)
	past := history.New(reg, Series...)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- past.Run(ctx) }()
	defer func() { cancel(); <-done }()
	pgtest.Eventually(t, "two points are there", func() bool {
		received.Add(10)
		_, values := past.Series("sluice_ingest_received_events_total", nil)
		return anyKnown(values)
	})
	b := as(t, Viewer, DefaultConfig(), Sources{DB: pool, Metrics: reg, History: past})
	page := b.get("/")
	wants(t, page, "No process with the role ingest runs: no events are taken", "1 messages to &lt;img", "were given up",
		"COMMIT limits the rate", "received", "<polyline")
	if strings.Contains(page, hostile) {
		t.Error("the page has markup of a name in it")
	}
	var o overview
	b.json("/v1/overview", &o)
	if o.Report == nil || len(o.Report.Findings) != 5 || len(o.Rates) != 1 || o.Rates[0].Now == nil {
		t.Errorf("the overview is %+v", o)
	}
	if status, _ := b.post("/logout", nil); status != http.StatusSeeOther {
		t.Errorf("the logout answers %d, want 303", status)
	}
}

// TestOverviewWithoutDatabase: the page is there without PostgreSQL, and says what it lacks.
func TestOverviewWithoutDatabase(t *testing.T) {
	wants(t, as(t, Viewer, DefaultConfig(), Sources{}).get("/"), errNoDatabase.Error())
}

// TestOutage: while PostgreSQL hangs every page answers within the time that design allows; the overview has what was
// found before, and all is there again once PostgreSQL is.
func TestOutage(t *testing.T) {
	proxy := pgtest.NewProxy(t, pgtest.URL(t))
	pool, err := pgxpool.New(t.Context(), proxy.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	c, server, client := serveConsole(t, DefaultConfig(), Sources{DB: pool})
	b := logIn(t, c, server, client, Operator)
	wants(t, b.get("/"), "No process with the role ingest runs")
	proxy.SetBlackHole(true)
	ctx, cancel := context.WithTimeout(t.Context(), 4*patience)
	defer cancel()
	var asked sync.WaitGroup
	for _, row := range c.routes {
		if row.method != http.MethodGet || row.raw != nil {
			continue
		}
		for _, path := range row.paths() {
			asked.Go(func() {
				req, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+path, nil)
				if err != nil {
					t.Error(err)
					return
				}
				start := time.Now()
				r, err := client.Do(req)
				if err != nil {
					t.Errorf("GET %s while PostgreSQL hangs: %v", path, err)
					return
				}
				r.Body.Close()
				t.Logf("%s: %d after %s", path, r.StatusCode, time.Since(start).Round(time.Millisecond))
				fromMemory := row.template == "overview" || row.template == "destinations" || row.template == "nodes"
				if r.StatusCode == http.StatusInternalServerError || fromMemory && r.StatusCode != http.StatusOK {
					t.Errorf("GET %s while PostgreSQL hangs: %d", path, r.StatusCode)
				}
			})
		}
	}
	asked.Wait()
	pgtest.Eventually(t, "the overview says that PostgreSQL does not answer, and what was known", func() bool {
		page := b.get("/")
		return strings.Contains(page, "PostgreSQL does not answer") && strings.Contains(page, " old") &&
			strings.Contains(page, "No process with the role ingest runs")
	})
	proxy.SetBlackHole(false)
	proxy.Cut()
	pgtest.Eventually(t, "pages are there again", func() bool {
		status, _ := b.ask("/messages")
		page := b.get("/")
		return status == http.StatusOK && !strings.Contains(page, "does not answer")
	})
}

// Destinations are those that are configured, those that messages wait for, and those that nodes have closed.
func TestDestinationPages(t *testing.T) {
	pool := pgtest.New(t)
	execute(t, pool, `insert into outbox (tenant_id, type, dedupe_key, destination, payload, status, last_error, attempts)
		values (1, 'x', 'k', 'crm', '{"email":"ann@example.com"}', 'failed', $1, 3)`, hostile)
	execute(t, pool, `insert into sluice_processes (process_id, writes, name, address, version, roles, state)
		values (gen_random_uuid(), true, 'node-a', '', 'v1', '{deliver}',
			'{"gates": [{"destination": "crm", "open": true}]}')`)
	b := as(t, Viewer, DefaultConfig(), Sources{DB: pool, Destinations: []string{"mail"}})
	wants(t, b.get("/destinations"), "crm", "mail", "Closed by its circuit breaker", "node-a", "not configured here")
	page := b.get("/destinations/crm")
	wants(t, page, "&lt;img src=x", "failed", "Closed by")
	if strings.Contains(page, hostile) || strings.Contains(page, "ann@") {
		t.Error("the page has markup or a payload in it")
	}
	wants(t, b.get("/destinations/mail"), "Open", "None.")
	if status, _ := b.ask("/destinations/nothing"); status != http.StatusNotFound {
		t.Errorf("a destination that is nowhere: %d, want 404", status)
	}
}
