package deliver

import (
	"bufio"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline"
)

// rawReceiver calls serve for each connection, with its number from 0. What serve writes is what a sender reads.
func rawReceiver(t *testing.T, serve func(n int, c net.Conn, requests *bufio.Reader)) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return serveRaw(t, l, serve)
}

func serveRaw(t *testing.T, l net.Listener, serve func(n int, c net.Conn, requests *bufio.Reader)) (addr string) {
	t.Helper()
	var mu sync.Mutex
	var open []net.Conn
	var serving sync.WaitGroup
	serving.Go(func() {
		for n := 0; ; n++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, c)
			mu.Unlock()
			serving.Go(func() {
				defer c.Close()
				serve(n, c, bufio.NewReader(c))
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, c := range open {
			c.Close()
		}
		mu.Unlock()
		serving.Wait()
	})
	return l.Addr().String()
}

// request reads one request whole, and returns its first line.
func readRequest(r *bufio.Reader) (line string, err error) {
	begun, err := r.Peek(1)
	if err != nil || len(begun) == 0 {
		return "", err
	}
	whole, _ := r.Peek(r.Buffered())
	line, _, _ = strings.Cut(string(whole), "\r\n")
	req, err := http.ReadRequest(r)
	if err != nil {
		return "", err
	}
	_, err = io.Copy(io.Discard, req.Body)
	return line, err
}

const ok = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"

// httpKinds are the destinations that speak HTTP, for a server at an address.
func httpKinds(scheme, addr, path string, more ...string) map[string]string {
	rest := ", allow_private: true" + strings.Join(append([]string{""}, more...), ", ")
	return map[string]string{
		"webhook": fmt.Sprintf("{name: d, url: '%s://%s%s', signatures: none%s}", scheme, addr, path, rest),
		"slack":   fmt.Sprintf("{name: d, type: slack, url_env: ADDRESS%s}", rest),
		"qstash": fmt.Sprintf("{name: d, type: qstash, url: '%s://%s', to: 'https://crm.example.com%s', "+
			"token_env: SECRET%s}",
			scheme, addr, path, rest),
	}
}

// A message is sent only by the answer to its own request. Here the receiver sends two answers to the first message, in
// one piece or a moment later, and means neither for the second, which it refuses.
func TestAnswerBelongsToItsRequest(t *testing.T) {
	for _, stray := range []string{ok, "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", "\r\n", "x"} {
		for _, secure := range []bool{false, true} {
			for _, later := range []bool{false, true} {
				strayed := make(chan struct{}, 1)
				var n atomic.Int32
				handler := func(w http.ResponseWriter, r *http.Request) {
					io.Copy(io.Discard, r.Body)
					if n.Add(1) > 1 {
						w.WriteHeader(503)
						return
					}
					c, rw, err := w.(http.Hijacker).Hijack()
					if err != nil {
						t.Error(err)
						return
					}
					defer c.Close()
					if later {
						io.WriteString(c, ok)
						io.WriteString(c, stray)
					} else {
						io.WriteString(c, ok+stray)
					}
					strayed <- struct{}{}
					if _, err := http.ReadRequest(rw.Reader); err == nil {
						t.Error("a second request came on the connection that had strayed")
					}
				}
				s, scheme, more := httptest.NewServer(http.HandlerFunc(handler)), "http", []string{}
				if secure {
					s.Close()
					s = httptest.NewTLSServer(http.HandlerFunc(handler))
					ca := filepath.Join(t.TempDir(), "ca.pem")
					block := &pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}
					if err := os.WriteFile(ca, pem.EncodeToMemory(block), 0o600); err != nil {
						t.Fatal(err)
					}
					scheme, more = "https", []string{"tls: {ca_file: " + ca + "}"}
				}
				for kind, settings := range httpKinds(scheme, s.Listener.Addr().String(), "/x", more...) {
					n.Store(0)
					d, sink := openSink(t, "  - "+settings+"\n", "ADDRESS", s.URL+"/x")
					name := fmt.Sprintf("%s, TLS %t, %q after the answer, later %t", kind, secure, stray, later)
					if status, reason := classify(d, 1, deliverOne(sink, lease(`{}`))); status != pipeline.Sent {
						t.Errorf("%s: the first message %s, %q; want sent", name, status, reason)
					}
					<-strayed
					status, reason := classify(d, 1, deliverOne(sink, lease(`{}`)))
					if status != pipeline.Failed || reason != "HTTP 503" {
						t.Errorf("%s: the second message %s, %q; want failed by its own answer, HTTP 503", name, status,
							reason)
					}
				}
				s.Close()
			}
		}
	}
}

