package deliver

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline"
)

func TestDeliver(t *testing.T) {
	type got struct {
		http.Header
		body string
	}
	requests := make(chan got, 10)
	url := receiver(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.Method != "POST" || r.URL.String() != "/hooks?x=1" {
			t.Errorf("request %s %s; want POST /hooks?x=1", r.Method, r.URL)
		}
		requests <- got{r.Header, string(body)}
	})
	q := &fakeQueue{lease: time.Minute}
	q.add("crm", 1)
	key := q.due[0].IdempotencyKey.String()
	q.due[0].Headers = map[string]string{"X-Order": "17\r\nX-Evil: 1", "X-Signature": "mine", "Content-Length": "3",
		"X-Shop": "other"}
	q.due = append(q.due, q.due[0])
	q.due[1].ID, q.due[1].Rule, q.due[1].Type = 2, false, `order "placed"`
	d := start(t, DefaultConfig(), destinations(t, hook("crm", url+"/hooks?x=1", "headers: {X-Shop: demo}")), q)
	bodies := map[string]bool{}
	for range 2 {
		r := <-requests
		for name, want := range map[string]string{"Content-Type": "application/json", "Idempotency-Key": key,
			"Webhook-Id": key, "X-Shop": "demo",
			"X-Order": "17  X-Evil: 1", "X-Evil": "", "User-Agent": userAgent,
			"Content-Length": fmt.Sprint(len(r.body))} {
			if got := r.Get(name); got != want {
				t.Errorf("header %s = %q; want %q", name, got, want)
			}
		}
		if len(r.Get("X-Signature")) != 64 || !strings.HasPrefix(r.Get("Webhook-Signature"), "v1,") ||
			len(r.Get("Webhook-Timestamp")) != 10 {
			t.Errorf("signatures: %v", r.Header)
		}
		bodies[r.body] = true
	}
	if !bodies[`{"rule":"welcome","data":{"n":1}}`] || !bodies[`{"type":"order \"placed\"","data":{"n":1}}`] {
		t.Errorf("bodies = %v", bodies)
	}
	pgtest.Eventually(t, "two results recorded", func() bool { return q.count(pipeline.Sent) == 2 })
	r := q.recorded()[0]
	if r.HTTPStatus != 200 || r.Latency <= 0 || r.StartedAt.IsZero() || r.Error != "" {
		t.Errorf("result = %+v", r)
	}
	d.stop()
}

func TestFailuresAreRetriedOrDead(t *testing.T) {
	url := receiver(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/503":
			w.WriteHeader(503)
			io.WriteString(w, "down \x00\xff for a while, Bearer t0ken")
		case "/410":
			w.WriteHeader(410)
		case "/302":
			http.Redirect(w, r, "/followed", http.StatusFound)
		case "/followed":
			t.Error("a redirect was followed")
		case "/huge":
			w.WriteHeader(500)
			for range 50 << 4 {
				if _, err := w.Write(make([]byte, 64<<10)); err != nil {
					return
				}
			}
		case "/hugeok":
			io.WriteString(w, strings.Repeat("x", 1<<20))
		case "/cut":
			c, _, _ := w.(http.Hijacker).Hijack()
			c.Close()
		case "/slow":
			io.Copy(io.Discard, r.Body) // only then does the server notice that the client went away
			<-r.Context().Done()
		}
	})
	var list []string
	for _, path := range []string{"503", "410", "302", "huge", "hugeok", "cut"} {
		list = append(list, hook(path, url+"/"+path, "headers_env: {Authorization: TOKEN}"))
	}
	list = append(list, hook("slow", url+"/slow", "timeout: 50ms"), hook("nobody", refusedAddress(t)),
		"  - {name: private, url: '"+url+"', signatures: none}\n")
	ds, err := Parse("d.yaml", []byte("destinations:\n"+strings.Join(list, "")), env("SECRET", testSecret, "TOKEN",
		"Bearer t0ken"))
	if err != nil {
		t.Fatal(err)
	}
	q := &fakeQueue{lease: time.Minute}
	byID := map[int64]string{}
	for _, name := range ds.Names() {
		q.add(name, 1)
		byID[q.due[len(q.due)-1].ID] = name
	}
	start(t, DefaultConfig(), ds, q)
	pgtest.Eventually(t, "all recorded", func() bool { return len(q.recorded()) == len(byID) })
	want := map[string]struct {
		status pipeline.DeliveryStatus
		error  string
	}{
		"503":     {pipeline.Failed, "HTTP 503: down  \uFFFD for a while, ***"},
		"410":     {pipeline.Dead, "HTTP 410"},
		"302":     {pipeline.Dead, "HTTP 302, to /followed; redirects are not followed"},
		"huge":    {pipeline.Failed, "HTTP 500"},
		"hugeok":  {pipeline.Sent, ""},
		"cut":     {pipeline.Failed, "closed the connection without an answer"},
		"slow":    {pipeline.Failed, "timeout"},
		"nobody":  {pipeline.Failed, "connection refused"},
		"private": {pipeline.Dead, "127.0.0.0/8, which is not public; if it is meant, set allow_private: true"},
	}
	for _, r := range q.recorded() {
		name := byID[r.MessageID]
		w := want[name]
		if r.Status != w.status || !strings.Contains(r.Error, w.error) || (r.Error == "") != (w.error == "") {
			t.Errorf("%s: %s, %q; want %s, %q", name, r.Status, r.Error, w.status, w.error)
		}
		if (r.Status == pipeline.Failed) != (r.RetryIn > 0) {
			t.Errorf("%s: %s with RetryIn %s", name, r.Status, r.RetryIn)
		}
	}
}

