package main

import (
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sluice.example/sluice/inbox"
	"sluice.example/sluice/internal/child"
	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/internal/receiver"
	"sluice.example/sluice/operate/books"
)

// The promises of docs/design.md, on real processes.

// Killed at random moments under load, the program has stored every event that it acknowledged, once, and decided about
// each once.
func TestAcknowledgedSurvivesSIGKILL(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	sink := startReceiver(t, nil)
	rules := writeRules(t, sink.URL, "[100ms]")
	at := time.Now()
	var mu sync.Mutex
	acknowledged := map[string]bool{}
	var next atomic.Int64
	var pending [][]string // batches without an answer; clients send them again
	for round := range 4 {
		node := startNode(t, url, rules...)
		c := client(t)
		var clients sync.WaitGroup
		for range 4 {
			clients.Go(func() {
				for {
					mu.Lock()
					var ids []string
					if len(pending) > 0 {
						ids, pending = pending[0], pending[1:]
					}
					mu.Unlock()
					for len(ids) < 20 {
						ids = append(ids, fmt.Sprintf("e%d", next.Add(1)))
					}
					var events []string
					for _, id := range ids {
						events = append(events, testEvent(id, at))
					}
					r := postEvents(c, node.Events(), events...)
					mu.Lock()
					if r.err == nil && r.status == 200 && r.Stored+r.Duplicate == 20 {
						for _, id := range ids {
							acknowledged[id] = true
						}
						mu.Unlock()
						continue
					}
					pending = append(pending, ids)
					mu.Unlock()
					if r.err != nil {
						return // the node is gone
					}
				}
			})
		}
		before := len(acknowledged)
		pgtest.Eventually(t, "the node acknowledges", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(acknowledged) > before
		})
		time.Sleep(time.Duration(rand.IntN(300)) * time.Millisecond) // any moment will do
		kill(t, node)
		clients.Wait()
		t.Logf("round %d: %d events acknowledged so far", round, len(acknowledged))
	}
	conn := connect(t, url)
	found := stored(t, conn)
	checkOnce(t, acknowledged, found)
	if got := query1(t, conn, `select count(*) from outbox where rule_id = 'shop/welcome'`); got != int64(len(found)) {
		t.Errorf("%d signups are stored and %d welcomes decided; want one for each", len(found), got)
	}
	// What the dead nodes had leased and what was never tried is delivered by the next.
	node := startNode(t, url, rules...)
	pgtest.Eventually(t, "everything decided is sent", func() bool {
		return query1(t, conn, `select count(*) from outbox where status <> 'sent'`) == 0
	})
	var stats receiver.Stats
	getJSON(t, sink.URL+"/stats", &stats)
	if stats.Accepted != int64(len(found)) {
		t.Errorf("the receiver took %d distinct messages, want %d", stats.Accepted, len(found))
	}
	signalNode(t, node, syscall.SIGTERM)
	if got := exit(t, node, time.Minute); got != 0 {
		t.Errorf("exit status %d after SIGTERM, want 0", got)
	}
}

// SIGTERM under 200 connections: exit status 0, what is acknowledged is stored, and what is stored was acknowledged.
func TestSIGTERMDrains(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	node := startNode(t, url)
	c := client(t)
	at := time.Now()
	var mu sync.Mutex
	acknowledged := map[string]bool{}
	var clients sync.WaitGroup
	for i := range 200 {
		clients.Go(func() {
			for n := 0; ; n++ {
				id := fmt.Sprintf("c%d-%d", i, n)
				r := postEvents(c, node.Events(), testEvent(id, at))
				if r.err != nil || r.status == 503 {
					return
				}
				if r.status != 200 || r.Stored != 1 {
					t.Errorf("status %d, %+v", r.status, r.answer)
					return
				}
				mu.Lock()
				acknowledged[id] = true
				mu.Unlock()
			}
		})
	}
	pgtest.Eventually(t, "all connections are at work", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(acknowledged) > 1000
	})
	signalNode(t, node, syscall.SIGTERM)
	if got := exit(t, node, time.Minute); got != 0 {
		t.Errorf("exit status %d, want 0", got)
	}
	clients.Wait()
	found := stored(t, connect(t, url))
	checkOnce(t, acknowledged, found)
	unanswered := 0
	for id := range found {
		if !acknowledged[id] {
			unanswered++
		}
	}
	if unanswered > 0 {
		t.Errorf("%d events are stored whose clients got no answer", unanswered)
	}
}

