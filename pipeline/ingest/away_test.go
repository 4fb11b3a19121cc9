package ingest

import (
	"strconv"
	"strings"
	"testing"

	"sluice.example/sluice/internal/tenants"
)

// TestAwayIsSaidBeforeTheBodyIsRead: while the database is known to be away, nothing of a request is decoded, and it is
// told when to come back as the buffer says. What need not be stored at once still goes to memory.
func TestAwayIsSaidBeforeTheBodyIsRead(t *testing.T) {
	m := &memory{away: true}
	d := open(t, m, tenants.Set{}, nil)
	const event = `{"event_name":"x"}`
	for _, tt := range []struct {
		path, body string
		headers    []string
		status     int
	}{
		{"/v1/events", event, nil, 503},
		{"/v1/events", `[`, nil, 503},
		{"/v1/cloudevents", event, []string{"Content-Type", "application/cloudevents+json"}, 503},
		{"/v1/batch", `{"batch":[]}`, []string{"Authorization", "Basic a2V5Og=="}, 429}, // waits without using up its tries
		{"/v1/events", event, []string{"Prefer", "respond-async"}, 202},
	} {
		r := d.do("POST", tt.path, strings.NewReader(tt.body), tt.headers...)
		if r.status != tt.status || tt.status != 202 && r.header.Get("Retry-After") != "42" {
			t.Errorf("%s %s: %d %s, Retry-After %q; want %d and 42", tt.path, tt.body, r.status, r.body,
				r.header.Get("Retry-After"), tt.status)
		}
	}
	books(t, d, "1", 1, 0, 0)
}

// TestCrowdedComesBackWhenThereIsRoom: the wait of those who find all places taken follows the buffer.
func TestCrowdedComesBackWhenThereIsRoom(t *testing.T) {
	for name, tt := range map[string]struct {
		m      *memory
		status int
		wait   int
	}{"full": {&memory{full: true}, 429, 7}, "away": {&memory{away: true}, 503, 42}, "empty": {&memory{}, 429, 1}} {
		tt.m.hold, tt.m.inside = make(chan struct{}), make(chan struct{}, 2)
		d := open(t, tt.m, tenants.Set{}, func(c *Config) { c.Concurrency = 1 })
		first := make(chan reply)
		go func() { first <- d.post(`{"event_name":"x"}`, "Prefer", "any-age", "Content-Type", "application/json") }()
		if name == "empty" { // the others are refused before they wait
			<-tt.m.inside
		} else {
			d.server.inFlight.Add(1)
			defer d.server.inFlight.Add(-1)
			<-first
		}
		r := d.post(`{"event_name":"x"}`)
		got, _ := strconv.Atoi(r.header.Get("Retry-After"))
		if r.status != tt.status || got < tt.wait || got > tt.wait+2 {
			t.Errorf("%s: %d, Retry-After %d: %s; want %d and about %d", name, r.status, got, r.body, tt.status, tt.wait)
		}
		close(tt.m.hold)
		if name == "empty" {
			<-first
		}
	}
}
