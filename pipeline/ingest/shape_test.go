package ingest

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/valyala/fasthttp"

	"sluice.example/sluice/internal/jsontext"
	"sluice.example/sluice/internal/jsontext/hostile"
	"sluice.example/sluice/internal/tenants"
	"sluice.example/sluice/pipeline"
)

// shaped decodes a body as one of the shapes.
func shaped(t *testing.T, s *shape, call segmentCall, text string, headers ...string) (*decoder, []pipeline.Event) {
	t.Helper()
	cfg := DefaultConfig()
	d := new(decoder)
	d.reset(&cfg, 7, now)
	h := &fasthttp.RequestHeader{}
	for i := 0; i < len(headers); i += 2 {
		h.Set(headers[i], headers[i+1])
	}
	body := []byte(text)
	if m := s.decode(d, input{body: body, call: call, header: h}); m != nil {
		t.Fatalf("%s: %+v", text, *m)
	}
	events := d.take()
	for i := range body {
		body[i] = 0xee
	}
	return d, events
}

// show writes the fields of an event that a mapping sets.
func show(e pipeline.Event) string {
	var b strings.Builder
	put := func(name, value string) {
		if value != "" {
			fmt.Fprintf(&b, "%s=%s ", name, value)
		}
	}
	put("name", e.Name)
	put("client_id", e.ClientID)
	if e.ClientID == "" && !e.TimeUnknown {
		put("id", e.ID.String())
	}
	if e.TimeUnknown {
		put("at", "unknown")
	} else {
		put("at", e.OccurredAt.Format(time.RFC3339Nano))
	}
	put("anon", e.AnonymousID)
	put("user", e.UserID)
	put("session", e.SessionID)
	put("url", e.PageURL)
	put("ref", e.Referrer)
	put("ua", e.UserAgent)
	put("props", string(e.Properties))
	return strings.TrimSpace(b.String())
}

func TestSegmentMapping(t *testing.T) {
	const head = `"messageId":"node-next-1-a","timestamp":"2026-11-30T11:00:00.5Z",`
	const shown = `client_id=node-next-1-a at=2026-11-30T11:00:00.5Z `
	for _, tt := range []struct {
		call       segmentCall
		text, want string
	}{
		{"", `{"type":"track","event":"Order \u00e9",` + head +
			`"userId":"u","anonymousId":"a","properties":{"n":1.10,"url":"https:\/\/x"}}`,
			`name=Order é ` + shown + `anon=a user=u url=https://x ` +
				`props={"$segment":{"type":"track"},"n":1.10,"url":"https:\/\/x"}`},
		{"", `{"type":"track","event":"x",` + head + `"userId":17}`, `name=x ` + shown +
			`user=17 props={"$segment":{"type":"track"}}`},
		{"", `{"type":"identify",` + head +
			`"userId":"u","traits":{"email":"e"},"context":{"userAgent":"ua",` +
			`"page":{"url":"https://p","referrer":"https://r"}},"integrations":{"All":false}}`,
			`name=identify ` + shown + `user=u url=https://p ref=https://r ua=ua ` +
				`props={"$segment":{"type":"identify","context":{"userAgent":"ua",` +
				`"page":{"url":"https://p","referrer":"https://r"}},"integrations":{"All":false}},"email":"e"}`},
		{"page", `{` + head + `"anonymousId":"a","name":"Home","category":"c",` +
			`"properties":{"url":"https://p","referrer":"https://r"},"writeKey":"secret"}`,
			`name=page ` + shown + `anon=a url=https://p ref=https://r ` +
				`props={"$segment":{"name":"Home","category":"c"},"url":"https://p","referrer":"https://r"}`},
		{"screen", `{` + head + `"anonymousId":"a","name":"Home"}`, `name=screen ` + shown +
			`anon=a props={"$segment":{"name":"Home"}}`},
		{"group", `{` + head + `"userId":"u","groupId":"g","traits":{"plan":"p"},"properties":{"k":1}}`, `name=group ` +
			shown + `user=u props={"$segment":{"groupId":"g","properties":{"k":1}},"plan":"p"}`},
		{"alias", `{` + head + `"userId":"u","previousId":"p"}`, `name=alias ` + shown +
			`user=u props={"$segment":{"previousId":"p"}}`},
		{"track", `{"messageId":"m","event":"x","userId":"u"}`, `name=x client_id=m at=unknown user=u`},
		{"track", `{"messageId":"` + idV4 + `","event":"x","userId":"u","timestamp":"2026-11-30T11:00:00+01:00"}`,
			`name=x id=` + idV4 + ` at=2026-11-30T10:00:00Z user=u`},
	} {
		text := tt.text
		if tt.call == "" {
			text = `{"sentAt":"x","batch":[` + text + `],"writeKey":"k"}`
		}
		d, events := shaped(t, &segment, tt.call, text)
		if len(events) != 1 || show(events[0]) != tt.want {
			t.Errorf("%s:\ngot  %s, rejected %+v\nwant %s", tt.text, show(append(events, pipeline.Event{})[0]), d.rejected,
				tt.want)
		}
	}
	// What the batch says of all its calls.
	_, events := shaped(t, &segment, "", `{"batch":[{"type":"track","event":"x","userId":"u","messageId":"m"},`+
		`{"type":"track","event":"x","userId":"u","messageId":"m","context":{"b":2}}],"context":{"a":1}}`)
	want := `{"$segment":{"type":"track","context":{"a":1}}}{"$segment":{"type":"track","context":{"b":2}}}`
	if got := string(events[0].Properties) + string(events[1].Properties); got != want {
		t.Errorf("context of the batch: %s", got)
	}
}