// lockEvents makes every write wait until the returned func is called.
func lockEvents(t *testing.T, url string) (unlock func()) {
	t.Helper()
	conn := connect(t, url)
	if _, err := conn.Exec(t.Context(), `begin; lock table events in access exclusive mode`); err != nil {
		t.Fatal(err)
	}
	return sync.OnceFunc(func() {
		if _, err := conn.Exec(t.Context(), `rollback`); err != nil {
			t.Error(err)
		}
	})
}

func TestSecondSignalStopsAtOnce(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	node := startNode(t, url, "--drain-timeout", "10m")
	unlock := lockEvents(t, url)
	defer unlock()
	answered := make(chan reply, 1)
	go func() { answered <- postEvents(client(t), node.Events(), testEvent("x", time.Now())) }()
	pgtest.Eventually(t, "the event is in the buffer", func() bool {
		return metricsOf(t, node).Sum("sluice_buffer_in_flight_events") == 1
	})
	signalNode(t, node, syscall.SIGTERM)
	logged(t, node, `"msg":"stopping"`)
	signalUntilEnded(t, node, syscall.SIGTERM)
	if got := exit(t, node, 30*time.Second); got != 128+int(syscall.SIGTERM) {
		t.Errorf("exit status %d, want %d", got, 128+int(syscall.SIGTERM))
	}
	if r := <-answered; r.err == nil && r.status == 200 {
		t.Error("an event was acknowledged that could not be stored")
	}
}

// TestTwoSignalsAtOnceDrain: a terminal and a supervisor that both send one mean one stop.
func TestTwoSignalsAtOnceDrain(t *testing.T) {
	t.Parallel()
	node := startNode(t, pgtest.URL(t))
	signalNode(t, node, syscall.SIGTERM)
	signalNode(t, node, syscall.SIGINT)
	if got := exit(t, node, time.Minute); got != 0 {
		t.Errorf("exit status %d, want 0", got)
	}
}

// TestAddressInUse: a start that can't listen changes nothing in the database, and says why.
func TestAddressInUse(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	url := pgtest.URL(t)
	conn := connect(t, url)
	if _, err := conn.Exec(t.Context(), `drop schema public cascade; create schema public`); err != nil {
		t.Fatal(err)
	}
	for _, listen := range []string{l.Addr().String(), "127.0.0.1:nonsense"} {
		for _, door := range []string{"listen", "console.listen"} {
			args := []string{"run", "--database-url", url, "--listen", "127.0.0.1:0", "--admin.listen", "127.0.0.1:0",
				"--console.listen", "127.0.0.1:0", "--" + door, listen}
			if status, _, errOut := runCommand(t, nil, args...); status != 1 || !strings.Contains(errOut, door+": ") {
				t.Errorf("--%s %s: status %d, %s", door, listen, status, errOut)
			}
		}
	}
	if got := query1(t, conn, `select count(*) from pg_tables where tablename = 'schema_version'`); got != 0 {
		t.Error("the database was migrated")
	}
}

// A database that answers nothing any more can't keep the process from ending.
func TestShutdownEndsWhenPostgresHangs(t *testing.T) {
	t.Parallel()
	proxy := pgtest.NewProxy(t, pgtest.URL(t))
	sink := startReceiver(t, nil)
	node := startNode(t, proxy.URL(), append(writeRules(t, sink.URL, "[100ms]"), "--drain-timeout", "3s")...)
	c := client(t)
	if r := postEvents(c, node.Events(), testEvent("before", time.Now())); r.status != 200 {
		t.Fatalf("%+v", r)
	}
	proxy.SetBlackHole(true)
	answered := make(chan reply, 1)
	go func() { answered <- postEvents(c, node.Events(), testEvent("into the hole", time.Now())) }()
	pgtest.Eventually(t, "the event is in the buffer", func() bool {
		return metricsOf(t, node).Sum("sluice_buffer_in_flight_events") == 1
	})
	start := time.Now()
	signalNode(t, node, syscall.SIGTERM)
	if got := exit(t, node, time.Minute); got != 1 {
		t.Errorf("exit status %d, want 1: not everything was drained", got)
	}
	t.Logf("ended %s after SIGTERM, with a drain-timeout of 3 s", time.Since(start).Round(time.Millisecond))
	if r := <-answered; r.err != nil || r.status != 503 {
		t.Errorf("the request that waited: %d, %v; want 503 before its connection is closed", r.status, r.err)
	}
}

