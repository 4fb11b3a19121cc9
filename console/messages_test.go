package console

import (
	"net/http"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"sluice.example/sluice/internal/pgtest"
)

func execute(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

const hostile = `<img src=x onerror=alert(1)>`

// A list pages through every message that matches, each once, and holds no payload.
func TestMessagesArePaged(t *testing.T) {
	pool := pgtest.New(t)
	execute(t, pool, `insert into outbox (tenant_id, type, dedupe_key, destination, payload, status, finished_at,
			last_error)
		select 1, 'welcome', i::text, case when i % 2 = 0 then 'crm' else 'mail' end, '{"email":"ann@example.com"}', 'dead',
			now(), $1 from generate_series(1, 130) i`, hostile)
	b := onDatabase(t, pool)
	seen := map[int64]bool{}
	query, pages := "messages?destination=crm&status=dead&error=onerror", 0
	for query != "" {
		var list messageList
		b.json("/v1/"+query, &list)
		for _, m := range list.Messages {
			if seen[m.ID] || m.Destination != "crm" || m.Payload != nil && string(m.Payload) != "null" {
				t.Fatalf("the list has %+v; seen before: %v", m, seen[m.ID])
			}
			seen[m.ID] = true
		}
		query = list.Older
		pages++
	}
	if len(seen) != 65 || pages != 2 {
		t.Errorf("%d messages on %d pages; want 65 on 2", len(seen), pages)
	}
	page := b.get("/messages?destination=crm&status=dead")
	wants(t, page, "&lt;img src=x", `<option selected>dead</option>`, "before=", "Older messages")
	if strings.Contains(page, hostile) || strings.Contains(page, "ann@example.com") {
		t.Error("the page has markup or a payload in it")
	}
	wants(t, b.get("/messages?destination=nothing"), "No such messages")
	for query, want := range map[string]string{
		"status=ded": "did you mean &#34;dead&#34;", "older=soon": "older", "tenant=-1": "tenant", "before=x": "before",
	} {
		status, body := b.ask("/messages?" + query)
		if status != http.StatusBadRequest || !strings.Contains(body, want) {
			t.Errorf("%s: %d\n%s\nwant 400 and %s", query, status, body, want)
		}
	}
}

// A message shows its attempts and, by role, its payload.
func TestMessagePage(t *testing.T) {
	pool := pgtest.New(t)
	execute(t, pool, `insert into outbox (tenant_id, type, dedupe_key, destination, payload, headers, status, attempts,
			subject_key, finished_at, last_error)
		values (1, 'welcome', 'k', 'crm', '{"email":"ann@example.com","plan":"pro"}', '{"Authorization":"Bearer 1"}', 'dead',
			1, 'u-1', now(), 'HTTP 503')`)
	execute(t, pool, `insert into outbox_attempts (message_id, attempt, started_at, latency_seconds, status, http_status,
			error)
		select message_id, 1, now(), 0.212, 'dead', 503, $1 from outbox`, hostile)
	var id string
	if err := pool.QueryRow(t.Context(), `select message_id::text from outbox`).Scan(&id); err != nil {
		t.Fatal(err)
	}
	page := onDatabase(t, pool).get("/messages/" + id)
	wants(t, page, "&lt;img src=x", "503", "212ms", "u-1", "an application", masked, "pro")
	for _, secret := range []string{hostile, "ann@example.com", "Bearer 1"} {
		if strings.Contains(page, secret) {
			t.Errorf("the page holds %s", secret)
		}
	}
	viewer := as(t, Viewer, DefaultConfig(), Sources{DB: pool})
	page = viewer.get("/messages/" + id)
	wants(t, page, "Not shown to this role")
	if strings.Contains(page, "pro") && strings.Contains(page, "plan") {
		t.Error("a viewer sees the payload")
	}
	var story messageStory
	viewer.json("/v1/messages/"+id, &story)
	if story.Payload.How != payloadsHidden || story.Payload.Value != nil || len(story.Tries) != 1 {
		t.Errorf("a viewer gets %+v", story)
	}
	status, body := viewer.ask("/messages/99999")
	if status != http.StatusNotFound || !strings.Contains(body, "retain.outbox") {
		t.Errorf("a message that is not there: %d\n%s", status, body)
	}
	if status, _ := viewer.ask("/messages/x"); status != http.StatusBadRequest {
		t.Errorf("an id that is none: %d, want 400", status)
	}
}

// Quarantine is grouped by reason, and shows one event by role.
func TestQuarantinePages(t *testing.T) {
	pool := pgtest.New(t)
	const id = "0193a000-0000-7000-8000-000000000001"
	execute(t, pool, `insert into quarantine (tenant_id, event_id, occurred_at, event, sqlstate, reason)
		select 1, gen_random_uuid(), now(), '{"event":"x"}', '22P05', 'unsupported' from generate_series(1, 60)`)
	execute(t, pool, `insert into quarantine (tenant_id, event_id, occurred_at, event, sqlstate, reason)
		values (2, $1, now(), '{"event":"x","properties":{"email":"ann@example.com"}}', '22003', $2)`, id, hostile)
	b := onDatabase(t, pool)
	var q quarantineList
	b.json("/v1/quarantine", &q)
	if len(q.Groups) != 2 || q.Groups[0].Events != 60 || q.Groups[1].Tenant != 2 ||
		len(q.Events) != rowsOfAPage || q.Capped {
		t.Errorf("quarantine is %+v with %d events", q.Groups, len(q.Events))
	}
	page := b.get("/quarantine?tenant=2&sqlstate=22003")
	wants(t, page, "&lt;img src=x", id, "Show all")
	one := b.get("/quarantine/" + id + "?tenant=2")
	wants(t, one, "22003", masked)
	if strings.Contains(page+one, hostile) || strings.Contains(one, "ann@example.com") {
		t.Error("a page has markup or a masked value in it")
	}
	wants(t, as(t, Viewer, DefaultConfig(), Sources{DB: pool}).get("/quarantine/"+id), "Not shown to this role")
	if status, _ := b.ask("/quarantine/" + id + "?tenant=1"); status != http.StatusNotFound {
		t.Errorf("an event of another tenant: %d, want 404", status)
	}
	execute(t, pool, `delete from quarantine`)
	wants(t, b.get("/quarantine"), "Nothing is in quarantine")
}
