package deliver

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline"
)

// openSink opens the first destination of a file.
func openSink(t *testing.T, text string, environ ...string) (*Destination, sink) {
	t.Helper()
	ds, err := Parse("destinations.yaml", []byte("destinations:\n"+text),
		env(append([]string{"SECRET", testSecret}, environ...)...))
	if err != nil {
		t.Fatal(err)
	}
	d := ds.list[0]
	s := d.open(guard{})
	t.Cleanup(s.close)
	return d, s
}

func lease(payload string) *pipeline.Lease {
	return &pipeline.Lease{Message: pipeline.Message{ID: 7, Tenant: 3, Type: "welcome", Rule: true,
		SubjectKey: "user-1", Payload: []byte(payload),
		IdempotencyKey: pipeline.HashUUID("x"), CreatedAt: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC),
		Headers: map[string]string{"X-Order": "17"}}, Attempt: 1}
}

func deliverOne(s sink, l *pipeline.Lease) answer {
	now := time.Now()
	return s.send(l, now, now.Add(10*time.Second))
}

func TestSlack(t *testing.T) {
	got := make(chan string, 1)
	url := receiver(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- r.URL.Path + " " + string(body)
		if strings.Contains(string(body), "forbidden") {
			w.WriteHeader(403)
			fmt.Fprintf(w, "invalid_token for %s", r.URL.Path)
		}
	})
	d, s := openSink(t, "  - {name: sales, type: slack, url_env: SLACK, allow_private: true}\n", "SLACK",
		url+"/services/T0/B0/s3cret")
	for payload, want := range map[string]string{
		`{"text": "a sale", "mrkdwn": true}`: `{"text": "a sale", "mrkdwn": true}`,
		`{"blocks": []}`:                     `{"blocks": []}`,
		`{"amount": 17, "by": "\"x\""}`: `{"text":"*welcome*\n` + "```" +
			`{\"amount\": 17, \"by\": \"\\\"x\\\"\"}` + "```" + `"}`,
	} {
		if a := deliverOne(s, lease(payload)); a.status != 200 {
			t.Errorf("answer = %+v", a)
		}
		if body := <-got; body != "/services/T0/B0/s3cret "+strings.ReplaceAll(want, "\n", `\n`) {
			t.Errorf("payload %s: Slack got %s; want %s", payload, body, want)
		}
	}
	deliverOne(s, lease(fmt.Sprintf(`{"x": %q}`, strings.Repeat("ä", 5000))))
	if body := <-got; len(body) > 3200 || !json.Valid([]byte(body[strings.Index(body, "{"):])) {
		t.Errorf("a long payload gave %d bytes, valid JSON: %t", len(body), json.Valid([]byte(body)))
	}
	_, reason := classify(d, 1, deliverOne(s, lease(`{"text": "forbidden"}`)))
	if reason = clean(reason, d.secrets); strings.Contains(reason, "s3cret") || !strings.HasPrefix(reason, "HTTP 403") {
		t.Errorf("error = %q; want it without the address", reason)
	}
}

func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out.ndjson")
	_, s := openSink(t, fmt.Sprintf("  - {name: log, type: file, path: %q, sync: true}\n", path))
	for range 2 {
		if a := deliverOne(s, lease(`{"n": 1}`)); a.status != 200 {
			t.Fatalf("answer = %+v", a)
		}
	}
	if err := os.Rename(path, path+".1"); err != nil { // as logrotate does
		t.Fatal(err)
	}
	deliverOne(s, lease(`{"n": 2}`))
	line := `{"idempotency_key":"` + pipeline.HashUUID("x").String() + `","tenant_id":3,"tenant":"3",` +
		`"subject_key":"user-1","created_at":"2026-11-30T12:00:00Z","rule":"welcome","data":{"n": %d}}` + "\n"
	for name, want := range map[string]string{path + ".1": fmt.Sprintf(line+line, 1, 1), path: fmt.Sprintf(line, 2)} {
		if got, err := os.ReadFile(name); err != nil || string(got) != want {
			t.Errorf("%s = %q, %v; want %q", name, got, err, want)
		}
	}
	d, s := openSink(t, fmt.Sprintf("  - {name: log, type: file, path: %q}\n", t.TempDir()))
	if status, reason := classify(d, 1, deliverOne(s, lease(`{}`))); status != pipeline.Failed ||
		!strings.Contains(reason, "is a directory") {
		t.Errorf("a path that can't be written: %s, %q; want failed", status, reason)
	}
}

