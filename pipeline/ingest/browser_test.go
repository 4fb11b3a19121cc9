package ingest

import (
	"bufio"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"sluice.example/sluice/internal/tenants"
)

const shop = "https://shop.example.com"

// today is a time that can be stored whenever this runs.
func today() string { return time.Now().UTC().Format(time.RFC3339) }

// roundTrip is a request as a browser sends it, and its answer.
func (d *door) roundTrip(method, path, body string, headers ...string) (*http.Response, string) {
	d.t.Helper()
	req, err := http.NewRequest(method, "http://"+d.addr+path, strings.NewReader(body))
	if err != nil {
		d.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		d.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		d.t.Fatal(err)
	}
	return resp, string(text)
}

// TestPreflightAllowsHeadersOfTracers: tracing libraries add headers to all requests of a page, and a preflight that
// does not allow them blocks every event, which no log of a server shows.
func TestPreflightAllowsHeadersOfTracers(t *testing.T) {
	for _, tt := range []struct {
		origins     []string
		origin      string
		asked       string
		status      int
		allowed     string
		credentials string
	}{
		{[]string{shop}, shop, "anonymousid,authorization,baggage,content-type,sentry-trace,traceparent", 204,
			"anonymousid,authorization,baggage,content-type,sentry-trace,traceparent", "true"},
		{[]string{shop, "*"}, shop, "request-id, traceparent", 204, "request-id, traceparent", "true"},
		{[]string{"*"}, shop, "traceparent", 204, "traceparent", ""},
		{[]string{shop}, shop, "", 204, allowedHeaders, "true"},
		{[]string{shop}, shop, "x\"; y", 204, allowedHeaders, "true"},
		{[]string{shop}, "https://evil.example.com", "traceparent", 405, "", ""},
		{nil, shop, "traceparent", 405, "", ""},
	} {
		d := open(t, &memory{}, tenants.Set{}, func(c *Config) { c.CORSOrigins = tt.origins })
		for _, path := range []string{"/v1/events", "/v1/stream", "/v1/t", "/v1/m", "/e/", "/beacon/v1/batch"} {
			headers := []string{"Origin", tt.origin, "Access-Control-Request-Method", "POST"}
			if tt.asked != "" {
				headers = append(headers, "Access-Control-Request-Headers", tt.asked)
			}
			resp, _ := d.roundTrip("OPTIONS", path, "", headers...)
			got, credentials := resp.Header.Get("Access-Control-Allow-Headers"),
				resp.Header.Get("Access-Control-Allow-Credentials")
			if resp.StatusCode != tt.status || got != tt.allowed || credentials != tt.credentials {
				t.Errorf("%s with %v asks for %q of %s: %d, allows %q, credentials %q; want %d, %q, %q",
					tt.origin, tt.origins, tt.asked, path, resp.StatusCode, got, credentials, tt.status, tt.allowed, tt.credentials)
			}
			vary := strings.Join(resp.Header.Values("Vary"), ", ")
			if tt.status == 204 && vary != "Origin, Access-Control-Request-Headers" {
				t.Errorf("Vary %q; want both that the answer depends on", vary)
			}
		}
	}
}

// TestBeaconsOfPages: navigator.sendBeacon sends with credentials and without headers of its own: text goes at once,
// JSON after a preflight. The key is in the query or in the body.
func TestBeaconsOfPages(t *testing.T) {
	m := &memory{}
	who, err := tenants.Parse("tenants.yaml", "tenants: [{id: 5, name: a, keys: ["+hashed("key")+"]}]")
	if err != nil {
		t.Fatal(err)
	}
	d := open(t, m, who, func(c *Config) { c.CORSOrigins = []string{shop} })
	for _, tt := range []struct{ name, path, media, body string }{
		{"own, text", "/v1/events?access_token=key", "text/plain;charset=UTF-8", `{"event_name":"x"}`},
		{"own, JSON", "/v1/events?access_token=key", "application/json", `[{"event_name":"x"}]`},
		{"own, a Blob without a type", "/v1/events?access_token=key", "", `{"event_name":"x"}`},
		{"segment", "/v1/t", "text/plain", `{"event":"x","anonymousId":"a","writeKey":"key"}`},
		{"segment, key in the query", "/v1/t?writeKey=key", "text/plain", `{"event":"x","anonymousId":"a"}`},
		{"rudderstack", "/beacon/v1/batch?writeKey=key", "text/plain;charset=UTF-8",
			`{"batch":[{"type":"track","event":"x","anonymousId":"a","originalTimestamp":"` + today() + `"}]}`},
		{"posthog", "/e/?beacon=1&_=1", "application/x-www-form-urlencoded",
			"data=eyJldmVudCI6IngiLCJkaXN0aW5jdF9pZCI6ImQiLCJ0b2tlbiI6ImtleSJ9"},
	} {
		before := len(m.events)
		headers := []string{"Origin", shop, "Cookie", "session=1"}
		if tt.media != "" {
			headers = append(headers, "Content-Type", tt.media)
		}
		resp, text := d.roundTrip("POST", tt.path, tt.body, headers...)
		if resp.StatusCode != 200 || resp.Header.Get("Access-Control-Allow-Origin") != shop ||
			resp.Header.Get("Access-Control-Allow-Credentials") != "true" {
			t.Errorf("%s: %d %s, %v; want 200, and credentials for the page", tt.name, resp.StatusCode, text, resp.Header)
		}
		if len(m.events) != before+1 || m.events[before].Tenant != 5 {
			t.Errorf("%s: %d events; want one of tenant 5", tt.name, len(m.events)-before)
		}
	}
	for _, path := range []string{"/v1/events", "/v1/events?access_token=other", "/v1/t?writeKey=other"} {
		if resp, text := d.roundTrip("POST", path, `{"event_name":"x"}`); resp.StatusCode != 401 {
			t.Errorf("%s: %d %s; want 401", path, resp.StatusCode, text)
		}
	}
}

