package console

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/operate/nodes"
	"sluice.example/sluice/pipeline/rules"
)

const anEvent = "0193a000-0000-7000-8000-000000000009"

// aShop is a database with an event of two tenants, a rule that listens to it and its message with two attempts.
func aShop(t *testing.T) (*pgxpool.Pool, Sources) {
	t.Helper()
	pool := pgtest.New(t)
	execute(t, pool, `insert into events (event_id, tenant_id, event_name, occurred_at, received_at, user_id, properties)
		select $1, tenant, 'payment_failed', now(), now(), 'u-7', '{"amount": 120, "email": "ann@example.com"}'
		from generate_series(1, 2) tenant`, anEvent)
	execute(t, pool, `insert into outbox (tenant_id, type, rule_id, rule_hash, dedupe_key, destination, payload,
			subject_key, event_id, status, attempts, finished_at, created_at)
		values (1, 'payment-failed', 's/payment-failed', 'abc', 'k', 'crm', '{"email":"ann@example.com"}', 'u-7', $1, 'sent',
			2, now(), now())`, anEvent)
	execute(t, pool, `insert into outbox_attempts (message_id, attempt, started_at, latency_seconds, status, http_status,
			error)
		select message_id, n, now(), 0.1, case n when 1 then 'failed' else 'sent' end,
			case n when 1 then 503 else 200 end, $1
		from outbox, generate_series(1, 2) n`, hostile)
	execute(t, pool, `insert into rule_status (rule_id, kind, state, owner, response, hash, seen_at)
		values ('s/payment-failed', 'event', 'active', 'me', '', 'abc', now())`)
	execute(t, pool, `insert into rule_hours select 's/payment-failed', date_trunc('hour', now()), 10, 3, 1, 1, 1, 0`)
	file := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(file, []byte(`version: 1
ruleset: s
rules:
  - id: payment-failed
    owner: me
    on: payment_failed
    response: https://wiki/payments
    match: event.properties.amount > 100
    send_to: crm
    dedupe_key: '"k"'
    subject: event.user_id
    payload: {user: event.user_id}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	known := rules.DefaultOptions()
	known.Destinations = []string{"crm"}
	set, err := rules.Load(file, known)
	if err != nil {
		t.Fatal(err)
	}
	return pool, Sources{DB: pool, Rules: func() (*rules.Set, error) { return set, nil },
		Tenants: func() map[string]int32 { return map[string]int32{"shop": 1, "other": 2} }}
}

// An event's page tells what each rule made of it, its message, and both attempts, with personal fields by role.
func TestTracePage(t *testing.T) {
	_, src := aShop(t)
	b := as(t, Operator, DefaultConfig(), src)
	page := b.get("/events/" + anEvent + "?tenant=1")
	wants(t, page, "payment_failed", "s/payment-failed", "matched", "attempt 1", "HTTP 503", "attempt 2", "sent at",
		"&lt;img src=x", masked, "120")
	if strings.Contains(page, hostile) || strings.Contains(page, "ann@example.com") {
		t.Errorf("the page has markup or a masked value in it")
	}
	if status, body := b.ask("/events/" + anEvent); status != http.StatusSeeOther {
		t.Errorf("an event of two tenants: %d\n%s\nwant a way to the choice", status, body)
	}
	wants(t, b.get("/v1/events/"+anEvent), "event of tenant 1", "event of tenant 2")
	viewer := as(t, Viewer, DefaultConfig(), src)
	var answer map[string]any
	viewer.json("/v1/events/"+anEvent+"?tenant=1", &answer)
	text := viewer.get("/v1/events/" + anEvent + "?tenant=1")
	if strings.Contains(text, "amount") || answer["events"] == nil {
		t.Errorf("a viewer gets %s", text)
	}
	status, body := b.ask("/events/0193a000-0000-7000-8000-000000000010?tenant=1")
	if status != http.StatusNotFound || !strings.Contains(body, "never arrived") {
		t.Errorf("an event that is nowhere: %d\n%s", status, body)
	}
}

// A search leads to the one page, or to a choice.
func TestSearch(t *testing.T) {
	pool, src := aShop(t)
	b := as(t, Viewer, DefaultConfig(), src)
	var id string
	if err := pool.QueryRow(t.Context(), "select message_id::text from outbox").Scan(&id); err != nil {
		t.Fatal(err)
	}
	for q, want := range map[string]string{
		id: "messages/" + id, "s/payment-failed": "rules/s/payment-failed", "crm": "messages?destination=crm",
		"u-7": "messages?subject=u-7",
	} {
		r, err := b.client.Get(b.url + "/search?q=" + q)
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		if got := r.Header.Get("Location"); r.StatusCode != http.StatusSeeOther || !strings.HasSuffix(got, want) {
			t.Errorf("a search for %s: %d to %q, want %q", q, r.StatusCode, got, want)
		}
	}
	wants(t, b.get("/search?q="+anEvent), "event of tenant 1", "event of tenant 2")
	wants(t, b.get("/search?q=%3Cimg%20src=x%3E"), "Nothing here", "&lt;img")
	wants(t, b.get("/search"), "Nothing here")
}

// The rules are those on record; one shows its hours, and looks at an event that somebody gives.
func TestRulePages(t *testing.T) {
	_, src := aShop(t)
	b := as(t, Viewer, DefaultConfig(), src)
	wants(t, b.get("/rules"), "s/payment-failed", "active")
	wants(t, b.get("/rules/s/payment-failed"), "10 events looked at", "<rect", "Test with an event")
	for event, want := range map[string]string{
		`{"event":"payment_failed","user_id":"u","properties":{"amount":120}}`: "matched",
		`{"event":"payment_failed","user_id":"u","properties":{"amount":7}}`:   "did not match",
		`{"event":"payment_failed","user_id":"u"}`:                             "could not decide",
		`{"event":"signup"}`: "does not listen",
	} {
		r := strings.NewReplacer(`{`, "%7B", `}`, "%7D", `"`, "%22")
		wants(t, b.get("/rules/s/payment-failed?event="+r.Replace(event)), want)
	}
	for event, want := range map[string]string{"%7B": "unexpected EOF", "%7B%22nam%22:1%7D": "nam", "%7B%7D": "no name"} {
		if status, body := b.ask("/rules/s/payment-failed?event=" + event); status != 400 || !strings.Contains(body, want) {
			t.Errorf("the event %s: %d\n%s\nwant 400 and %s", event, status, body, want)
		}
	}
	if status, _ := b.ask("/rules/nothing"); status != http.StatusNotFound {
		t.Errorf("a rule that is not there: %d, want 404", status)
	}
}

func TestNodesPage(t *testing.T) {
	pool := pgtest.New(t)
	execute(t, pool, `insert into sluice_processes (process_id, writes, name, address, version, roles, seen_at)
		values (gen_random_uuid(), true, $1, '127.0.0.1:9090', 'v1', '{ingest}', now() - interval '1 hour')`, hostile)
	b := onDatabase(t, pool)
	page := b.get("/nodes")
	wants(t, page, "&lt;img src=x", "was killed", "ingest")
	var answer nodes.Answer
	if b.json("/v1/nodes", &answer); len(answer.Nodes) != 1 || answer.Nodes[0].Running {
		t.Errorf("the nodes are %+v", answer.Nodes)
	}
}