func TestNATS(t *testing.T) {
	ns, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: t.TempDir(),
		Authorization: "t0ken", NoLog: true, NoSigs: true})
	if err != nil {
		t.Fatal(err)
	}
	ns.Start()
	t.Cleanup(func() { ns.Shutdown(); ns.WaitForShutdown() })
	if !ns.ReadyForConnections(30 * time.Second) {
		t.Fatal("the NATS server did not start")
	}
	conn, err := nats.Connect(ns.ClientURL(), nats.Token("t0ken"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	settings := "name: bus, type: nats, url: '" + ns.ClientURL() + "', subject: shop.events, token_env: TOKEN"
	d, s := openSink(t, "  - {"+settings+", allow_private: true}\n", "TOKEN", "t0ken")
	if status, reason := classify(d, 1, deliverOne(s, lease(`{"n": 1}`))); status != pipeline.Failed {
		t.Errorf("without a stream: %s, %q; want failed", status, reason)
	}
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "SHOP", Subjects: []string{"shop.>"}})
	if err != nil {
		t.Fatal(err)
	}
	redriven := lease(`{"n": 1}`)
	redriven.Redrives = 1
	// a repeat, then an operator's retry
	for _, l := range []*pipeline.Lease{lease(`{"n": 1}`), lease(`{"n": 1}`), redriven} {
		if a := deliverOne(s, l); a.status != 200 {
			t.Errorf("answer = %+v", a)
		}
	}
	info, err := stream.Info(t.Context())
	if err != nil || info.State.Msgs != 2 {
		t.Errorf("%d messages in the stream (%v); want the first and the redriven one", info.State.Msgs, err)
	}
	m, err := stream.GetMsg(t.Context(), info.State.FirstSeq)
	if err != nil {
		t.Fatal(err)
	}
	if m.Subject != "shop.events" || string(m.Data) != `{"rule":"welcome","data":{"n": 1}}` ||
		m.Header.Get("X-Order") != "17" ||
		m.Header.Get("Idempotency-Key") != pipeline.HashUUID("x").String() {
		t.Errorf("message = %s %s %v", m.Subject, m.Data, m.Header)
	}

	_, refused := openSink(t, "  - {"+settings+"}\n", "TOKEN", "t0ken")
	if a := deliverOne(refused, lease(`{}`)); a.err == nil {
		t.Error("a private address was dialled without allow_private")
	}

	// The server goes away and comes back.
	port := ns.Addr().(*net.TCPAddr).Port
	ns.Shutdown()
	ns.WaitForShutdown()
	if status, reason := classify(d, 1, deliverOne(s, lease(`{"n": 2}`))); status != pipeline.Failed {
		t.Errorf("without a server: %s, %q; want failed", status, reason)
	}
	back, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: port, JetStream: true, StoreDir: t.TempDir(),
		Authorization: "t0ken", NoLog: true, NoSigs: true})
	if err != nil {
		t.Fatal(err)
	}
	back.Start()
	t.Cleanup(func() { back.Shutdown(); back.WaitForShutdown() })
	again, err := nats.Connect(ns.ClientURL(), nats.Token("t0ken"), nats.RetryOnFailedConnect(true),
		nats.MaxReconnects(-1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(again.Close)
	pgtest.Eventually(t, "the stream is back", func() bool {
		js, _ := jetstream.New(again)
		_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "SHOP", Subjects: []string{"shop.>"}})
		return err == nil
	})
	pgtest.Eventually(t, "sent after the server came back",
		func() bool { return deliverOne(s, lease(`{"n": 2}`)).status == 200 })
}

// TLS is verified, and a certificate of our own is shown where the file names one.
func TestTLS(t *testing.T) {
	dir := t.TempDir()
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "sluice"},
		NotAfter:    time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile := write("client.pem", "CERTIFICATE", der), write("client.key", "PRIVATE KEY", keyDER)
	client, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.TLS.PeerCertificates[0].Subject.CommonName)
	}))
	s.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: x509.NewCertPool()}
	s.TLS.ClientCAs.AddCert(client)
	s.Config.ErrorLog = nil
	s.StartTLS()
	t.Cleanup(s.Close)
	caFile := write("ca.pem", "CERTIFICATE", s.Certificate().Raw)
	for _, c := range []struct{ tls, want string }{
		{"{ca_file: " + caFile + ", cert_file: " + certFile + ", key_file: " + keyFile + "}", ""},
		{"{ca_file: " + caFile + "}", "certificate required"},
		{"{cert_file: " + certFile + ", key_file: " + keyFile + "}", "unknown authority"},
	} {
		_, sink := openSink(t, hook("crm", s.URL, "tls: "+c.tls))
		a := deliverOne(sink, lease(`{}`))
		switch {
		case c.want == "" && a.status != 200:
			t.Errorf("tls %s: %+v; want 200", c.tls, a)
		case c.want != "" && a.err == nil:
			t.Errorf("tls %s: %+v; want an error", c.tls, a)
		case c.want == "unknown authority" && !strings.Contains(a.err.Error(), c.want):
			t.Errorf("tls %s: %v; want %s", c.tls, a.err, c.want)
		}
	}
	for _, text := range []string{"{cert_file: /no/such, key_file: /no/such}", "{cert_file: " + certFile + "}",
		"{ca_file: " + keyFile + "}", "{insecure: true}"} {
		if _, err := Parse("d", []byte("destinations:\n"+hook("crm", s.URL, "tls: "+text)),
			env("SECRET", testSecret)); err == nil {
			t.Errorf("tls %s was taken", text)
		}
	}
}
