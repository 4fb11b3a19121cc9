package ingest

import (
	"bufio"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"sluice.example/sluice/internal/pgtest"
)

// stall has n clients send most of a body each, and no more.
func (d *door) stall(n int, header string) (replies []*bufio.Reader) {
	for range n {
		_, r := d.raw("POST /v1/batch HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n" + header + "\r\n" +
			strings.Repeat(" ", 900_000))
		replies = append(replies, r)
	}
	return replies
}

// inUse waits until bodies hold more than so much, and returns how much.
func (d *door) inUse(t *testing.T, more int) int {
	t.Helper()
	pgtest.Eventually(t, fmt.Sprintf("bodies hold more than %d bytes", more),
		func() bool { return d.server.bodies.InUse() > more }, func() any { return d.server.bodies.InUse() })
	return d.server.bodies.InUse()
}

func smallReading(c *Config) {
	c.MaxBodyBytes, c.MaxDecodedBytes, c.MaxReadingBytes = 4<<20, 8<<20, 40<<20
}

// TestBodiesWithoutAKeyRefuseNobodyElse lets 48 clients that never say who they are send most of a body each.
func TestBodiesWithoutAKeyRefuseNobodyElse(t *testing.T) {
	d := open(t, &memory{}, twoTenants(t), smallReading)
	d.stall(48, "")
	d.inUse(t, 6<<20)
	body := `[{"event_name":"x","properties":{"a":"` + strings.Repeat("a", 35_000) + `"}}]`
	for range 20 {
		if got := d.server.bodies.InUse(); got > 13<<20 {
			t.Fatalf("bodies without a key hold %d bytes; want at most 12 MiB, and the honest one", got)
		}
		if r := d.post(body, "X-Write-Key", "KEY_A"); r.status != 200 {
			t.Fatalf("an honest client beside them: %d %s; want 200", r.status, r.body)
		}
	}
}

func TestOneTenantsBodiesRefuseNobodyElse(t *testing.T) {
	d := open(t, &memory{}, twoTenants(t), smallReading)
	d.stall(60, "X-Write-Key: KEY_A\r\n")
	if got := d.inUse(t, 16<<20); got > 20<<20 {
		t.Errorf("one tenant holds %d bytes of 40 MiB; want at most half", got)
	}
	if r := d.post(strings.Repeat(" ", 3<<20)+`{"event_name":"x"}`, "X-Write-Key", "KEY_B"); r.status != 200 {
		t.Errorf("another tenant: %d %s; want 200", r.status, r.body)
	}
}

// TestBodyThatStallsGivesItsMemoryBack: where memory is short, the client that sends nothing is answered 408, long
// before ingest.read-timeout.
func TestBodyThatStallsGivesItsMemoryBack(t *testing.T) {
	d := open(t, &memory{}, twoTenants(t), func(c *Config) { smallReading(c); c.ReadTimeout = 10 * time.Minute })
	answers := make(chan *http.Response, 22)
	for _, r := range d.stall(22, "X-Write-Key: KEY_A\r\n") {
		go func() {
			if resp, err := http.ReadResponse(r, nil); err == nil {
				answers <- resp
			}
		}()
	}
	d.inUse(t, 16<<20)
	pgtest.Eventually(t, "a body of the same tenant is taken", func() bool {
		return d.post(strings.Repeat(" ", 3<<20)+`{"event_name":"x"}`, "X-Write-Key", "KEY_A").status == 200
	})
	for resp := range answers {
		if resp.StatusCode == 408 {
			break
		}
		if resp.StatusCode != 429 { // there was no room for the last of them
			t.Errorf("a slow one: %d; want 408", resp.StatusCode)
		}
	}
}