// A server that sent an answer unasked gets one connection for each request.
func TestServerThatStrayedGetsConnectionsOfTheirOwn(t *testing.T) {
	var connections atomic.Int32
	addr := rawReceiver(t, func(n int, c net.Conn, requests *bufio.Reader) {
		connections.Add(1)
		for answer := ok + ok; ; answer = ok {
			if _, err := readRequest(requests); err != nil {
				return
			}
			io.WriteString(c, answer)
		}
	})
	_, s := openSink(t, "  - "+httpKinds("http", addr, "/")["webhook"]+"\n")
	for range 4 {
		if a := deliverOne(s, lease(`{}`)); a.status != 200 {
			t.Fatalf("answer = %+v; want 200", a)
		}
	}
	if n := connections.Load(); n != 4 {
		t.Errorf("4 messages went over %d connections; want one each", n)
	}
}

// An answer that is there before the request is not an answer to it.
func TestAnswerBeforeTheRequestIsAFailure(t *testing.T) {
	spoke := make(chan struct{})
	addr := rawReceiver(t, func(_ int, c net.Conn, _ *bufio.Reader) {
		io.WriteString(c, ok)
		close(spoke)
		io.Copy(io.Discard, c)
	})
	d := newDialer(guard{}, true)
	raw, err := d.dial(addr, time.Now().Add(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	<-spoke
	sock, err := newSocket(raw)
	if err != nil {
		t.Fatal(err)
	}
	conn := &serverConn{Conn: raw, raw: raw, socket: sock, br: bufio.NewReader(raw)}
	if err := conn.quiet(); err != errUnsolicited {
		t.Errorf("a connection on which an answer waits: %v; want %v", err, errUnsolicited)
	}
}

// Only 2xx is sent; what is not a status from 100 to 599 is a failure, and interim answers are not answers.
func TestStatusLines(t *testing.T) {
	var answer atomic.Value
	addr := rawReceiver(t, func(_ int, c net.Conn, requests *bufio.Reader) {
		for {
			if _, err := readRequest(requests); err != nil {
				return
			}
			io.WriteString(c, answer.Load().(string))
		}
	})
	end := "\r\nContent-Length: 0\r\n\r\n"
	for kind, settings := range httpKinds("http", addr, "/x") {
		d, s := openSink(t, "  - "+settings+"\n", "ADDRESS", "http://"+addr+"/x")
		for _, c := range []struct {
			answer string
			want   pipeline.DeliveryStatus
		}{
			{"HTTP/1.1 200 OK" + end, pipeline.Sent},
			{"HTTP/1.0 200 OK" + end, pipeline.Sent},
			{"HTTP/1.1 299 Fine" + end, pipeline.Sent},
			{"HTTP/1.1 204 No Content\r\n\r\n", pipeline.Sent},
			{"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK" + end, pipeline.Sent},
			{"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 500 No" + end, pipeline.Failed},
			{"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 000 No" + end, pipeline.Failed},
			{strings.Repeat("HTTP/1.1 102 Processing\r\n\r\n", 20), pipeline.Failed},
			{"HTTP/1.1 101 Switching Protocols" + end, pipeline.Failed},
			{"HTTP/1.1 000 OK" + end, pipeline.Failed},
			{"HTTP/1.1 099 OK" + end, pipeline.Failed},
			{"HTTP/1.1 600 OK" + end, pipeline.Failed},
			{"HTTP/1.1 999 OK" + end, pipeline.Failed},
			{"HTTP/1.1 20 OK" + end, pipeline.Failed},
			{"HTTP/1.1 2000 OK" + end, pipeline.Failed},
			{"HTTP/1.1 -20 OK" + end, pipeline.Failed},
			{"HTTP/2.0 200 OK" + end, pipeline.Failed},
			{"ICY 200 OK" + end, pipeline.Failed},
		} {
			answer.Store(c.answer)
			if status, reason := classify(d, 1, deliverOne(s, lease(`{}`))); status != c.want {
				t.Errorf("%s: answer %.40q: %s, %q; want %s", kind, c.answer, status, reason, c.want)
			}
		}
	}
}

// Long headers are normal behind CDNs. The status counts, however long they are, and the work is not asked for twice.
func TestLongHeaders(t *testing.T) {
	var size, requests atomic.Int32
	var status atomic.Value
	addr := rawReceiver(t, func(_ int, c net.Conn, r *bufio.Reader) {
		for {
			if _, err := readRequest(r); err != nil {
				return
			}
			requests.Add(1)
			fmt.Fprintf(c, "HTTP/1.1 %s\r\nContent-Security-Policy: default-src %s\r\nRetry-After: 77\r\n"+
				"Content-Length: 2\r\n\r\nno",
				status.Load(), strings.Repeat("a", int(size.Load())))
		}
	})
	for kind, settings := range httpKinds("http", addr, "/x") {
		d, s := openSink(t, "  - "+settings+"\n", "ADDRESS", "http://"+addr+"/x")
		for _, kib := range []int32{0, 5, 16, 64, 200} {
			requests.Store(0)
			size.Store(kib<<10 - 100*min(kib, 1))
			status.Store("200 OK")
			if status, reason := classify(d, 1, deliverOne(s, lease(`{}`))); status != pipeline.Sent {
				t.Errorf("%s: 200 with %d KiB of headers: %s, %q; want sent", kind, kib, status, reason)
			}
			status.Store("503 No")
			a := deliverOne(s, lease(`{}`))
			if status, reason := classify(d, 1, a); status != pipeline.Failed || !strings.HasPrefix(reason,
				"HTTP 503") {
				t.Errorf("%s: 503 with %d KiB of headers: %s, %q; want failed", kind, kib, status, reason)
			}
			if wait := a.pause(time.Now()); kib <= 64 && wait != 77*time.Second {
				t.Errorf("%s: Retry-After after %d KiB of headers: %s; want 77 s", kind, kib, wait)
			}
			if n := requests.Load(); n != 2 {
				t.Errorf("%s: %d requests for 2 messages with %d KiB of headers", kind, n, kib)
			}
		}
	}
}

// Path and query arrive byte for byte.
func TestTargetIsSentByteForByte(t *testing.T) {
	lines := make(chan string, 1)
	addr := rawReceiver(t, func(_ int, c net.Conn, requests *bufio.Reader) {
		for {
			line, err := readRequest(requests)
			if err != nil {
				return
			}
			lines <- line
			io.WriteString(c, ok)
		}
	})
	for target, want := range map[string]string{
		"":  "/",
		"/": "/",
		"/api/v4/projects/group%2Fshop//hooks/a%2Bb%3D?q=%2Fx+y": "",
		"/%2f/amq.default":                    "",
		"/proxy/https://x":                    "",
		"/a/../b/./c/%2e%2e/d":                "",
		"/(x)":                                "",
		"/a;b=1,c/!$&'()*+:@-._~":             "",
		"?a=b":                                "/?a=b",
		"/?":                                  "",
		"/x?a=%41&&b=[]|{}":                   "",
		"/x?a=b?c/d":                          "",
		"/ä?ö":                                "/%C3%A4?%C3%B6",
		"/%7Euser/%E4?%zz":                    "",
		"/x?a b":                              "/x?a%20b",
		"//double//":                          "",
		"/trailing/":                          "",
		"/a%00b":                              "",
		"/x#fragment":                         "/x",
		"/x?q=1#fragment":                     "/x?q=1",
		"/T0/B0/" + strings.Repeat("x", 2000): "",
	} {
		if want == "" {
			want = target
		}
		for kind, settings := range httpKinds("http", addr, strings.ReplaceAll(target, "'", "''")) {
			if kind == "qstash" {
				if strings.Contains(target, "#") || strings.Contains(target, " ") {
					continue // refused: to is a URL without them
				}
				// The receiver's address is part of the path; its end is not ours to complete.
				want := "/v2/publish/https://crm.example.com" + escapeTarget(target)
				settings := settings
				_, s := openSink(t, "  - "+settings+"\n")
				deliverOne(s, lease(`{}`))
				if got := <-lines; got != "POST "+want+" HTTP/1.1" {
					t.Errorf("qstash to %s: request line %q; want %q", target, got, want)
				}
				continue
			}
			_, s := openSink(t, "  - "+settings+"\n", "ADDRESS", "http://"+addr+target)
			deliverOne(s, lease(`{}`))
			if got := <-lines; got != "POST "+want+" HTTP/1.1" {
				t.Errorf("%s %s: request line %q; want %q", kind, target, got, want)
			}
		}
	}
}

// A connection is not used for longer than maxAge, however busy it is, so a name is looked up again.
func TestConnectionsGrowOld(t *testing.T) {
	first, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := first.Addr().(*net.TCPAddr).Port
	second, err := net.Listen("tcp", fmt.Sprintf("127.0.0.2:%d", port))
	if err != nil {
		t.Skipf("this machine has one loopback address: %v", err)
	}
	serve := func(l net.Listener, status int) {
		serveRaw(t, l, func(_ int, c net.Conn, requests *bufio.Reader) {
			for {
				if _, err := readRequest(requests); err != nil {
					return
				}
				fmt.Fprintf(c, "HTTP/1.1 %d x\r\nContent-Length: 0\r\n\r\n", status)
			}
		})
	}
	serve(first, 201)
	serve(second, 202)
	_, s := openSink(t, "  - "+httpKinds("http", fmt.Sprintf("hooks.example.com:%d", port), "/")["webhook"]+"\n")
	c := s.(*webhook).client
	c.dialer.net.Resolver = nameServer(t, "127.0.0.1", "127.0.0.2")
	expect := func(when string, want int) {
		t.Helper()
		if a := deliverOne(s, lease(`{}`)); a.status != want {
			t.Errorf("%s: %+v; want the answer %d", when, a, want)
		}
	}
	expect("at first", 201)
	expect("a moment later", 201)
	c.mu.Lock()
	c.idle[0].born = time.Now().Add(-maxAge)
	c.mu.Unlock()
	expect("when the connection is old", 202)
}

// Connections that nobody uses are closed.
func TestIdleConnectionsAreClosed(t *testing.T) {
	closed := make(chan struct{})
	addr := rawReceiver(t, func(_ int, c net.Conn, requests *bufio.Reader) {
		for {
			if _, err := readRequest(requests); err != nil {
				close(closed)
				return
			}
			io.WriteString(c, ok)
		}
	})
	_, s := openSink(t, "  - "+httpKinds("http", addr, "/")["webhook"]+"\n")
	deliverOne(s, lease(`{}`))
	c := s.(*webhook).client
	c.mu.Lock()
	c.idle[0].used = time.Now().Add(-maxIdle)
	c.mu.Unlock()
	c.reap()
	<-closed
	pgtest.Eventually(t, "the dialer knows of no connection", func() bool {
		c.dialer.mu.Lock()
		defer c.dialer.mu.Unlock()
		return len(c.dialer.open) == 0
	})
}

// Looking for bytes that nobody asked for does not end a good connection, also with TLS, whose own records may arrive
// at any time.
func TestTLSConnectionsAreKept(t *testing.T) {
	var opened atomic.Int32
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
	}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
	}
	s.StartTLS()
	t.Cleanup(s.Close)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	block := &pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}
	if err := os.WriteFile(ca, pem.EncodeToMemory(block), 0o600); err != nil {
		t.Fatal(err)
	}
	settings := httpKinds("https", s.Listener.Addr().String(), "/", "tls: {ca_file: "+ca+"}")["webhook"]
	_, sink := openSink(t, "  - "+settings+"\n")
	for range 50 {
		if a := deliverOne(sink, lease(`{}`)); a.status != 200 {
			t.Fatalf("answer = %+v; want 200", a)
		}
	}
	if n := opened.Load(); n != 1 {
		t.Errorf("50 messages, one after the other, went over %d connections; want 1", n)
	}
}