// TestShutdownTellsWhatIsLost: with PostgreSQL stopped and a short time to drain, each of 50 requests that wait is
// answered 503, and the log has the number of events that were acknowledged by 202 and are lost.
func TestShutdownTellsWhatIsLost(t *testing.T) {
	t.Parallel()
	proxy := pgtest.NewProxy(t, pgtest.URL(t))
	node := startNode(t, proxy.URL(), "--drain-timeout", "5s", "--ingest.answer-timeout", "1m")
	c := client(t)
	if r := postEvents(c, node.Events(), testEvent("before", time.Now())); r.status != 200 {
		t.Fatalf("%+v", r)
	}
	proxy.SetBlackHole(true)
	for range 3 {
		req := request(t, node.Events(), "", `{"event_name":"lost"}`)
		req.Header.Set("Prefer", "respond-async")
		res, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != 202 {
			t.Fatalf("%d; want 202", res.StatusCode)
		}
	}
	const waiting = 50
	answers := make(chan reply, waiting)
	for i := range waiting {
		go func() { answers <- postEvents(c, node.Events(), testEvent(fmt.Sprint("waits", i), time.Now())) }()
	}
	pgtest.Eventually(t, "all events are in the buffer", func() bool {
		return metricsOf(t, node).Sum("sluice_buffer_in_flight_events") == waiting+3
	})
	signalNode(t, node, syscall.SIGTERM)
	for range waiting {
		if r := <-answers; r.err != nil || r.status != 503 {
			t.Errorf("a request that waited: %d, %v; want 503", r.status, r.err)
		}
	}
	if got := exit(t, node, time.Minute); got != 1 {
		t.Errorf("exit status %d, want 1: not everything was drained", got)
	}
	log, err := os.ReadFile(node.Log())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(log), "53 events") {
		t.Errorf("the log has no number of the events whose outcome is not known:\n%s", log)
	}
	const lost = `"level":"ERROR","msg":"buffer: events that were answered 202 are lost: ` +
		`they were not written before the stop","events":3}`
	if !strings.Contains(string(log), lost) {
		t.Errorf("the log has no line about the three events that were answered 202:\n%s", log)
	}
}

// Received = stored + duplicate + rejected + refused + failed + in flight, and decided = sent + skipped + dead + due +
// leased, with good, repeated, faulty and refused events and a receiver that fails.
func TestBooksBalance(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	verifier, err := inbox.NewStandardWebhooks(testSecret)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := inbox.NewXSignature(testSecret)
	if err != nil {
		t.Fatal(err)
	}
	sink := startReceiver(t, func(o *receiver.Options) {
		o.FailRate, o.LoseAnswers, o.Verifiers = 0.2, 0.1, []inbox.Verifier{verifier, plain}
	})
	node := startNode(t, url, append(writeRules(t, sink.URL, "[50ms]"), "--buffer.max-bytes", "128KiB",
		"--buffer.max-batch-bytes", "64KiB")...)
	conn := connect(t, url)
	at := time.Now()
	c := client(t)
	var refused atomic.Int64
	var clients sync.WaitGroup
	for i := range 16 {
		clients.Go(func() {
			for n := range 30 {
				var events []string
				for e := range 10 {
					events = append(events, testEvent(fmt.Sprintf("c%d-%d-%d", i, n, e), at))
				}
				events = append(events, events[0], `{"event_name":""}`, `{"event_name":"x","properties":{"a":"\u0000"}}`)
				for {
					r := postEvents(c, node.Events(), events...)
					if r.err != nil || r.status == 200 {
						if r.err != nil || r.Duplicate < 1 || r.Rejected != 2 {
							t.Errorf("status %d, %+v, %v", r.status, r.answer, r.err)
						}
						break
					}
					if r.status != 429 || !isSeconds(r.retryAfter) {
						t.Errorf("status %d, Retry-After %q; want 429 with seconds", r.status, r.retryAfter)
						return
					}
					refused.Add(1)
					time.Sleep(10 * time.Millisecond) // sooner than asked for, so that more is refused
				}
			}
		})
	}
	// The books balance at any moment, not only at rest, but for what changes between two reads of a page.
	clients.Wait()
	var b books.Tenant
	pgtest.Eventually(t, "everything decided is delivered", func() bool {
		b = booksOf(t, node)
		return b.Database.Open() == 0
	})
	if wrong := b.Differences.NotZero(); len(wrong) > 0 || b.Process.InFlight != 0 || b.Process.Received == 0 {
		t.Errorf("the books differ by %v: %+v", wrong, b)
	}
	if got := metricsOf(t, node).Sum("sluice_ingest_overloaded_requests_total",
		"tenant=1"); int64(got) != refused.Load() {
		t.Errorf("%d requests were refused, %g by the metrics", refused.Load(), got)
	}
	events := query1(t, conn, `select count(*) from events`)
	if events != b.Process.Stored || events != 16*30*10 {
		t.Errorf("%d rows, %d stored by the books, want %d", events, b.Process.Stored, 16*30*10)
	}
	if decided := b.Process.Decided; decided != events || b.Database.Sent != decided {
		t.Errorf("%d decided, outbox %+v, want %d of them sent", decided, b.Database, events)
	}
	var stats receiver.Stats
	getJSON(t, sink.URL+"/stats", &stats)
	if stats.Accepted != b.Database.Sent || stats.BadSignatures != 0 || stats.Failed == 0 || stats.Duplicates == 0 {
		t.Errorf("receiver %+v; want %d accepted", stats, b.Database.Sent)
	}
}