// A message whose workers died each time is given up in the end.
func TestTooManyClaimsAreDead(t *testing.T) {
	url := receiver(t, func(http.ResponseWriter, *http.Request) { t.Error("it was sent") })
	q := &fakeQueue{lease: time.Minute}
	q.add("crm", 1)
	q.due[0].Attempt, q.due[0].Lost = 6, 6
	start(t, DefaultConfig(), destinations(t, hook("crm", url)), q)
	pgtest.Eventually(t, "recorded", func() bool { return len(q.recorded()) == 1 })
	if r := q.recorded()[0]; r.Status != pipeline.Dead || !strings.Contains(r.Error,
		"before attempt 7: only 6 are allowed, and its workers died") || !r.StartedAt.IsZero() {
		t.Errorf("result = %+v; want dead with the reason, unsent", r)
	}
}

// What may have killed its worker is counted before it is sent; nothing else costs that statement.
func TestSuspectsAreCountedBeforeTheyAreSent(t *testing.T) {
	url := receiver(t, func(http.ResponseWriter, *http.Request) {})
	q := &fakeQueue{lease: time.Minute, lost: map[int64]bool{3: true}}
	q.add("crm", 3)
	q.due[1].Lost, q.due[2].Lost = 1, 1
	start(t, DefaultConfig(), destinations(t, hook("crm", url)), q)
	pgtest.Eventually(t, "three results", func() bool { return len(q.recorded()) == 3 })
	for _, r := range q.recorded() {
		want := pipeline.Sent
		if r.MessageID == 3 { // its lease has passed to another
			want = pipeline.Released
		}
		if r.Status != want || r.Begun != (r.MessageID == 2) {
			t.Errorf("message %d: %s, begun %t; want %s, begun only the second", r.MessageID, r.Status, r.Begun, want)
		}
	}
	slices.Sort(q.begun)
	if fmt.Sprint(q.begun) != "[2 3]" {
		t.Errorf("begun: %v; want 2 and 3", q.begun)
	}
}

// A lease that would not last for the attempt is given back unsent.
func TestShortLeaseIsReleased(t *testing.T) {
	url := receiver(t, func(http.ResponseWriter, *http.Request) { t.Error("it was sent") })
	q := &fakeQueue{lease: time.Minute}
	d, err := New(DefaultConfig(), destinations(t, hook("crm", url)), q, q.lease, testMetrics(), nil)
	if err != nil {
		t.Fatal(err)
	}
	lease := pipeline.Lease{Until: time.Now().Add(5 * time.Second), Attempt: 1}
	if r := d.attempt(d.lanes["crm"], &lease); r.Status != pipeline.Released {
		t.Errorf("attempt with 5 s of lease left and a timeout of 5 s = %+v; want released", r)
	}
}

