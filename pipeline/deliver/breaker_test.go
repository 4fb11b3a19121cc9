package deliver

import (
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline"
)

func TestBreaker(t *testing.T) {
	b := breaker{cfg: breakerConfig{failures: 3, pause: 10 * time.Second, maxPause: 30 * time.Second}}
	now := time.Now()
	enter := func(want bool, wantWait time.Duration) (probe bool) {
		t.Helper()
		ok, probe, wait := b.enter(now)
		if ok != want || wait != wantWait {
			t.Fatalf("enter = %t, wait %s; want %t, %s", ok, wait, want, wantWait)
		}
		return probe
	}
	leave := func(probe bool, r result, pause, want time.Duration) {
		t.Helper()
		if got := b.leave(now, probe, r, pause, 64); got != want {
			t.Fatalf("leave(probe %t, %d, pause %s) opened for %s; want %s", probe, r, pause, got, want)
		}
	}
	room := func(want int) {
		t.Helper()
		if got := b.room(now, 50, 0); got != want {
			t.Fatalf("room = %d; want %d", got, want)
		}
	}
	for _, r := range []result{failed, failed, well, failed, failed} { // never three in a row
		leave(enter(true, 0), r, 0, 0)
	}
	room(50)
	leave(enter(true, 0), failed, 0, 10*time.Second)
	leave(false, failed, 0, 0) // was on its way when it opened
	room(0)
	enter(false, 10*time.Second)
	now = now.Add(10 * time.Second)
	room(1)
	if !enter(true, 0) {
		t.Fatal("what enters after the pause is not a probe")
	}
	room(0)
	enter(false, time.Second) // one probe at a time
	leave(true, failed, 0, 20*time.Second)
	now = now.Add(20 * time.Second)
	leave(enter(true, 0), failed, 0, 30*time.Second)
	now = now.Add(30 * time.Second)
	leave(enter(true, 0), well, 0, 0)
	room(50)
	leave(enter(true, 0), asked, 7*time.Second, 7*time.Second) // it asked for a pause
	now = now.Add(7 * time.Second)
	leave(enter(true, 0), asked, 7*time.Second, 7*time.Second) // and for another, no longer one
	now = now.Add(7 * time.Second)
	leave(enter(true, 0), well, 0, 0)
	room(50)
}

// After a request to be left alone one message is in flight, then two when it succeeded, three when both did, and so
// on.
func TestFewInFlightAfterARequestToBeLeftAlone(t *testing.T) {
	b, now := breaker{}, time.Now()
	senders := func(want int) {
		t.Helper()
		if got := b.senders(now, 5); got != want {
			t.Fatalf("%d senders may run; want %d", got, want)
		}
	}
	senders(5)
	b.leave(now, false, asked, time.Second, 5)
	senders(0)
	if got := b.capacity(100); got != 4 {
		t.Errorf("%d messages may be held; want 4", got)
	}
	now = now.Add(time.Second)
	senders(1)
	_, probe, _ := b.enter(now)
	b.leave(now, probe, well, 0, 5)
	for n := 2; n < 5; n++ {
		senders(n)
		for range n {
			b.leave(now, false, well, 0, 5)
		}
	}
	senders(5)
	if b.busy.Load() || b.capacity(100) != 100 {
		t.Errorf("with all senders at work the breaker still limits them")
	}
	b.leave(now, false, crowded, 0, 5) // a 429 that says nothing more
	senders(1)
	b.leave(now, false, failed, 0, 5)
	senders(1)
	b.leave(now, false, well, 0, 5)
	senders(2)
	b.leave(now, false, asked, time.Minute, 5)
	senders(5) // to give back what would wait for long
}

func TestBreakerThatIsOffOpensOnRequestOnly(t *testing.T) {
	b, now := breaker{}, time.Now()
	for range 1000 {
		if opened := b.leave(now, false, failed, 0, 64); opened != 0 {
			t.Fatalf("opened for %s without a breaker", opened)
		}
	}
	if opened := b.leave(now, false, asked, time.Second, 64); opened != time.Second {
		t.Fatalf("opened for %s; want the second it asked for", opened)
	}
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	check := func(status int, header string, want time.Duration) {
		t.Helper()
		if got := (answer{status: status, retryAfter: header}).pause(now); got != want {
			t.Errorf("HTTP %d, Retry-After %q: pause %s; want %s", status, header, got, want)
		}
	}
	check(503, "120", 2*time.Minute)
	check(429, " 1 ", time.Second)
	check(429, "0", 0)
	check(503, "Mon, 30 Nov 2026 12:01:30 GMT", 90*time.Second)
	check(503, "Monday, 30-Nov-26 12:01:30 GMT", 90*time.Second)
	check(503, "Mon, 30 Nov 2026 11:00:00 GMT", 0)
	for _, garbage := range []string{"", "soon", "-5", "1.5", "99999999999999999999", "1e3"} {
		check(503, garbage, 0)
	}
	check(200, "120", 0)
	check(404, "120", 0)
}

