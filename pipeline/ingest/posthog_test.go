package ingest

import (
	"bufio"
	"encoding/base64"
	"fmt"
	"io"
	"net/url"
	"strings"
	"testing"
	"time"

	"sluice.example/sluice/internal/tenants"
	"sluice.example/sluice/pipeline"
)

func TestPostHogMapping(t *testing.T) {
	const head = `"event":"$pageview","uuid":"` + idV7 + `","timestamp":"2026-11-30T11:00:00.5Z",`
	const shown = `name=$pageview id=` + idV7 + ` at=2026-11-30T11:00:00.5Z `
	for _, tt := range []struct{ text, want string }{
		{`{` + head + `"distinct_id":"u","properties":{"n":1.10,"$lib":"posthog-node"},"type":"capture","library":"l"}`,
			shown + `user=u props={"$posthog":{"type":"capture","library":"l"},"n":1.10,"$lib":"posthog-node"}`},
		{`{` + head + `"distinct_id":17}`, shown + `user=17`},
		{`{` + head + `"$distinct_id":"u","$set":{"a":1}}`, shown + `user=u props={"$posthog":{"$set":{"a":1}}}`},
		{`{` + head + `"properties":{"distinct_id":"d","$device_id":"d","$session_id":"s","$current_url":"https:\/\/` +
			`x","$referrer":"r","$raw_user_agent":"ua","token":"k"}}`,
			shown + `anon=d session=s url=https://x ref=r ua=ua ` +
				`props={"distinct_id":"d","$device_id":"d","$session_id":"s","$current_url":"https:\/\/` +
				`x","$referrer":"r","$raw_user_agent":"ua","token":"k"}`},
		{`{` + head + `"distinct_id":"u","properties":{"$anon_distinct_id":"a"}}`, shown +
			`anon=a user=u props={"$anon_distinct_id":"a"}`},
		{`{"event":"x","distinct_id":"u","uuid":"50172"}`, `name=x client_id=50172 at=unknown user=u`},
	} {
		for _, body := range []string{`{"api_key":"k","batch":[` + tt.text + `],"sent_at":"x"}`, tt.text, `[` + tt.text +
			`]`} {
			d, events := shaped(t, &posthog, "", body)
			if len(events) != 1 || show(events[0]) != tt.want {
				t.Errorf("%s:\ngot  %s, rejected %+v\nwant %s", body, show(append(events, pipeline.Event{})[0]), d.rejected,
					tt.want)
			}
		}
	}
	for _, text := range []string{`{"event":"x","distinct_id":"u","uuid":""}`, `{"event":"x","distinct_id":"u"}`,
		`{"event":"x","distinct_id":"u","uuid":null}`} {
		if _, events := shaped(t, &posthog, "", text); len(events) != 1 || events[0].ID.String()[14] != '7' {
			t.Errorf("%s: %+v; want an id made for it", text, events)
		}
	}
	for _, tt := range []struct{ text, field string }{
		{`{"distinct_id":"u"}`, "event"}, {`{"event":"x"}`, "distinct_id"}, {`{"event":"x","distinct_id":{}}`,
			"distinct_id"}, {`{"event":"x","distinct_id":"u","properties":1}`, "properties"},
		{`{"event":"x","properties":{"distinct_id":"` + strings.Repeat("d", 600) + `"}}`, "properties"},
		{`{"event":"x","distinct_id":"u","uuid":"a\u0000"}`, "uuid"}, {`5`, ""},
	} {
		if d, events := shaped(t, &posthog, "",
			`{"batch":[{"event":"x","distinct_id":"u"},`+tt.text+`]}`); len(events) != 1 || len(d.rejected) != 1 ||
			d.rejected[0].index != 1 || d.rejected[0].field != tt.field {
			t.Errorf("%s: %d events, rejected %+v; want index 1, field %q", tt.text, len(events), d.rejected, tt.field)
		}
	}
}