// TestAdaptersObjectIsTheirs: what a client calls by its name, escaped or not, is kept inside it, never in its place.
func TestAdaptersObjectIsTheirs(t *testing.T) {
	for _, tt := range []struct {
		shape      *shape
		call       segmentCall
		text, want string
	}{
		{&segment, "track",
			`{"event":"x","userId":"u","channel":"c","properties":{"a":1,"$segment":{"channel":"no"},"b":2}}`,
			`{"$segment":{"channel":"c","$segment":{"channel":"no"}},"a":1,"b":2}`},
		{&segment, "track", `{"event":"x","userId":"u","properties":{"\u0024segment":5}}`,
			`{"$segment":{"\u0024segment":5}}`},
		{&segment, "identify", `{"userId":"u","traits":{"$segment":1,"$segment":2}}`,
			`{"$segment":{"$segment":1,"$segment":2}}`},
		{&segment, "track", `{"event":"x","userId":"u","properties":{"a":{"$segment":5},"b":"$segment \u0024"}}`,
			`{"a":{"$segment":5},"b":"$segment \u0024"}`},
		{&posthog, "", `{"event":"x","distinct_id":"u","$set":{},"properties":{"$posthog":5, "$segment":6}}`,
			`{"$posthog":{"$set":{},"$posthog":5},"$segment":6}`},
		{&cloudevents, "", `{"specversion":"1.0","type":"x","source":"/s","id":"1","data":{"$cloudevent":{"source":"no"}}}`,
			`{"$cloudevent":{"specversion":"1.0","source":"/s","id":"1","$cloudevent":{"source":"no"}}}`},
	} {
		_, events := shaped(t, tt.shape, tt.call, tt.text, "Content-Type", "application/cloudevents+json")
		if len(events) != 1 || string(events[0].Properties) != tt.want {
			t.Errorf("%s:\ngot  %s\nwant %s", tt.text, append(events, pipeline.Event{})[0].Properties, tt.want)
		}
	}
}