func TestBodyWithoutAKeyIsSmall(t *testing.T) {
	d := open(t, &memory{}, twoTenants(t), nil)
	long := strings.Repeat("a", 600_000)
	event := `{"type":"track","event":"e","userId":"u","properties":{"a":"` + long + `"}}`
	batch := `"batch":[` + event + `,` + event + `,` + event + `]`
	for body, want := range map[string]int{
		`{` + batch + `}`:                                400,
		`{` + batch + `,"writeKey":"KEY_A"}`:             400, // too late
		`{"writeKey":"KEY_A",` + batch + `}`:             200,
		`{"writeKey": "KEY_A", "batch":[` + event + `]}`: 200,
	} {
		if r := d.do("POST", "/v1/batch", strings.NewReader(gz(body)), "Content-Encoding", "gzip"); r.status != want {
			t.Errorf("gzip of %.40s...: %d %s; want %d", body, r.status, r.body, want)
		}
		if r := d.do("POST", "/v1/batch", strings.NewReader(zst(body)), "Content-Encoding", "zstd"); r.status != want {
			t.Errorf("zstd of %.40s...: %d %s; want %d", body, r.status, r.body, want)
		}
	}
	form := "data=" + base64.StdEncoding.EncodeToString([]byte(strings.Repeat(" ", 30<<20)))
	if r := d.do("POST", "/e/", strings.NewReader(gz(form)), "Content-Encoding", "gzip"); r.status != 413 {
		t.Errorf("30 MB of a form: %d %s; want 413", r.status, r.body)
	}
	if got := d.server.bodies.InUse(); got != 0 {
		t.Errorf("%d bytes are still counted; want 0", got)
	}
}

// TestFormWithoutAKeyIsSmall: in a form the JSON is in base64 or percent-encoded, so no key is found in a part of it.
// The whole form has to stay below the bound, unless the request names its key.
func TestFormWithoutAKeyIsSmall(t *testing.T) {
	const mib = 1 << 20
	for _, form := range []struct {
		name   string
		encode func(string) string
	}{
		{"base64", func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }},
		{"percent", url.QueryEscape},
	} {
		// body returns a form of n bytes with an event in it.
		body := func(n int) string {
			const event = `{"api_key":"KEY_A","event":"e","distinct_id":"u","properties":{"a":"PAD"}}`
			empty := len("data=" + form.encode(strings.Replace(event, "PAD", "", 1)))
			pad := n - empty
			if form.name == "base64" {
				pad = pad / 4 * 3
			}
			return "data=" + form.encode(strings.Replace(event, "PAD", strings.Repeat("a", pad), 1))
		}
		buf := &memory{}
		d := open(t, buf, twoTenants(t), func(c *Config) { c.MaxEventBytes = 4 * mib })
		for _, tt := range []struct {
			what   string
			n      int
			key    string
			status int
		}{
			{"below the bound", mib - 100, "", 200},
			{"above it", mib + 100, "", 413},
			{"above it, with a key in the header", 3 * mib, "KEY_A", 200},
		} {
			headers := []string{"Content-Type", "application/x-www-form-urlencoded"}
			if tt.key != "" {
				headers = append(headers, "X-Write-Key", tt.key)
			}
			for encoding, text := range map[string]string{"": body(tt.n), "gzip": gz(body(tt.n))} {
				r := d.do("POST", "/e/", strings.NewReader(text), append(headers, "Content-Encoding", encoding)...)
				if r.status != tt.status {
					t.Errorf("%s %s, %s: %d %s; want %d", encoding, form.name, tt.what, r.status, r.body, tt.status)
				}
				if tt.status == 413 && !strings.Contains(r.body, "no write key is in the first 1048576 bytes") {
					t.Errorf("%s %s, %s: %s; want the bound and what to do", encoding, form.name, tt.what, r.body)
				}
			}
		}
		for _, e := range buf.events {
			if e.Tenant != 1 {
				t.Errorf("%s: an event of tenant %d; want that of KEY_A", form.name, e.Tenant)
			}
		}
		if len(buf.events) != 4 {
			t.Errorf("%s: %d events; want 4", form.name, len(buf.events))
		}
		if got := d.server.bodies.InUse(); got != 0 {
			t.Errorf("%d bytes are still counted; want 0", got)
		}
	}
}