func TestPostHogForms(t *testing.T) {
	auth, err := tenants.Parse("tenants.yaml", "tenants: [{id: 5, name: a, keys: ["+hashed("key")+
		"]}, {id: 6, name: b, keys: ["+hashed("other")+"]}]")
	if err != nil {
		t.Fatal(err)
	}
	m := &memory{}
	d := open(t, m, auth, nil)
	event := `{"event":"x","distinct_id":"u~~~???"}`
	with := func(key string) string { return `{"event":"x","distinct_id":"u","token":"` + key + `"}` }
	batch := `{"api_key":"key","batch":[` + event + `]}`
	form := []string{"Content-Type", "application/x-www-form-urlencoded"}
	for _, tt := range []struct {
		path, body string
		headers    []string
		status     int
	}{
		{"/batch/", batch, nil, 200},
		{"/batch", gz(batch), []string{"Content-Encoding", "gzip"}, 200},
		{"/batch/", gz(batch), []string{"Content-Type", "text/plain"}, 200}, // by its first bytes
		{"/capture/", with("key"), nil, 200},
		{"/e/", "[" + with("key") + "," + with("key") + "]", nil, 200},
		{"/i/v0/e", `[{"event":"x","properties":{"token":"key","distinct_id":"u"}}]`, nil, 200},
		{"/e", "data=" + url.QueryEscape(base64.StdEncoding.EncodeToString([]byte(with("key")))), form, 200},
		{"/e", "data=" + base64.StdEncoding.EncodeToString([]byte(with("key"))), form, 200}, // not escaped
		{"/e", "data=" + url.QueryEscape(with("key")), form, 200},
		{"/e", "[" + with("key") + "," + with("other") + "]", nil, 401},
		{"/e", "[" + with("key") + "," + event + "]", nil, 401},
		{"/batch", `{"api_key":"wrong","batch":[` + event + `]}`, nil, 401},
		{"/batch", `{"batch":[` + event + `]}`, nil, 401},
		{"/batch", `{"api_key":"key","batch":[{}]}`, nil, 400},
		{"/batch", `{"api_key":"key","batch":{}}`, nil, 400},
		{"/batch", gz(batch)[:20], nil, 400},
		{"/batch", "", nil, 400},
	} {
		r := d.do("POST", tt.path, strings.NewReader(tt.body), tt.headers...)
		if r.status != tt.status {
			t.Errorf("%s %.60q: %d %s; want %d", tt.path, tt.body, r.status, r.body, tt.status)
		}
	}
	for _, e := range m.events {
		if e.Tenant != 5 {
			t.Errorf("tenant %d; want 5", e.Tenant)
		}
	}
	if r := d.do("POST", "/flags/?v=2", strings.NewReader("{}")); r.status != 200 || !strings.Contains(r.body,
		`"featureFlags":{}`) {
		t.Errorf("/flags/: %d %s; want none", r.status, r.body)
	}
	if got := d.server.bodies.InUse(); got != 0 {
		t.Errorf("%d bytes of bodies are still counted; want 0", got)
	}
}

// TestPostHogIsHungUpOnWhereItsEventsWouldBeLost: on an answer it would drop the events, on none it keeps them.
func TestPostHogIsHungUpOnWhereItsEventsWouldBeLost(t *testing.T) {
	m := &memory{err: pipeline.ErrUnavailable, inside: make(chan struct{}, 1000)}
	d := open(t, m, tenants.Set{}, nil)
	body := `{"event":"x","distinct_id":"u"}`
	request := fmt.Sprintf("POST /e HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	noAnswer := func(what string, r *bufio.Reader) {
		t.Helper()
		if text, err := io.ReadAll(r); err != nil || len(text) > 0 {
			t.Errorf("%s: read %q, %v; want the connection to end without an answer", what, text, err)
		}
	}
	_, r := d.raw(request)
	noAnswer("database away", r)
	<-m.inside

	// Full: it waits for room.
	m.mu.Lock()
	m.err = &pipeline.Overloaded{RetryAfter: time.Second}
	m.mu.Unlock()
	_, r = d.raw(request)
	for range 2 { // it has asked twice
		<-m.inside
	}
	m.mu.Lock()
	m.err = nil
	m.mu.Unlock()
	if status, text := readReply(t, r); status != 200 || !strings.HasPrefix(text, `{"status":"Ok","stored":1,`) {
		t.Errorf("after room was made: %d %s; want 200", status, text)
	}
	books(t, d, "1", 2, 0, 0)
	for len(m.inside) > 0 {
		<-m.inside
	}

	// Full until the server stops.
	m.mu.Lock()
	m.err = &pipeline.Overloaded{RetryAfter: time.Second}
	m.mu.Unlock()
	_, r = d.raw(request)
	for range 2 { // it has asked twice
		<-m.inside
	}
	d.stop()
	noAnswer("draining", r)
	within(t, "Serve to return", d.done)
	if got := d.server.bodies.InUse(); got != 0 {
		t.Errorf("%d bytes of bodies are still counted; want 0", got)
	}
}