// While the database takes nothing, what does not fit into the buffer is refused and not queued, readiness says why,
// and what was taken is stored once the database goes on.
func TestFullBufferAnswersAtOnce(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	node := startNode(t, url, "--buffer.max-bytes", "64KiB", "--buffer.max-batch-bytes", "32KiB", "--admin.ready-fill",
		"0.5")
	unlock := lockEvents(t, url)
	defer unlock()
	c := client(t)
	at := time.Now()
	answers := make(chan reply, 50)
	var waiting sync.WaitGroup
	for i := range 50 {
		waiting.Go(func() {
			var events []string
			for e := range 20 {
				events = append(events, testEvent(fmt.Sprintf("%d-%d", i, e), at))
			}
			answers <- postEvents(c, node.Events(), events...)
		})
	}
	// All but what fits is answered while nothing can be stored.
	fits := 64 << 10 / (20 * 350)
	for range 50 - fits - 1 {
		if r := <-answers; r.err != nil || r.status != 429 || !isSeconds(r.retryAfter) {
			t.Fatalf("status %d, Retry-After %q, %v; want 429 with seconds", r.status, r.retryAfter, r.err)
		}
	}
	res, err := http.Get(node.Admin + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(res.Body)
	res.Body.Close()
	if res.StatusCode != 503 || !strings.Contains(string(body), "buffer") {
		t.Errorf("readyz with a full buffer: %d %q, want 503 and the reason", res.StatusCode, body)
	}
	unlock()
	waiting.Wait()
	close(answers)
	taken := int64(0)
	for r := range answers {
		if r.status == 200 {
			taken += r.Stored
		} else if r.status != 429 {
			t.Errorf("status %d, %v", r.status, r.err)
		}
	}
	if got := query1(t, connect(t, url), `select count(*) from events`); got != taken || taken == 0 {
		t.Errorf("%d events stored, %d acknowledged", got, taken)
	}
	pgtest.Eventually(t, "the node is ready again", func() bool {
		res, err := http.Get(node.Admin + "/readyz")
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return res.StatusCode == 200
	})
}

// Two nodes that get the same batches, in opposite order and at the same time, store each event once and never lock
// each other out.
func TestTwoNodesOverlappingBatches(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	nodes := []*child.Process{startNode(t, url), startNode(t, url)}
	at := time.Now()
	const events = 2000
	var forth []string
	for i := range events {
		forth = append(forth, testEvent(fmt.Sprintf("e%d", i), at))
	}
	back := slices.Clone(forth)
	slices.Reverse(back)
	var total, answered atomic.Int64
	var clients sync.WaitGroup
	for n, node := range nodes {
		for w := range 4 {
			list := forth
			if (n+w)%2 == 1 {
				list = back
			}
			clients.Go(func() {
				c := client(t)
				for i := 0; i < events; i += 100 {
					r := postEvents(c, node.Events(), list[i:i+100]...)
					if r.err != nil || r.status != 200 || r.Stored+r.Duplicate != 100 {
						t.Errorf("status %d, %+v, %v", r.status, r.answer, r.err)
						return
					}
					total.Add(r.Stored)
					answered.Add(100)
				}
			})
		}
	}
	clients.Wait()
	if got := query1(t, connect(t, url), `select count(*) from events`); got != events || total.Load() != events {
		t.Errorf("%d rows, %d acknowledged as stored, want %d of each", got, total.Load(), events)
	}
	for _, node := range nodes {
		if got := metricsOf(t, node).Sum("sluice_copyin_retries_total", "cause=deadlock"); got != 0 {
			t.Errorf("%g deadlocks", got)
		}
	}
}

// A node that is killed while its messages wait for an answer leaves them to the next, which delivers them with the
// same key.
func TestUnfinishedLeaseIsPickedUp(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	var mu sync.Mutex
	keys := map[string]int{}
	hold := true
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		mu.Lock()
		keys[r.Header.Get("Idempotency-Key")]++
		held := hold
		mu.Unlock()
		if held {
			<-r.Context().Done()
		}
	}))
	defer receiver.Close()
	rules := writeRules(t, receiver.URL, "[100ms]")
	first := startNode(t, url, rules...)
	var events []string
	for i := range 20 {
		events = append(events, testEvent(fmt.Sprint(i), time.Now()))
	}
	if r := postEvents(client(t), first.Events(), events...); r.status != 200 || r.Stored != 20 {
		t.Fatalf("%+v", r)
	}
	pgtest.Eventually(t, "all are being sent", func() bool { mu.Lock(); defer mu.Unlock(); return len(keys) == 20 })
	kill(t, first)
	mu.Lock()
	hold = false
	mu.Unlock()
	startNode(t, url, rules...)
	conn := connect(t, url)
	pgtest.Eventually(t, "all are sent", func() bool {
		return query1(t, conn, `select count(*) from outbox where status = 'sent'`) == 20
	})
	mu.Lock()
	defer mu.Unlock()
	if len(keys) != 20 {
		t.Errorf("%d different keys for 20 messages", len(keys))
	}
}

