package console

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"sluice.example/sluice/internal/pgtest"
)

// One message is retried by its page, with a reason, and the audit has it.
func TestChangeAMessage(t *testing.T) {
	pool := pgtest.New(t)
	execute(t, pool, `insert into outbox (tenant_id, type, dedupe_key, destination, payload, status, finished_at)
		values (1, 'x', 'k', 'crm', '{}', 'dead', now())`)
	src := Sources{DB: pool, Changes: pool}
	b := as(t, Operator, DefaultConfig(), src)
	wants(t, b.get("/messages/1"), "messages/1/retry", "messages/1/discard")
	status, body := b.post("/messages/1/retry", nil)
	if status != http.StatusBadRequest || !strings.Contains(body, "reason") {
		t.Errorf("without a reason: %d\n%s", status, body)
	}
	why := url.Values{"why": {hostile}}
	status, to := b.post("/messages/1/retry", why)
	if status != http.StatusSeeOther || !strings.HasSuffix(to, "messages/1") {
		t.Errorf("retry: %d to %s", status, to)
	}
	if status, body := b.post("/v1/messages/1/retry", why); status != http.StatusConflict {
		t.Errorf("retry of one that waits: %d\n%s", status, body)
	}
	for path, want := range map[string]int{"/messages/9/retry": 404, "/messages/x/retry": 400, "/messages/1/burn": 404} {
		if status, _ := b.post(path, why); status != want {
			t.Errorf("POST %s: %d, want %d", path, status, want)
		}
	}
	pgtest.Until(t, pool, `select status, redrives from outbox`, "pending", int32(1))
	page := b.get("/audit?actor=ann&action=retry")
	wants(t, page, "message 1", "&lt;img src=x", "console", "dead")
	if strings.Contains(page, hostile) {
		t.Error("the page has markup of a reason in it")
	}
	wants(t, b.get("/audit?actor=bob"), "Nothing is on record")

	viewer := as(t, Viewer, DefaultConfig(), src)
	if strings.Contains(viewer.get("/messages/1"), "messages/1/discard") {
		t.Error("a viewer is offered what it may not do")
	}
	if status, _ := viewer.post("/messages/1/discard", why); status != http.StatusForbidden {
		t.Errorf("a viewer discards: %d, want 403", status)
	}
	cfg := DefaultConfig()
	cfg.ReadOnly = true
	readOnly := as(t, Operator, cfg, src)
	if status, _ := readOnly.post("/messages/1/discard", why); status != http.StatusServiceUnavailable {
		t.Errorf("a read-only console discards: %d, want 503", status)
	}
}

// All that a filter finds is planned, confirmed by its number, and done as a job.
func TestBulk(t *testing.T) {
	pool := pgtest.New(t)
	execute(t, pool, `insert into outbox (tenant_id, type, dedupe_key, destination, payload, status, finished_at)
		select 1, 'x', i::text, case when i <= 30 then 'crm' else 'mail' end, '{"email":"ann@example.com"}', 'dead', now()
		from generate_series(1, 40) i`)
	c, server, client := serveConsole(t, DefaultConfig(), Sources{DB: pool, Changes: pool})
	b := logIn(t, c, server, client, Operator)
	wants(t, b.get("/messages?destination=crm&status=dead"), "Retry what the filter finds", `value="crm"`)
	form := url.Values{"action": {"retry"}, "destination": {"crm"}, "status": {"dead"}}
	status, page := b.post("/plans", form)
	if status != http.StatusOK || strings.Contains(page, "ann@example.com") {
		t.Fatalf("the plan: %d\n%s", status, page)
	}
	wants(t, page, "Retry 30 messages", "30 dead to", "Write 30 to confirm")
	_, answer := b.post("/v1/plans", form)
	var planned struct {
		Plan     string
		Messages int
	}
	if err := json.Unmarshal([]byte(answer), &planned); err != nil || planned.Messages != 30 {
		t.Fatalf("the plan as JSON is %s, %v", answer, err)
	}
	start := url.Values{"plan": {planned.Plan}, "rate": {"1000"}, "why": {"their deploy"}, "confirm": {"29"}}
	if status, body := b.post("/jobs", start); status != http.StatusBadRequest || !strings.Contains(body, "30") {
		t.Errorf("with a wrong number: %d\n%s", status, body)
	}
	start.Set("confirm", "30")
	status, to := b.post("/jobs", start)
	if status != http.StatusSeeOther || !strings.HasSuffix(to, "jobs/1") {
		t.Fatalf("the job: %d to %s", status, to)
	}
	if status, again := b.post("/jobs", start); status != http.StatusSeeOther || again != to {
		t.Errorf("a double click: %d to %s, want the job that it is already, %s", status, again, to)
	}
	wants(t, b.get("/jobs/1"), "waiting", "0 of 30", "jobs/1/pause", "their deploy")
	for _, step := range []struct{ do, state string }{{"pause", "paused"}, {"resume", "waiting"}} {
		if status, _ := b.post("/jobs/1/"+step.do, nil); status != http.StatusSeeOther {
			t.Errorf("%s: %d, want 303", step.do, status)
		}
		wants(t, b.get("/jobs/1"), step.state)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- c.Work(ctx) }()
	defer func() { cancel(); <-done }()
	pgtest.Until(t, pool, `select state, done from operator_jobs`, "done", int64(30))
	pgtest.Until(t, pool, `select count(*) from outbox where status = 'dead' and destination = 'mail'`, int64(10))
	wants(t, b.get("/jobs"), "done", "their deploy")
	if status, _ := b.post("/jobs/1/cancel", nil); status != http.StatusConflict {
		t.Errorf("a job that is done is cancelled: %d, want 409", status)
	}
	if status, _ := b.post("/jobs/7/cancel", nil); status != http.StatusNotFound {
		t.Errorf("a job that is not there is cancelled: %d, want 404", status)
	}
	wants(t, b.get("/audit"), "job paused", "job resumed", "retry")
}
