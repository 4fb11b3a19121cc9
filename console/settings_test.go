package console

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"sluice.example/sluice/internal/pgtest"
)

// Operators change settings for a time and with a reason, and see what nodes made of it; viewers only see.
func TestSettingsPage(t *testing.T) {
	pool := pgtest.New(t)
	src := Sources{DB: pool, Changes: pool, Settings: []Setting{
		{Key: "buffer.max-events", Value: "2000", Source: "default", Doc: "events that seal a batch"},
		{Key: "database-url", Value: "postgres://u:xxxxx@h/d", Source: "flag", Doc: "the database"},
	}}
	b := as(t, Operator, DefaultConfig(), src)
	wants(t, b.get("/settings"), "Every setting is as configured", "seconds", "a restart", "postgres://u:xxxxx@h/d")
	set := url.Values{"key": {"buffer.max-events"}, "value": {"500"}, "for": {"1h"}, "why": {hostile}}
	if status, to := b.post("/settings", set); status != http.StatusSeeOther || !strings.HasSuffix(to, "settings") {
		t.Fatalf("a change: %d to %s", status, to)
	}
	execute(t, pool, `insert into sluice_processes (process_id, writes, name, address, version, roles, applied_revision,
			state)
		select gen_random_uuid(), true, name, '', 'v1', '{ingest}', 1, format('{"tuning": {"buffer.max-events":
			{"value": "500", "refused": %s}}}', why)::jsonb from (values ('a', 'null'), ('b', '"too few"')) v(name, why)`)
	page := b.get("/settings")
	wants(t, page, "500", "all nodes", "a: in force", "b: too few", "settings/unset", "&lt;img src=x")
	if strings.Contains(page, hostile) {
		t.Error("the page has markup of a reason in it")
	}
	for field, bad := range map[string]struct {
		value, want string
		status      int
	}{
		"value": {"0", "a whole number from 1", 422}, "key": {"listen", "restart", 422}, "why": {"", "reason", 400},
		"for": {"soon", "for:", 400},
	} {
		wrong := url.Values{}
		for k, v := range set {
			wrong[k] = v
		}
		wrong.Set(field, bad.value)
		if status, body := b.post("/v1/settings", wrong); status != bad.status || !strings.Contains(body, bad.want) {
			t.Errorf("%s = %q: %d\n%s\nwant %d and %s", field, bad.value, status, body, bad.status, bad.want)
		}
	}
	viewer := as(t, Viewer, DefaultConfig(), src)
	page = viewer.get("/settings")
	if strings.Contains(page, "<button>Change") || strings.Contains(page, "settings/unset") {
		t.Error("a viewer is offered changes")
	}
	unset := url.Values{"key": {"buffer.max-events"}}
	if status, _ := b.post("/settings/unset", unset); status != http.StatusSeeOther {
		t.Errorf("unset: %d, want 303", status)
	}
	if status, _ := b.post("/settings/unset", unset); status != http.StatusConflict {
		t.Errorf("unset again: %d, want 409", status)
	}
	wants(t, b.get("/audit?action=set"), "set buffer.max-events", "unset buffer.max-events")
}

// A destination is paused, resumed, probed and tested from its page.
func TestSteerADestination(t *testing.T) {
	pool := pgtest.New(t)
	execute(t, pool, `insert into outbox_destinations values ('crm')`)
	b := as(t, Operator, DefaultConfig(), Sources{DB: pool, Changes: pool, Destinations: []string{"crm"}})
	why := url.Values{"why": {"their deploy"}}
	wants(t, b.get("/destinations/crm"), "destinations/crm/pause", "destinations/crm/test")
	for _, act := range []string{"pause", "probe", "resume"} {
		if status, to := b.post("/destinations/crm/"+act, why); status != 303 || !strings.HasSuffix(to, "destinations/crm") {
			t.Errorf("%s: %d to %s", act, status, to)
		}
		if act == "pause" {
			wants(t, b.get("/destinations/crm"), "Paused by", "their deploy")
		}
	}
	if status, to := b.post("/destinations/crm/test", why); status != 303 || !strings.HasSuffix(to, "messages/1") {
		t.Errorf("test: %d to %s", status, to)
	}
	wants(t, b.get("/messages/1"), "sluice.test")
	for path, want := range map[string]int{"/destinations/cm/pause": 404, "/destinations/crm/burn": 404} {
		if status, _ := b.post(path, why); status != want {
			t.Errorf("POST %s: %d, want %d", path, status, want)
		}
	}
	if status, _ := b.post("/destinations/crm/pause", nil); status != http.StatusBadRequest {
		t.Errorf("a pause without a reason: %d, want 400", status)
	}
	wants(t, b.get("/audit"), "destination.crm.paused", "destination crm")
}