// While a destination is down, its messages wait without being tried: none uses up its attempts.
func TestBreakerCostsNoAttempts(t *testing.T) {
	var up atomic.Bool
	var tries atomic.Int32
	url := receiver(t, func(w http.ResponseWriter, _ *http.Request) {
		tries.Add(1)
		if !up.Load() {
			w.WriteHeader(500)
		}
	})
	q := &fakeQueue{lease: time.Minute}
	q.add("crm", 200)
	d := start(t, DefaultConfig(), destinations(t, hook("crm", url, "concurrency: 1",
		"breaker: {failures: 5, pause: 1h, max_pause: 1h}")), q)
	pgtest.Eventually(t, "what was held released", func() bool {
		return q.count(pipeline.Failed) == 5 &&
			d.held.Load() == 0
	})
	if n := tries.Load(); n != 5 || q.count(pipeline.Failed) != 5 {
		t.Errorf("%d tries, %d failed; want 5 and 5", n, q.count(pipeline.Failed))
	}
	for _, r := range q.recorded() {
		if r.Status == pipeline.Released && (r.RetryIn < 50*time.Minute || r.RetryIn > 75*time.Minute) {
			t.Errorf("released for %s; want the pause of an hour and up to a fifth more", r.RetryIn)
		}
	}
	if open := gauge(t, d.metrics.open, "crm"); open != 1 {
		t.Errorf("sluice_deliver_breaker_open is %v while it is open", open)
	}
	d.Nudge()
	pgtest.Eventually(t, "the nudge was taken", func() bool { return len(d.claimers[0].nudge) == 0 })
	released := len(q.recorded()) - 5
	if released < 1 || released > 4*8 {
		t.Errorf("%d messages released; want those that were held, 32 at most", released)
	}
	// The hour passes.
	up.Store(true)
	b := &d.lanes["crm"].breaker
	b.mu.Lock()
	b.until = time.Now()
	b.mu.Unlock()
	d.Nudge()
	pgtest.Eventually(t, "the rest sent", func() bool { return q.count(pipeline.Sent) == 195-released })
	if open := gauge(t, d.metrics.open, "crm"); open != 0 {
		t.Errorf("sluice_deliver_breaker_open is %v after it closed", open)
	}
}

func TestRetryAfterIsHonouredWithinBounds(t *testing.T) {
	url := receiver(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", strings.TrimPrefix(r.URL.Path, "/"))
		w.WriteHeader(503)
	})
	var list []string
	for i, seconds := range []string{"40", "7200", "0"} {
		list = append(list, hook(fmt.Sprintf("d%d", i), url+"/"+seconds, "max_retry_after: 10m", "retry: [25s]"))
	}
	q := &fakeQueue{lease: time.Minute}
	for i := range list {
		q.add(fmt.Sprintf("d%d", i), 1)
	}
	start(t, DefaultConfig(), destinations(t, list...), q)
	pgtest.Eventually(t, "three results", func() bool { return len(q.recorded()) == 3 })
	want := map[int64]time.Duration{1: 40 * time.Second, 2: 10 * time.Minute, 3: 25 * time.Second}
	for _, r := range q.recorded() {
		least, most, status := want[r.MessageID], want[r.MessageID]*6/5, pipeline.Released
		if r.MessageID == 3 { // it asked for nothing
			most, status = least, pipeline.Failed
		}
		if r.RetryIn < least || r.RetryIn > most || r.Status != status || !strings.Contains(r.Error, "HTTP 503") {
			t.Errorf("message %d: %s, %q, next try in %s; want %s, HTTP 503, in %s to %s", r.MessageID, r.Status,
				r.Error,
				r.RetryIn, status, least, most)
		}
	}
}

// A destination with a rate gets no more than that, whatever its concurrency, and the end of the process does not wait
// for its turn.
func TestRate(t *testing.T) {
	var got atomic.Int32
	url := receiver(t, func(http.ResponseWriter, *http.Request) { got.Add(1) })
	q := &fakeQueue{lease: time.Minute}
	q.add("crm", 1000)
	began := time.Now()
	d := start(t, DefaultConfig(), destinations(t, hook("crm", url, "rate: 50", "burst: 10")), q)
	pgtest.Eventually(t, "60 received", func() bool { return got.Load() >= 60 })
	if most := 10 + 50*time.Since(began).Seconds() + 1; float64(got.Load()) > most {
		t.Errorf("%d received in %s; want at most %.0f", got.Load(), time.Since(began), most)
	}
	if held := d.held.Load(); held > 250 {
		t.Errorf("%d held; want at most what is sent in 5 s", held)
	}
	d.stop()
	if n, sent := len(q.recorded()), q.count(pipeline.Sent); n != sent+q.count(pipeline.Released) ||
		sent > int(got.Load()) {
		t.Errorf("after the end: %d results, %d of them sent, %d received", n, sent, got.Load())
	}
}