// A node that takes events wakes one that delivers: here nothing would be found by polling within the test.
func TestNodesWakeEachOther(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	arrived := make(chan struct{}, 10)
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		arrived <- struct{}{}
	}))
	defer receiver.Close()
	rules := writeRules(t, receiver.URL, "[100ms]")
	sender := startNode(t, url, append(rules, "--roles", "deliver,ingest", "--deliver.poll-interval", "1h")...)
	conn := connect(t, url)
	pgtest.Eventually(t, "the sender listens", func() bool {
		return query1(t, conn,
			`select count(*) from pg_stat_activity where datname = current_database() and query like 'listen %'`) == 1
	})
	taker := startNode(t, url, append(rules, "--roles", "ingest")...)
	if r := postEvents(client(t), taker.Events(), testEvent("a", time.Now())); r.status != 200 || r.Stored != 1 {
		t.Fatalf("%+v", r)
	}
	select {
	case <-arrived:
	case <-time.After(2 * time.Minute):
		t.Fatal("the message did not arrive")
	}
	if got := metricsOf(t, sender).Sum("sluice_claim_notifications_received_total"); got < 1 {
		t.Errorf("the sender got %g notifications, want at least 1", got)
	}
}

// Without a database the program makes its own, keeps what it stored over SIGKILL, and refuses to share it.
func TestEmbeddedPostgresDefault(t *testing.T) {
	t.Parallel()
	dir := publicDir(t) + "/data"
	node := startNode(t, "", "--data-dir", dir)
	if r := postEvents(client(t), node.Events(), testEvent("kept", time.Now())); r.status != 200 || r.Stored != 1 {
		t.Fatalf("%+v", r)
	}
	second := launch(t, "run", "--data-dir", dir, "--listen", "127.0.0.1:0", "--admin.listen", "127.0.0.1:0",
		"--console.listen", "127.0.0.1:0",
		"--log.format", "json")
	if got := exit(t, second, time.Minute); got != 1 {
		t.Errorf("a second process on the data directory: exit status %d, want 1", got)
	}
	kill(t, node)
	node = startNode(t, "", "--data-dir", dir)
	if got := stored(t, connect(t, node.Database)); got["kept"] != 1 {
		t.Errorf("after SIGKILL: %v, want the event", got)
	}
	signalNode(t, node, syscall.SIGTERM)
	if got := exit(t, node, time.Minute); got != 0 {
		t.Errorf("exit status %d, want 0", got)
	}
}

