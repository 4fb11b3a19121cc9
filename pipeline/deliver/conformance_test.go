package deliver

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline"
)

// relay stands between a sink and its server, and misbehaves as a test asks.
type relay struct {
	addr    string
	refuse  func() // nobody listens any more
	mu      sync.Mutex
	held    chan struct{} // while set and open, what the server sends is held back
	cut     bool          // close a connection when its client sends something
	clients []net.Conn
}

func newRelay(t *testing.T, server string) *relay {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{addr: l.Addr().String()}
	r.refuse = func() { l.Close(); r.closeAll() }
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			backend, err := net.Dial("tcp", server)
			if err != nil {
				client.Close()
				continue
			}
			r.mu.Lock()
			r.clients = append(r.clients, client, backend)
			r.mu.Unlock()
			conns.Go(func() { r.toServer(backend, client) })
			conns.Go(func() { r.toClient(client, backend) })
		}
	})
	t.Cleanup(func() { r.release(); r.refuse(); conns.Wait() })
	return r
}

func (r *relay) closeAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.clients {
		c.Close()
	}
}

func (r *relay) toServer(backend, client net.Conn) {
	defer backend.Close()
	for b := make([]byte, 64<<10); ; {
		n, err := client.Read(b)
		r.mu.Lock()
		cut := r.cut
		r.mu.Unlock()
		if err != nil || cut {
			client.Close()
			return
		}
		if _, err := backend.Write(b[:n]); err != nil {
			return
		}
	}
}

func (r *relay) toClient(client, backend net.Conn) {
	defer client.Close()
	for b := make([]byte, 64<<10); ; {
		n, err := backend.Read(b)
		if err != nil {
			return
		}
		r.mu.Lock()
		held := r.held
		r.mu.Unlock()
		if held != nil {
			<-held
		}
		if _, err := client.Write(b[:n]); err != nil {
			return
		}
	}
}

// hold keeps back what the server sends until release.
func (r *relay) hold() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held = make(chan struct{})
}

func (r *relay) release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.held != nil {
		close(r.held)
	}
	r.held = nil
}

func (r *relay) setCut(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cut = on
}

// kindsUnderTest are the destinations that speak to a server: the settings of each, for a relay's address, and its
// server, which does what it is asked.
var kindsUnderTest = []struct {
	kind     string
	server   func(t *testing.T) (addr string)
	settings func(addr string) string
}{
	{"webhook", goodHTTP, func(addr string) string {
		return fmt.Sprintf("{name: d, url: 'http://%s', secret_env: SECRET, allow_private: true, timeout: 1s}", addr)
	}},
	{"slack", goodHTTP, func(addr string) string {
		return "{name: d, type: slack, url_env: ADDRESS, allow_private: true, timeout: 1s}"
	}},
	{"qstash", goodHTTP, func(addr string) string {
		return fmt.Sprintf("{name: d, type: qstash, url: 'http://%s', to: 'https://crm.example.com', "+
			"token_env: SECRET, allow_private: true, timeout: 1s}", addr)
	}},
	{"nats", goodNATS, func(addr string) string {
		return fmt.Sprintf("{name: d, type: nats, url: 'nats://%s', subject: shop.events, allow_private: true, "+
			"timeout: 1s}", addr)
	}},
}

func goodHTTP(t *testing.T) string {
	address := receiver(t, func(_ http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) })
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	return u.Host
}

func goodNATS(t *testing.T) string {
	ns, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: t.TempDir(),
		NoLog: true, NoSigs: true})
	if err != nil {
		t.Fatal(err)
	}
	ns.Start()
	t.Cleanup(func() { ns.Shutdown(); ns.WaitForShutdown() })
	if !ns.ReadyForConnections(30 * time.Second) {
		t.Fatal("the NATS server did not start")
	}
	conn, err := nats.Connect(ns.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S",
		Subjects: []string{"shop.>"}}); err != nil {
		t.Fatal(err)
	}
	return strings.TrimPrefix(ns.ClientURL(), "nats://")
}

// Every kind of destination classifies what a server can do to it in the same way, and goes on after it.
func TestKindsConform(t *testing.T) {
	for _, k := range kindsUnderTest {
		t.Run(k.kind, func(t *testing.T) {
			t.Parallel()
			r := newRelay(t, k.server(t))
			d, s := openSink(t, "  - "+k.settings(r.addr)+"\n", "ADDRESS", "http://"+r.addr)
			n := 0
			attempt := func(after string, want pipeline.DeliveryStatus, reason string) {
				t.Helper()
				n++
				l := lease(`{"n": 1}`)
				l.IdempotencyKey = pipeline.HashUUID(fmt.Sprint(n))
				now := time.Now()
				status, got := classify(d, 1, s.send(l, now, now.Add(d.timeout)))
				if status != want || !strings.Contains(got, reason) {
					t.Errorf("%s: %s, %q; want %s, %q", after, status, got, want, reason)
				}
				if took := time.Since(now); took > 30*d.timeout {
					t.Errorf("%s: the attempt took %s with a timeout of %s", after, took, d.timeout)
				}
			}
			// A client that connects in the background is back after a moment.
			recovers := func(after string) {
				t.Helper()
				pgtest.Eventually(t, "sent "+after, func() bool {
					n++
					l := lease(`{"n": 1}`)
					l.IdempotencyKey = pipeline.HashUUID(fmt.Sprint(n))
					now := time.Now()
					status, _ := classify(d, 1, s.send(l, now, now.Add(d.timeout)))
					return status == pipeline.Sent
				})
			}
			attempt("a good server", pipeline.Sent, "")
			r.hold()
			attempt("a server that hangs", pipeline.Failed, "timeout")
			r.release() // the answer comes, too late
			recovers("after a late answer")
			r.setCut(true)
			attempt("a server that closes the connection", pipeline.Failed, "")
			r.setCut(false)
			recovers("after the connection was closed")

			r.hold()
			ended := make(chan answer, 1)
			go func() { now := time.Now(); ended <- s.send(lease(`{}`), now, now.Add(time.Hour)) }()
			s.abort()
			select {
			case a := <-ended:
				if a.err == nil {
					t.Errorf("an aborted attempt = %+v; want an error", a)
				}
			case <-time.After(time.Minute):
				t.Error("abort ended nothing")
			}
			r.release()

			d, s = openSink(t, "  - "+k.settings(r.addr)+"\n", "ADDRESS", "http://"+r.addr)
			r.hold()
			hangTogether(t, d, s)
			r.release()

			d, s = openSink(t, "  - "+k.settings(r.addr)+"\n", "ADDRESS", "http://"+r.addr)
			r.refuse()
			attempt("a server that is not there", pipeline.Failed, "")
		})
	}
}

