package books

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline"
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
	const outboxSQL = `insert into outbox (tenant_id, type, dedupe_key, destination, payload, status, rule_id,
		locked_until) values `
	exec(eventSQL + `(1, gen_random_uuid(), 'before', now(), now() - interval '1 minute')`)
	exec(outboxSQL + `(1, 't', 'before', 'd', '{}', 'pending', 'r', null)`)

	reg := prometheus.NewRegistry()
	add := func(name string, n float64, labels prometheus.Labels) {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: "h", ConstLabels: labels})
		reg.MustRegister(c)
		c.Add(n)
	}
	var b Handler
	server := httptest.NewServer(&b)
	defer server.Close()
	if _, err := Fetch(t.Context(), server.URL, ""); err == nil || !strings.Contains(err.Error(), "starting") {
		t.Errorf("before the database is ready: %v", err)
	}
	fetch := func(since string) (*Answer, string) {
		t.Helper()
		a, err := Fetch(t.Context(), server.URL+"/", since)
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		if err := a.Print(&out); err != nil {
			t.Fatal(err)
		}
		return a, out.String()
	}
	if err := b.Begin(t.Context(), reg, pool, map[string]int32{"default": 1, "acme": 2}, register(t, pool)); err != nil {
		t.Fatal(err)
	}
	one := prometheus.Labels{"tenant": "1"}
	add("sluice_ingest_received_events_total", 10, one)
	add("sluice_ingest_rejected_events_total", 1, prometheus.Labels{"tenant": "1", "reason": "a"})
	add("sluice_ingest_rejected_events_total", 2, prometheus.Labels{"tenant": "1", "reason": "b"})
	add("sluice_ingest_refused_events_total", 3, prometheus.Labels{"tenant": "1", "cause": "full"})
	add("sluice_copyin_stored_events_total", 2, one)
	add("sluice_copyin_duplicate_events_total", 1, one)
	add("sluice_copyin_quarantined_events_total", 1, one)
	add("sluice_evaluate_decided_messages_total", 4, prometheus.Labels{"tenant": "1", "rule": "x/y"})
	add("sluice_evaluate_suppressed_total", 7, prometheus.Labels{"rule": "x/y", "reason": "cap"})
	exec(eventSQL +
		`(1, gen_random_uuid(), 'a', now(), clock_timestamp()),
		(1, '0190163d-8694-739b-aea5-966c26f8ad91', 'b', now(), clock_timestamp())`)
	exec(outboxSQL + `(1, 't', 'a', 'd', '{}', 'sent', 'r', null),
		(1, 't', 'b', 'd', '{}', 'failed', 'r', now() + interval '1 hour'),
		(1, 't', 'c', 'd', '{}', 'pending', 'r', now() - interval '1 hour'),
		(1, 't', 'd', 'd', '{}', 'dead', 'r', null),
		(1, 't', 'e', 'd', '{}', 'skipped', null, null)`)

	answer, out := fetch("")
	for _, want := range []string{
		"tenant 1 default", "tenant 2 acme", "received 10 = stored 2 + duplicate 1 + rejected 3 + refused 3 + failed 0 + " +
			"quarantined 1 + in flight 0",
		"stored 2, of which 0 under", "decided 4 + enqueued 1 = sent 1 + skipped 1 + dead 1 + due 1 + leased 1",
		"suppressed by rules (all tenants): 7",
	} {
		if answer.Err() != nil || !strings.Contains(out, want) {
			t.Errorf("%v; want %q in\n%s", answer.Err(), want, out)
		}
	}

	// From a mark on, only what came after it counts, and the sides are not compared.
	exec(eventSQL + `(2, gen_random_uuid(), 'c', now(), clock_timestamp())`)
	later, _ := fetch(answer.Mark)
	first, two := later.Tenants[0], later.Tenants[1]
	if later.Err() != nil || first.Database.Stored != 0 || two.Database.Stored != 1 || first.Database.Sent != 0 ||
		two.Differences.Stored != nil {
		t.Errorf("since %s: %v\n%+v", answer.Mark, later.Err(), later)
	}
	if _, err := Fetch(t.Context(), server.URL, "yesterday"); err == nil ||
		!strings.Contains(err.Error(), "is not a mark") {
		t.Errorf("since yesterday: %v", err)
	}

	// The database holds more than was counted, and an id twice.
	exec(eventSQL + `(1, '0190163d-8694-739b-aea5-966c26f8ad91', 'b', now() - interval '1 hour', clock_timestamp())`)
	answer, out = fetch("")
	if err := answer.Err(); err == nil || err.Error() != "tenant 1: twice differ by 1" ||
		!strings.Contains(out, "DIFFERENCE   stored: -1") || !strings.Contains(out, "DIFFERENCE   twice: 1") {
		t.Errorf("a double: %v\n%s", err, out)
	}
}