// TestPathsOfSegmentsBrowserLibrary: it takes the first letter of the call where those for servers take the word.
func TestPathsOfSegmentsBrowserLibrary(t *testing.T) {
	m := &memory{}
	d := open(t, m, tenants.Set{}, nil)
	short := map[string]string{"track": "t", "page": "p", "identify": "i", "group": "g", "alias": "a", "screen": "s"}
	for long, letter := range short {
		at := today()
		body := `{"type":"` + long + `","event":"n3","anonymousId":"a","messageId":"ajs-next-` + long + `","timestamp":"` +
			at + `","sentAt":"` + at + `","writeKey":"key","properties":{},"traits":{},"groupId":"g",` +
			`"context":{"page":{"url":"https://shop.example.com/"}}}`
		var got []string
		for _, path := range []string{"/v1/" + long, "/v1/" + letter} {
			before := len(m.events)
			resp, text := d.roundTrip("POST", path, body, "Content-Type", "text/plain", "Origin", shop)
			if resp.StatusCode != 200 || !strings.Contains(text, `"success":true`) || len(m.events) != before+1 {
				t.Fatalf("%s: %d %s, %d events; want 200 and one", path, resp.StatusCode, text, len(m.events)-before)
			}
			got = append(got, show(m.events[before]))
		}
		if got[0] != got[1] || got[0] == "" {
			t.Errorf("%s and /v1/%s are different events:\n%s\n%s", long, letter, got[0], got[1])
		}
	}
	// What the library reports about itself is read and dropped, and the connection goes on.
	c, _ := d.raw("")
	defer c.Close()
	r := bufio.NewReader(c)
	for range 2 {
		io.WriteString(c, "POST /v1/m HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\nContent-Length: 13\r\n\r\n"+
			`{"series":[]}`)
		resp, err := http.ReadResponse(r, nil)
		if err != nil || resp.StatusCode != 204 {
			t.Fatalf("/v1/m: %v, %v; want 204", resp, err)
		}
	}
}

// TestPathsOfJitsu: @jitsu/js writes calls as Segment's libraries do and sends them to paths of its own, with the write
// key in a header and masked in the body.
func TestPathsOfJitsu(t *testing.T) {
	m := &memory{}
	who, err := tenants.Parse("tenants.yaml", "tenants: [{id: 5, name: a, keys: ["+hashed("key")+"]}]")
	if err != nil {
		t.Fatal(err)
	}
	d := open(t, m, who, func(c *Config) { c.CORSOrigins = []string{shop} })
	at := today()
	for _, call := range []string{"track", "page", "identify", "group", "alias", "screen"} {
		body := `{"type":"` + call + `","event":"n3","userId":null,"anonymousId":"a","groupId":"g","traits":{},` +
			`"properties":{"n":1},"context":{"library":{"name":"@jitsu/js","env":"browser"},"page":` +
			`{"url":"https://shop.example.com/"}},"timestamp":"` + at + `","sentAt":"` + at + `","messageId":"` + call +
			`","writeKey":"k***y"}`
		var got []string
		for _, path := range []string{"/v1/", "/api/s/", "/api/s/s2s/"} {
			before := len(m.events)
			resp, text := d.roundTrip("POST", path+call, body, "Content-Type", "application/json", "X-Write-Key", "key",
				"Origin", shop)
			if resp.StatusCode != 200 || len(m.events) != before+1 || m.events[before].Tenant != 5 {
				t.Fatalf("%s%s: %d %s, %d events; want 200 and one", path, call, resp.StatusCode, text, len(m.events)-before)
			}
			got = append(got, show(m.events[before]))
		}
		if got[1] != got[0] || got[2] != got[0] {
			t.Errorf("%s differs from Segment's:\n%s", call, strings.Join(got, "\n"))
		}
	}
	resp, text := d.roundTrip("OPTIONS", "/api/s/track", "", "Origin", shop, "Access-Control-Request-Method", "POST",
		"Access-Control-Request-Headers", "content-type,x-write-key")
	if resp.StatusCode != 204 {
		t.Errorf("preflight: %d %s; want 204", resp.StatusCode, text)
	}
	before := len(m.events)
	resp, text = d.roundTrip("POST", "/api/s/s2s/batch", `{"batch":[{"type":"track","event":"x","userId":"u"},`+
		`{"type":"page","userId":"u"}]}`, "X-Write-Key", "key")
	if resp.StatusCode != 200 || len(m.events) != before+2 {
		t.Errorf("batch: %d %s, %d events; want 200 and two", resp.StatusCode, text, len(m.events)-before)
	}
}