func TestSegmentRejections(t *testing.T) {
	for _, tt := range []struct{ text, field, reason string }{
		{`{"type":"track","userId":"u"}`, "event", "required"},
		{`{"event":"x","userId":"u"}`, "type", "required"},
		{`{"type":"trick","event":"x","userId":"u"}`, "type", "trick"},
		{`{"type":"track","event":"x"}`, "userId", "required"},
		{`{"type":"track","event":{},"userId":"u"}`, "event", "must be a string"},
		{`{"type":"track","event":"x","userId":"u","properties":[]}`, "properties", "must be a JSON object"},
		{`{"type":"track","event":"x","userId":"u","context":5}`, "context", "must be a JSON object"},
		{`{"type":"track","event":"x","userId":"u","context":{"a":"\u0000"}}`, "context", "U+0000"},
		{`{"type":"track","event":"x","userId":"u","other":"\ud800"}`, "other", "surrogate"},
		{`{"type":"track","event":"x","userId":"a\u0000b","properties":{"k\u0000":"v"}}`, "userId", "U+0000"},
		{`{"type":"track","event":"x","userId":"u","timestamp":"soon"}`, "timestamp", "RFC 3339"},
		{`{"type":"track","event":"x","userId":"u","messageId":"` + strings.Repeat("m", 600) + `"}`, "messageId",
			"600 bytes"},
		{`5`, "", "must be a JSON object"},
	} {
		good := `{"type":"track","event":"x","userId":"u"}`
		d, events := shaped(t, &segment, "", `{"batch":[`+good+`,`+tt.text+`,`+good+`]}`)
		if len(events) != 2 || len(d.rejected) != 1 || d.rejected[0].index != 1 || d.rejected[0].field != tt.field ||
			!strings.Contains(d.rejected[0].reason, tt.reason) {
			t.Errorf("%s: %d events, rejected %+v; want index 1, field %q, reason with %q", tt.text, len(events), d.rejected,
				tt.field, tt.reason)
		}
	}
}

func TestSegmentAnswers(t *testing.T) {
	auth, err := tenants.Parse("tenants.yaml", "tenants: [{id: 5, name: a, keys: ["+hashed("key")+"]}]")
	if err != nil {
		t.Fatal(err)
	}
	m := &memory{}
	d := open(t, m, auth, func(c *Config) { c.MaxEvents = 2 })
	call := `{"type":"track","event":"x","userId":"u"}`
	basic := []string{"Authorization", "Basic " + base64.StdEncoding.EncodeToString([]byte("key:"))}
	send := func(path, body string, headers ...string) reply {
		t.Helper()
		return d.do("POST", path, strings.NewReader(body), headers...)
	}
	for _, tt := range []struct {
		path, body string
		headers    []string
		err        error
		status     int
	}{
		{"/v1/batch", `{"batch":[` + call + `]}`, basic, nil, 200},
		{"/v1/batch/", `{"batch":[` + call + `],"writeKey":"other"}`, basic, nil, 200},
		{"/v1/batch", `{"batch":[` + call + `],"writeKey":"key"}`, nil, nil, 200},
		{"/v1/batch", `{"writeKey":"key","batch":[]}`, nil, nil, 200},
		{"/v1/track", `{"event":"x","userId":"u","writeKey":"key"}`, nil, nil, 200},
		{"/v1/batch", `{"batch":[{},` + call + `],"writeKey":"key"}`, nil, nil, 200},
		{"/v1/batch", `{"batch":[{}],"writeKey":"key"}`, nil, nil, 400},
		{"/v1/batch", `{"batch":[` + call + `]}`, nil, nil, 401},
		{"/v1/batch", `{"batch":[` + call + `],"writeKey":"wrong"}`, nil, nil, 401},
		{"/v1/batch", `{"batch":[` + call + `],"writeKey":"key"}`, []string{"Authorization", "Bearer wrong"}, nil, 401},
		{"/v1/batch", `{"batch":`, basic, nil, 400},
		{"/v1/batch", `{"batch":[]} x`, basic, nil, 400},
		{"/v1/batch", `[]`, basic, nil, 400},
		{"/v1/batch", `{}`, basic, nil, 400},
		{"/v1/batch", `{"batch":[{},{},{}]}`, basic, nil, 400}, // too many
		{"/v1/batch", `{"batch":[` + call + `]}`, basic, &pipeline.Overloaded{RetryAfter: time.Second}, 429},
		{"/v1/batch", `{"batch":[` + call + `]}`, basic, pipeline.ErrUnavailable, 429},
		{"/v1/batch", `{"batch":[` + call + `]}`, basic, errors.New("x"), 429},
	} {
		m.err = tt.err
		r := send(tt.path, tt.body, tt.headers...)
		if r.status != tt.status || tt.status == 200 && !strings.HasPrefix(r.body, `{"success":true,"stored":`) {
			t.Errorf("%s %s: %d %s; want %d", tt.path, tt.body, r.status, r.body, tt.status)
		}
		if n, err := strconv.Atoi(r.header.Get("Retry-After")); r.status == 429 && (err != nil || n < 1) {
			t.Errorf("%s %s: Retry-After %q; want whole seconds", tt.path, tt.body, r.header.Get("Retry-After"))
		}
	}
	for _, e := range m.events {
		if e.Tenant != 5 {
			t.Errorf("tenant %d; want 5", e.Tenant)
		}
	}
}