// Each equation holds for what it is made of, and finds each line that is off by one.
func TestEquations(t *testing.T) {
	p := Process{Received: 28, Rejected: 1, Refused: 2, InFlight: 3, Failed: 4, Stored: 5, Duplicate: 6, Quarantined: 7}
	if p.Difference() != 0 {
		t.Errorf("%+v: difference %d", p, p.Difference())
	}
	for _, line := range []*int64{&p.Received, &p.Rejected, &p.Refused, &p.InFlight, &p.Failed, &p.Stored, &p.Duplicate,
		&p.Quarantined} {
		if *line++; p.Difference() == 0 {
			t.Errorf("%+v: no difference", p)
		}
		*line--
	}
	d := Database{Decided: 10, Enqueued: 5, Due: 1, Leased: 2, Sent: 3, Skipped: 4, Dead: 5}
	if d.Difference() != 0 {
		t.Errorf("%+v: difference %d", d, d.Difference())
	}
	for _, line := range []*int64{&d.Decided, &d.Enqueued, &d.Due, &d.Leased, &d.Sent, &d.Skipped, &d.Dead} {
		if *line++; d.Difference() == 0 {
			t.Errorf("%+v: no difference", d)
		}
		*line--
	}
}

// The sides are compared where this process alone has written, and not where another one may have.
func TestOtherWriters(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	exec := func(sql string) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	const processSQL = `insert into sluice_processes (process_id, writes, started_at, seen_at, ended_at)
		values (gen_random_uuid(), `
	var b Handler
	who := map[string]int32{"default": 1}
	if err := b.Begin(t.Context(), prometheus.NewRegistry(), pool, who, register(t, pool)); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(&b)
	defer server.Close()
	// Something is there that this process did not count.
	exec(`insert into events (tenant_id, event_id, event_name, occurred_at, received_at)
		values (1, gen_random_uuid(), 'x', now(), clock_timestamp())`)
	check := func(what string, others int) {
		t.Helper()
		a, err := Fetch(t.Context(), server.URL, "")
		if err != nil {
			t.Fatal(err)
		}
		if a.OtherWriters != others || (a.Err() != nil) != (others == 0) {
			t.Errorf("%s: %d other writers, %v; want %d, and the sides compared if there are none", what, a.OtherWriters,
				a.Err(), others)
		}
		var out strings.Builder
		if err := a.Print(&out); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(out.String(), "DIFFERENCE") != (others == 0) ||
			strings.Contains(out.String(), "Other processes") != (others > 0) {
			t.Errorf("%s:\n%s", what, out.String())
		}
	}
	check("alone", 0)
	exec(processSQL + `true, now() - interval '3 hours', now() - interval '1 hour', now() - interval '1 hour')`)
	check("beside one that ended before", 0)
	exec(processSQL + `true, now() - interval '3 hours', now() - interval '1 hour', null)`)
	check("beside one that was killed long before", 0)
	exec(processSQL + `false, now(), now(), null)`)
	check("beside one that only delivers", 0)
	exec(processSQL + `true, now() - interval '3 hours', now() - interval '8 seconds', null)`)
	check("beside one that was killed a moment before", 1)
	exec(processSQL + `true, now() - interval '3 hours', now() + interval '1 second', now() + interval '1 second')`)
	check("beside one that ended meanwhile", 2)
	exec(processSQL + `true, now(), now(), null)`)
	check("beside one that runs", 3)
}

// register makes the row of this process, as operate/nodes does.
func register(t *testing.T, pool *pgxpool.Pool) pipeline.UUID {
	t.Helper()
	self := pipeline.NewUUIDv4()
	const registerSQL = `insert into sluice_processes (process_id, writes) values ($1, true)`
	if _, err := pool.Exec(t.Context(), registerSQL, self); err != nil {
		t.Fatal(err)
	}
	return self
}
