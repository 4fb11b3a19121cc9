package ingest

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sluice.example/sluice/internal/tenants"
)

func TestCORS(t *testing.T) {
	d := open(t, &memory{}, tenants.Set{}, func(c *Config) {
		c.CORSOrigins = []string{"https://shop.example.com",
			"http://localhost:3000"}
	})
	ask := func(method, origin string, headers ...string) *http.Response {
		t.Helper()
		req, _ := http.NewRequest(method, "http://"+d.addr+"/v1/events", strings.NewReader(`{"event_name":"x"}`))
		req.Header.Set("Origin", origin)
		for i := 0; i < len(headers); i += 2 {
			req.Header.Set(headers[i], headers[i+1])
		}
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp
	}
	preflight := []string{"Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "content-type"}
	for _, tt := range []struct {
		method, origin string
		headers        []string
		status         int
		allow          string
	}{
		{"OPTIONS", "https://shop.example.com", preflight, 204, "https://shop.example.com"},
		{"OPTIONS", "http://localhost:3000", preflight, 204, "http://localhost:3000"},
		{"OPTIONS", "https://evil.example.com", preflight, 405, ""},
		{"OPTIONS", "https://shop.example.com", nil, 405, "https://shop.example.com"},
		{"POST", "https://shop.example.com", nil, 200, "https://shop.example.com"},
		{"POST", "https://evil.example.com", nil, 200, ""},
	} {
		resp := ask(tt.method, tt.origin, tt.headers...)
		if got := resp.Header.Get("Access-Control-Allow-Origin"); resp.StatusCode != tt.status || got != tt.allow ||
			resp.Header.Get("Vary") != "Origin" {
			t.Errorf("%s from %s: %d, allows %q, Vary %q; want %d, %q and Origin", tt.method, tt.origin, resp.StatusCode, got,
				resp.Header.Get("Vary"), tt.status, tt.allow)
		}
		if tt.status == 204 && (resp.Header.Get("Access-Control-Allow-Methods") != "POST" ||
			!strings.Contains(resp.Header.Get("Access-Control-Allow-Headers"), "content-type")) {
			t.Errorf("preflight answers %v", resp.Header)
		}
	}
	open := open(t, &memory{}, tenants.Set{}, func(c *Config) { c.CORSOrigins = []string{"*"} })
	d.addr = open.addr
	if got := ask("POST", "https://any.example").Header.Get("Access-Control-Allow-Origin"); got != "*" {
		t.Errorf("with *: allows %q", got)
	}
}

// writePair writes the certificate of httptest, which is for example.com.
func writePair(t *testing.T) (certFile, keyFile string) {
	t.Helper()
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	pair := server.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for file, block := range map[string]*pem.Block{
		certFile: {Type: "CERTIFICATE", Bytes: pair.Certificate[0]},
		keyFile:  {Type: "PRIVATE KEY", Bytes: key},
	} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certFile, keyFile
}

func TestTLS(t *testing.T) {
	certFile, keyFile := writePair(t)
	m := &memory{}
	d := open(t, m, tenants.Set{}, func(c *Config) { c.TLSCertFile, c.TLSKeyFile = certFile, keyFile })
	c, err := tls.Dial("tcp", d.addr, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got := c.ConnectionState().PeerCertificates[0].DNSNames[0]; got != "example.com" {
		t.Errorf("certificate of %s; want example.com", got)
	}
	if _, err := c.Write([]byte("POST /v1/events HTTP/1.1\r\nHost: x\r\nContent-Length: 18\r\n\r\n" +
		`{"event_name":"x"}`)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 12)
	if _, err := c.Read(b); err != nil || string(b) != "HTTP/1.1 200" {
		t.Fatalf("read %q, %v; want a 200", b, err)
	}
	for _, files := range [][2]string{{certFile, ""}, {"", keyFile}, {certFile, certFile}, {certFile + ".none", keyFile}} {
		cfg := DefaultConfig()
		cfg.TLSCertFile, cfg.TLSKeyFile = files[0], files[1]
		if _, err := New(cfg, m, tenants.Set{}, d.metrics, slog.New(slog.DiscardHandler)); err == nil ||
			!strings.Contains(err.Error(), "ingest.tls-") {
			t.Errorf("%q: %v; want an error that names the setting", files, err)
		}
	}
}

// TestByteOrderMark: what editors and libraries put before their text is taken, wherever text may begin, and also where
// files that begin with one were put together.
func TestByteOrderMark(t *testing.T) {
	const mark = "\xef\xbb\xbf"
	event := `{"event_name":"x"}`
	lines := mark + event + "\n" + event + "\r\n" + mark + event + "\n" + mark + "\n"
	m := &memory{}
	d := open(t, m, tenants.Set{}, nil)
	for _, tt := range []struct {
		path, media, body string
		events            int
	}{
		{"/v1/events", "application/json", mark + event, 1},
		{"/v1/events", "application/json", mark + " [" + event + "]", 1},
		{"/v1/events", "application/x-ndjson", lines, 3},
		{"/v1/stream", "application/x-ndjson", lines, 3},
		{"/v1/batch", "application/json", mark + `{"batch":[{"type":"track","event":"x","userId":"u"}]}`, 1},
		{"/v1/track", "text/plain", mark + `{"event":"x","userId":"u"}`, 1},
		{"/batch/", "application/json", mark + `{"batch":[{"event":"x","distinct_id":"u"}]}`, 1},
		{"/v1/cloudevents", "application/cloudevents+json",
			mark + `{"specversion":"1.0","type":"x","source":"/s","id":"1"}`, 1},
	} {
		before := len(m.events)
		resp, text := d.roundTrip("POST", tt.path, tt.body, "Content-Type", tt.media)
		if resp.StatusCode != 200 || len(m.events) != before+tt.events || !strings.Contains(text, `"rejected":0`) {
			t.Errorf("%s, %s: %d %s, %d events; want 200 and %d",
				tt.path, tt.media, resp.StatusCode, text, len(m.events)-before, tt.events)
		}
	}
	before := len(m.events)
	d.roundTrip("POST", "/v1/cloudevents", mark+`{"n":1}`, "Content-Type", "application/json", "ce-specversion", "1.0",
		"ce-type", "x", "ce-source", "/s", "ce-id", "1")
	if len(m.events) != before+1 || strings.Contains(string(m.events[before].Properties), mark) {
		t.Errorf("CloudEvents in binary mode: %d events; want one, without the mark", len(m.events)-before)
	}
}