// SIGHUP asks for the rules to be read again; a node that has none goes on.
func TestHangupWithoutRules(t *testing.T) {
	t.Parallel()
	node := startNode(t, pgtest.URL(t))
	signalNode(t, node, syscall.SIGHUP)
	if r := postEvents(client(t), node.Events(), testEvent("after", time.Now())); r.err != nil || r.status != 200 {
		t.Errorf("after SIGHUP: status %d, %v; want 200", r.status, r.err)
	}
	signalNode(t, node, syscall.SIGTERM)
	if got := exit(t, node, time.Minute); got != 0 {
		t.Errorf("exit status %d, want 0", got)
	}
}

// SIGHUP puts the tenants of the file in force.
func TestHangupReloadsTenants(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "tenants.yaml")
	write := func(key string) {
		t.Helper()
		text := fmt.Sprintf("tenants: [{id: 1, name: a, keys: [\"sha256:%x\"]}]\n", sha256.Sum256([]byte(key)))
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("KEY_OLD")
	node := startNode(t, pgtest.URL(t), "--tenants", file)
	status := func(key string) int {
		res, err := http.DefaultClient.Do(request(t, node.Events(), key, `{"event_name":"x"}`))
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return res.StatusCode
	}
	if got := status("KEY_OLD"); got != 200 {
		t.Fatalf("the key of the file: %d; want 200", got)
	}
	write("KEY_NEW")
	signalNode(t, node, syscall.SIGHUP)
	pgtest.Eventually(t, "the new key is taken", func() bool { return status("KEY_NEW") == 200 })
	if got := status("KEY_OLD"); got != 401 {
		t.Errorf("the key that is gone from the file: %d; want 401", got)
	}
}

// A changed rules file comes into force, a broken one does not, and SIGHUP asks for a look at once.
func TestRulesReload(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	text, err := os.ReadFile("../../rules/shop.yaml")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	// The documented responses lie beside the rules.
	if err := os.CopyFS(dir, os.DirFS("../../rules")); err != nil {
		t.Fatal(err)
	}
	rules := dir + "/shop.yaml"
	node := startNode(t, url, append(writeRules(t, "http://127.0.0.1:1", "[100ms]"), "--rules", rules)...)
	if err := os.WriteFile(rules, []byte(strings.Replace(string(text), "owner: team-sales", "owner: team-shop", 1)),
		0o600); err != nil {
		t.Fatal(err)
	}
	logged(t, node, `"msg":"rules reloaded"`)
	if err := os.WriteFile(rules, []byte("version: 7\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	signalNode(t, node, syscall.SIGHUP)
	logged(t, node, "the old ones stay in force")
	if got := metricsOf(t, node).Sum("sluice_evaluate_rules_reload_ok"); got != 0 {
		t.Errorf("sluice_evaluate_rules_reload_ok = %g with a broken file, want 0", got)
	}
}

// What the files say about destinations and topics is in the database for applications that enqueue.
func TestTopics(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	args := writeRules(t, "http://127.0.0.1:1", "[100ms]")
	startNode(t, url, append(args, "--topics", writeFile(t, "topics.yaml", "topics:\n  signups: [welcome, sales]\n"))...)
	if got := query1(t, connect(t, url), `select count(*) from outbox_topics where topic = 'signups'`); got != 2 {
		t.Errorf("%d destinations for the topic, want 2", got)
	}
	status, _, errOut := runCommand(t, nil, append([]string{"config", "--topics",
		writeFile(t, "topics.yaml", "topics: {signups: [welcom]}")}, args...)...)
	if status != 2 || !strings.Contains(errOut, `did you mean "welcome"?`) {
		t.Errorf("a topic with an unknown destination: status %d, %s", status, errOut)
	}
}

func TestDatabaseAwayAtStart(t *testing.T) {
	t.Parallel()
	node := launch(t, "run", "--database-url", "postgres://nobody:hunter2@127.0.0.1:1/x", "--database.start-timeout", "1s",
		"--listen", "127.0.0.1:0", "--admin.listen", "127.0.0.1:0",
		"--console.listen", "127.0.0.1:0", "--log.format", "json")
	if got := exit(t, node, time.Minute); got != 1 {
		t.Errorf("exit status %d, want 1", got)
	}
	if log := node.Tail(100); !strings.Contains(log, "database.start-timeout") || strings.Contains(log, "hunter2") {
		t.Errorf("the log does not say which limit was reached, or tells the password:\n%s", log)
	}
}