// FuzzShapes holds the promises of the decoders of other systems' formats: they do not crash, each event is told once,
// and what they take is valid.
func FuzzShapes(f *testing.F) {
	for _, text := range hostile.Texts {
		if len(text) > 20_000 {
			continue
		}
		f.Add([]byte(`{"batch":[{"type":"track","event":"x","userId":"u","messageId":"m",`+
			`"context":{"page":{"url":`+text+`}}}],"writeKey":"k"}`), "")
		f.Add([]byte(`{"event":"x","distinct_id":`+text+`,"properties":{"$device_id":`+text+`}}`), "")
		f.Add([]byte(`{"specversion":"1.0","type":"t","source":"/s","id":"1","data":`+text+`}`),
			"application/cloudevents+json")
		f.Add([]byte(text), "text/plain")
	}
	f.Add([]byte("data=eyJldmVudCI6IngifQ%3D%3D"), "application/x-www-form-urlencoded")
	cfg := DefaultConfig()
	f.Fuzz(func(t *testing.T, text []byte, media string) {
		for name, s := range map[string]*shape{"segment": &segment, "posthog": &posthog, "cloudevents": &cloudevents} {
			for _, call := range []segmentCall{"", callTrack, callIdentify} {
				d := new(decoder)
				d.reset(&cfg, 1, now)
				h := &fasthttp.RequestHeader{}
				h.SetContentType(media)
				h.Set("ce-specversion", "1.0")
				h.Set("ce-id", media)
				body := append([]byte{}, text...)
				if m := s.decode(d, input{body: body, call: call, header: h}); m != nil {
					if m.detail == "" {
						t.Fatalf("%s %q: %+v", name, text, *m)
					}
					continue
				}
				if name != "posthog" && string(body) != string(text) {
					t.Fatalf("%s %q: the body was written to: %q", name, text, body)
				}
				events := d.take()
				if len(events)+len(d.rejected) != d.count {
					t.Fatalf("%s %q: %d events and %d rejected of %d", name, text, len(events), len(d.rejected), d.count)
				}
				for _, e := range events {
					if e.Name == "" || e.OccurredAt.IsZero() || e.ReceivedAt.IsZero() || e.Tenant != 1 {
						t.Fatalf("%s %q: incomplete event %+v", name, text, e)
					}
					for _, field := range []string{e.Name, e.ClientID, e.UserID, e.AnonymousID, e.SessionID, e.PageURL, e.Referrer,
						e.UserAgent} {
						if !utf8.ValidString(field) || strings.Contains(field, "\x00") || len(field) > maxText {
							t.Fatalf("%s %q: field %q", name, text, field)
						}
					}
					if e.Properties != nil {
						if s := scanned(e.Properties, maxDepth+2); s.Fault != "" || s.Flaw != jsontext.FlawNone ||
							e.Properties[0] != '{' {
							t.Fatalf("%s %q: properties %q: %s, flaw %d", name, text, e.Properties, s.Fault, s.Flaw)
						}
					}
				}
			}
		}
	})
}
