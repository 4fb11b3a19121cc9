package main

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"sluice.example/sluice/internal/pgtest"
)

// The books of a process whose counters are set by hand, on a real database.
func TestBooks(t *testing.T) {
	pool := pgtest.New(t)
	exec := func(sql string) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	const eventSQL = `insert into events (tenant_id, event_id, event_name, occurred_at, received_at) values `
	const outboxSQL = `insert into outbox (tenant_id, type, dedupe_key, destination, payload, status, rule_id, locked_until) values `
	exec(eventSQL + `(1, gen_random_uuid(), 'before', now(), now() - interval '1 minute')`)
	exec(outboxSQL + `(1, 't', 'before', 'd', '{}', 'pending', 'r', null)`)

	reg := prometheus.NewRegistry()
	add := func(name string, n float64, labels prometheus.Labels) {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: "h", ConstLabels: labels})
		reg.MustRegister(c)
		c.Add(n)
	}
	var b books
	server := httptest.NewServer(&b)
	defer server.Close()
	if status, _, errOut := runCommand(t, nil, "books", "--admin", server.URL); status != 1 || !strings.Contains(errOut, "starting") {
		t.Errorf("before the database is ready: status %d, %q", status, errOut)
	}
	if err := b.begin(t.Context(), reg, pool, map[string]int32{"default": 1, "acme": 2}); err != nil {
		t.Fatal(err)
	}
	one := prometheus.Labels{"tenant": "1"}
	add("pipeline_ingest_received_events_total", 10, one)
	add("pipeline_ingest_rejected_events_total", 1, prometheus.Labels{"tenant": "1", "reason": "a"})
	add("pipeline_ingest_rejected_events_total", 2, prometheus.Labels{"tenant": "1", "reason": "b"})
	add("pipeline_ingest_refused_events_total", 3, prometheus.Labels{"tenant": "1", "cause": "full"})
	add("pipeline_copyin_stored_events_total", 2, one)
	add("pipeline_copyin_duplicate_events_total", 1, one)
	add("pipeline_copyin_quarantined_events_total", 1, one)
	add("pipeline_evaluate_decided_messages_total", 4, prometheus.Labels{"tenant": "1", "rule": "x/y"})
	add("pipeline_evaluate_suppressed_total", 7, prometheus.Labels{"rule": "x/y", "reason": "cap"})
	exec(eventSQL + `(1, gen_random_uuid(), 'a', now(), clock_timestamp()), (1, '0190163d-8694-739b-aea5-966c26f8ad91', 'b', now(), clock_timestamp())`)
	exec(outboxSQL + `(1, 't', 'a', 'd', '{}', 'sent', 'r', null), (1, 't', 'b', 'd', '{}', 'failed', 'r', now() + interval '1 hour'),
		(1, 't', 'c', 'd', '{}', 'pending', 'r', now() - interval '1 hour'), (1, 't', 'd', 'd', '{}', 'dead', 'r', null), (1, 't', 'e', 'd', '{}', 'skipped', null, null)`)

	status, out, errOut := runCommand(t, nil, "books", "--admin", strings.TrimPrefix(server.URL, "http://"))
	for _, want := range []string{
		"tenant 1 default", "tenant 2 acme", "received 10 = stored 2 + duplicate 1 + rejected 3 + refused 3 + failed 0 + quarantined 1 + in flight 0",
		"stored 2, of those 0 under", "decided 4 + enqueued 1 = sent 1 + skipped 1 + dead 1 + due 1 + leased 1", "suppressed by rules (all tenants): 7",
	} {
		if status != 0 || !strings.Contains(out, want) {
			t.Errorf("status %d %s; want %q in\n%s", status, errOut, want, out)
		}
	}

	// From a mark on, only what came after it counts, and the sides are not compared.
	_, mark, _ := strings.Cut(out, "--since ")
	mark, _, _ = strings.Cut(mark, "\n")
	exec(eventSQL + `(2, gen_random_uuid(), 'c', now(), clock_timestamp())`)
	status, out, errOut = runCommand(t, nil, "books", "--json", "--admin", server.URL, "--since", mark)
	if status != 0 || strings.Count(strings.Join(strings.Fields(out), ""), `"stored":1`) != 1 || strings.Contains(out, `"sent": 1`) {
		t.Errorf("since %s: status %d %s\n%s", mark, status, errOut, out)
	}
	if status, _, errOut = runCommand(t, nil, "books", "--admin", server.URL, "--since", "yesterday"); status != 1 || !strings.Contains(errOut, "no mark") {
		t.Errorf("since yesterday: status %d, %q", status, errOut)
	}

	// The database holds more than was counted, and an id twice.
	exec(eventSQL + `(1, '0190163d-8694-739b-aea5-966c26f8ad91', 'b', now() - interval '1 hour', clock_timestamp())`)
	status, out, errOut = runCommand(t, nil, "books", "--admin", server.URL)
	if status != 1 || !strings.Contains(out, "DIFFERENCE   stored: -1") || !strings.Contains(out, "DIFFERENCE   twice: 1") || !strings.Contains(errOut, "tenant 1: stored differ by -1") {
		t.Errorf("a double: status %d %s\n%s", status, errOut, out)
	}
}