// A receiver that hangs holds up its own messages only, and never gets more connections than its concurrency.
func TestHangingReceiverHoldsUpNobody(t *testing.T) {
	release := make(chan struct{})
	var open, most atomic.Int32
	hanging := receiver(t, func(http.ResponseWriter, *http.Request) {
		n := open.Add(1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		<-release
		open.Add(-1)
	})
	good := receiver(t, func(http.ResponseWriter, *http.Request) {})
	q := &fakeQueue{lease: time.Minute}
	q.add("hanging", 500)
	q.add("good", 500)
	start(t, DefaultConfig(), destinations(t, hook("hanging", hanging, "concurrency: 5"), hook("good", good)), q)
	pgtest.Eventually(t, "500 of the good one sent", func() bool { return q.count(pipeline.Sent) == 500 })
	q.mu.Lock()
	left := 0
	for _, l := range q.due {
		if l.Destination == "hanging" {
			left++
		}
	}
	q.mu.Unlock()
	if left != 500-5*8 {
		t.Errorf("%d messages of the hanging receiver are unclaimed; want all but concurrency*prefetch = 40", left)
	}
	close(release)
	pgtest.Eventually(t, "all sent", func() bool { return q.count(pipeline.Sent) == 1000 })
	if most.Load() > 5 {
		t.Errorf("%d requests at once; want at most 5", most.Load())
	}
}

// Connections are used again; one that the receiver closed meanwhile costs no attempt.
func TestConnectionsAreKept(t *testing.T) {
	var opened atomic.Int32
	count := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}),
		ConnState: func(_ net.Conn, s http.ConnState) {
			if s == http.StateNew {
				opened.Add(1)
			}
		}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go count.Serve(l)
	t.Cleanup(func() { count.Close() })
	q := &fakeQueue{lease: time.Minute}
	q.add("crm", 2000)
	d := start(t, DefaultConfig(), destinations(t, hook("crm", "http://"+l.Addr().String(), "concurrency: 8")), q)
	pgtest.Eventually(t, "2000 sent", func() bool { return q.count(pipeline.Sent) == 2000 })
	if n := opened.Load(); n > 8 {
		t.Errorf("%d connections for 8 senders", n)
	}
	d.stop()
}

func TestStaleConnectionCostsNoAttempt(t *testing.T) {
	// This receiver answers once on each connection, and closes it without saying so.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Read(make([]byte, 64<<10))
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
			c.Close()
		}
	}()
	q := &fakeQueue{lease: time.Minute}
	q.add("crm", 1)
	d := start(t, DefaultConfig(), destinations(t, hook("crm", "http://"+l.Addr().String(), "concurrency: 1")), q)
	pgtest.Eventually(t, "the first sent", func() bool { return q.count(pipeline.Sent) == 1 })
	q.add("crm", 1)
	d.Nudge()
	pgtest.Eventually(t, "the second recorded", func() bool { return len(q.recorded()) == 2 })
	if r := q.recorded()[1]; r.Status != pipeline.Sent {
		t.Errorf("the second message = %+v; want it sent on a new connection", r)
	}
}

// With a backlog, claims are few and big.
func TestClaimsAreBig(t *testing.T) {
	url := receiver(t, func(http.ResponseWriter, *http.Request) {})
	q := &fakeQueue{lease: time.Minute}
	q.add("crm", 10_000)
	d := start(t, DefaultConfig(), destinations(t, hook("crm", url)), q)
	stop := make(chan struct{})
	go func() { // what ingest does meanwhile
		for {
			select {
			case <-stop:
				return
			default:
				d.Nudge()
				time.Sleep(time.Millisecond)
			}
		}
	}()
	pgtest.Eventually(t, "10000 sent", func() bool { return q.count(pipeline.Sent) == 10_000 })
	close(stop)
	q.mu.Lock()
	defer q.mu.Unlock()
	useful := 0
	for _, wants := range q.claims {
		if wants[0].Room < 256 {
			continue // after the backlog was gone, each nudge may ask
		}
		useful++
	}
	if useful > 60 {
		t.Errorf("%d claims of 256 or more for 10,000 messages; want about 40 at most", useful)
	}
}