// hangTogether checks that senders who wait together for a server that hangs do not wait one after the other.
func hangTogether(t *testing.T, d *Destination, s sink) {
	t.Helper()
	began := time.Now()
	var senders sync.WaitGroup
	for range 16 {
		senders.Go(func() {
			if a := s.send(lease(`{}`), began, began.Add(d.timeout)); describe(a.err) != "timeout" {
				t.Errorf("one of many senders to a server that hangs: %+v; want a timeout", a)
			}
		})
	}
	senders.Wait()
	if took := time.Since(began); took > 10*d.timeout {
		t.Errorf("16 senders with a timeout of %s took %s", d.timeout, took)
	}
}

// A file conforms as far as it can: it does not hang, and what can't be written is tried again.
func TestFileConforms(t *testing.T) {
	d, s := openSink(t, fmt.Sprintf("  - {name: d, type: file, path: %q}\n", filepath.Join(t.TempDir(), "out")))
	if status, reason := classify(d, 1, deliverOne(s, lease(`{}`))); status != pipeline.Sent {
		t.Errorf("a good file: %s, %q; want sent", status, reason)
	}
	s.abort()
	if a := deliverOne(s, lease(`{}`)); a.err == nil {
		t.Errorf("after abort: %+v; want an error", a)
	}
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	d, s = openSink(t, fmt.Sprintf("  - {name: d, type: file, path: %q}\n", pipe))
	if status, reason := classify(d, 1, deliverOne(s, lease(`{}`))); status != pipeline.Failed {
		t.Errorf("a pipe that nobody opened: %s, %q; want failed", status, reason)
	}
	reader, err := os.OpenFile(pipe, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	now := time.Now()
	large := lease(`"` + strings.Repeat("x", 1<<20) + `"`)
	if status, reason := classify(d, 1, s.send(large, now, now.Add(100*time.Millisecond))); reason != "timeout" {
		t.Errorf("a pipe that nobody reads: %s, %q; want failed, timeout", status, reason)
	}
	d, s = openSink(t, fmt.Sprintf("  - {name: d, type: file, path: %q}\n", filepath.Join(t.TempDir(), "no",
		"out")))
	if status, reason := classify(d, 1, deliverOne(s, lease(`{}`))); status != pipeline.Failed {
		t.Errorf("a folder that is not there: %s, %q; want failed", status, reason)
	}
}

// TestBlockedStdout: an attempt ends at its timeout where nobody empties the pipe, and what was begun stays apart.
func TestBlockedStdout(t *testing.T) {
	if _, err := os.Stat("/proc/self/fd/1"); err != nil {
		t.Skip("this system can't open a pipe again: there is no /proc")
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout := os.Stdout
	os.Stdout = w
	t.Cleanup(func() { os.Stdout = stdout; r.Close(); w.Close() })
	_, s := openSink(t, "  - {name: d, type: file, path: '-'}\n")
	big := lease(`"` + strings.Repeat("x", 40_000) + `"`)
	sent := 0
	for ; sent < 100; sent++ {
		now := time.Now()
		if a := s.send(big, now, now.Add(100*time.Millisecond)); a.err != nil {
			if !errors.Is(a.err, os.ErrDeadlineExceeded) {
				t.Errorf("a pipe that nobody empties: %v; want a timeout", a.err)
			}
			break
		}
	}
	if sent == 0 || sent == 100 {
		t.Fatalf("%d messages went into a pipe that nobody empties", sent)
	}
	lines := make(chan string, 200)
	go func() {
		defer close(lines)
		in := bufio.NewReader(r)
		for {
			line, err := in.ReadString('\n')
			if err != nil {
				return
			}
			lines <- line
		}
	}()
	if a := deliverOne(s, lease(`{"last": true}`)); a.err != nil {
		t.Fatal(a.err)
	}
	whole := 0
	for line := range lines {
		var one map[string]any
		if json.Unmarshal([]byte(line), &one) == nil {
			whole++
		}
		if strings.Contains(line, `"last"`) {
			if one == nil || whole != sent+1 {
				t.Errorf("%d whole lines, the last of them %.80q; want %d", whole, line, sent+1)
			}
			return
		}
	}
	t.Error("the last message did not come")
}