// The leases of messages that wait for long are extended; one that another worker took meanwhile is not sent.
func TestLeasesAreExtended(t *testing.T) {
	release := make(chan struct{})
	var sent atomic.Int32
	url := receiver(t, func(http.ResponseWriter, *http.Request) {
		sent.Add(1)
		<-release
	})
	q := &fakeQueue{lease: 2200 * time.Millisecond, lost: map[int64]bool{2: true}}
	q.add("crm", 2)
	d, err := New(DefaultConfig(), destinations(t, hook("crm", url, "concurrency: 1", "timeout: 100ms", "prefetch: 2")),
		q, q.lease, testMetrics(), discard)
	if err != nil {
		t.Fatal(err)
	}
	l := d.lanes["crm"]
	leases, _ := q.Claim(t.Context(), []pipeline.Want{{Destination: "crm", Room: 2}})
	d.held.Add(2)
	l.start = func(*lane) {}
	l.add(leases, 0, 2)
	var at term
	first, _, _ := l.next(&at)
	d.extendLane(t.Context(), l, time.Now().Add(time.Hour))
	if q.extended != 1 || at.until.Sub(first.Until) <= 0 {
		t.Errorf("%d leases extended, the first until %s; want that one, past %s", q.extended, at.until, first.Until)
	}
	if _, ok, _ := l.next(&at); ok {
		t.Error("a message that another worker has is still to be sent")
	}
	if d.held.Load() != 1 {
		t.Errorf("%d held; want 1", d.held.Load())
	}
	close(release)
}

// An order that the file asks for reaches the queue.
func TestOrderReachesTheQueue(t *testing.T) {
	q := &fakeQueue{lease: time.Minute}
	ds := destinations(t, hook("a", "http://a.example.com", "order: {by: subject_key, dead: block}"),
		hook("b", "http://a.example.com", "order: {by: subject_key, dead: skip}"), hook("c", "http://a.example.com"))
	start(t, DefaultConfig(), ds, q)
	got := map[string]pipeline.Order{}
	pgtest.Eventually(t, "a claim for each destination", func() bool {
		q.mu.Lock()
		defer q.mu.Unlock()
		for _, claim := range q.claims {
			for _, want := range claim {
				got[want.Destination] = want.Order
			}
		}
		return len(got) == 3
	})
	want := map[string]pipeline.Order{"a": pipeline.DeadBlocks, "b": pipeline.DeadSkips, "c": pipeline.Unordered}
	if !maps.Equal(got, want) {
		t.Errorf("destinations are claimed with the orders %v; want %v", got, want)
	}
}

func TestPausedDestinationIsLeftAlone(t *testing.T) {
	url := receiver(t, func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/paused" {
			t.Error("a paused destination was called")
		}
	})
	q := &fakeQueue{lease: time.Minute}
	q.add("paused", 10)
	q.add("crm", 10)
	d := start(t, DefaultConfig(), destinations(t, hook("paused", url+"/paused", "paused: true"),
		hook("crm", url, "concurrency: 7")), q)
	pgtest.Eventually(t, "10 sent", func() bool { return q.count(pipeline.Sent) == 10 })
	if n := len(q.recorded()); n != 10 {
		t.Errorf("%d results; want 10", n)
	}
	for name, want := range map[string]float64{"paused": 1, "crm": 0} {
		if got := gauge(t, d.metrics.paused, name); got != want {
			t.Errorf("sluice_deliver_paused of %s is %v; want %v", name, got, want)
		}
	}
	if got := gauge(t, d.metrics.concurrency, "crm"); got != 7 {
		t.Errorf("sluice_deliver_concurrency is %v; want 7", got)
	}
}

// The lag counts from when a message was due: each one that was sent has one.
func TestLagCountsFromWhenAMessageWasDue(t *testing.T) {
	q := &fakeQueue{lease: time.Minute}
	q.add("crm", 10)
	for i := range q.due {
		q.due[i].DueAt = time.Now().Add(-time.Minute)
	}
	url := receiver(t, func(http.ResponseWriter, *http.Request) {})
	d := start(t, DefaultConfig(), destinations(t, hook("crm", url)), q)
	pgtest.Eventually(t, "10 sent", func() bool { return q.count(pipeline.Sent) == 10 })
	var m dto.Metric
	if err := d.metrics.lag.WithLabelValues("crm").(prometheus.Metric).Write(&m); err != nil {
		t.Fatal(err)
	}
	if n, sum := m.GetHistogram().GetSampleCount(), m.GetHistogram().GetSampleSum(); n != 10 || sum < 600 {
		t.Errorf("%d lags of %v s in all; want 10 of a minute or more each", n, sum)
	}
}

func gauge(t *testing.T, of *prometheus.GaugeVec, destination string) float64 {
	t.Helper()
	return testutil.ToFloat64(of.WithLabelValues(destination))
}