// The end of the process: what was not sent comes back at once, what is under way ends and is recorded.
func TestDrain(t *testing.T) {
	started, release := make(chan struct{}, 100), make(chan struct{})
	url := receiver(t, func(http.ResponseWriter, *http.Request) { started <- struct{}{}; <-release })
	q := &fakeQueue{lease: time.Minute}
	q.add("crm", 100)
	d := start(t, DefaultConfig(), destinations(t, hook("crm", url, "concurrency: 10")), q)
	for range 10 {
		<-started
	}
	stopped := make(chan struct{})
	go func() { d.stop(); close(stopped) }()
	pgtest.Eventually(t, "70 released while 10 are under way", func() bool { return q.count(pipeline.Released) == 70 })
	select {
	case <-stopped:
		t.Error("Run returned with sends under way")
	default:
	}
	close(release)
	<-stopped
	if n := q.count(pipeline.Sent); n != 10 || len(q.recorded()) != 80 {
		t.Errorf("after the drain %d sent, %d recorded; want 10 and 80", n, len(q.recorded()))
	}
}

// A receiver that does not answer can't keep the process from ending.
func TestDrainTimeoutInterruptsSends(t *testing.T) {
	started := make(chan struct{}, 100)
	url := receiver(t, func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		started <- struct{}{}
		<-r.Context().Done()
	})
	cfg := DefaultConfig()
	cfg.DrainTimeout = 10 * time.Millisecond
	q := &fakeQueue{lease: time.Hour}
	q.add("crm", 3)
	d := start(t, cfg, destinations(t, hook("crm", url, "timeout: 5m")), q)
	for range 3 {
		<-started
	}
	d.stop() // fails when that takes a minute
	for _, r := range q.recorded() {
		// A stop costs no attempt: deploys must not use them up.
		if r.Status != pipeline.Released || !strings.Contains(r.Error, "interrupted") {
			t.Errorf("result = %+v; want released, interrupted", r)
		}
	}
	if n := len(q.recorded()); n != 3 {
		t.Errorf("%d results; want 3", n)
	}
}

// A database that is away for a while costs time, and no message.
func TestQueueFailuresAreRepeated(t *testing.T) {
	url := receiver(t, func(http.ResponseWriter, *http.Request) {})
	q := &fakeQueue{lease: time.Minute, failures: 3}
	q.add("crm", 10)
	d := start(t, DefaultConfig(), destinations(t, hook("crm", url)), q)
	pgtest.Eventually(t, "10 sent", func() bool { return q.count(pipeline.Sent) == 10 })
	q.mu.Lock()
	q.failures = 2
	q.mu.Unlock()
	q.add("crm", 10)
	d.Nudge()
	pgtest.Eventually(t, "20 sent", func() bool { return q.count(pipeline.Sent) == 20 })
	d.stop()
}

// What is held in memory is bounded, in messages.
func TestHeldIsBounded(t *testing.T) {
	release := make(chan struct{})
	url := receiver(t, func(http.ResponseWriter, *http.Request) { <-release })
	cfg := DefaultConfig()
	cfg.ClaimBatch = 20
	q := &fakeQueue{lease: time.Minute}
	q.add("crm", 100)
	d, err := New(cfg, destinations(t, hook("crm", url)), q, q.lease, testMetrics(), discard)
	if err != nil {
		t.Fatal(err)
	}
	d.maxHeld = 20
	run(t, d)
	pgtest.Eventually(t, "20 held", func() bool { return d.held.Load() == 20 })
	d.Nudge()
	pgtest.Eventually(t, "the nudge was taken", func() bool { return len(d.claimers[0].nudge) == 0 })
	if n := d.held.Load(); n != 20 {
		t.Errorf("%d messages held; want 20", n)
	}
	close(release)
	pgtest.Eventually(t, "100 sent", func() bool { return q.count(pipeline.Sent) == 100 })
	if d.held.Load() != 0 || d.bytes.Held(0) != 0 {
		t.Errorf("%d messages and %d bytes held at the end", d.held.Load(), d.bytes.Held(0))
	}
}
