package bench

import (
	"encoding/json"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"sluice.example/sluice/pipeline"
)

func newEvents(t *testing.T, s Shape) *Events {
	t.Helper()
	e, err := NewEvents(s)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestIDsAreUniqueAndTellTheirEvent(t *testing.T) {
	e := newEvents(t, Shape{PerRequest: 100})
	seen := map[pipeline.UUID]bool{}
	for _, base := range []int64{0, 123_456_789, 1 << 39} {
		for i := base; i < base+5000; i++ {
			id := e.id(i)
			if seen[id] {
				t.Fatalf("event %d has the id of another, %s", i, id)
			}
			seen[id] = true
			if got, ok := e.index(id); !ok || got != i {
				t.Fatalf("index(%s) = %d, %v; want %d", id, got, ok, i)
			}
			if id[6]>>4 != 7 || id[8]>>6 != 2 {
				t.Fatalf("%s is no UUIDv7", id)
			}
		}
	}
	if _, ok := e.index(pipeline.NewUUIDv7(time.Now())); ok {
		t.Error("the id of somebody else counts as one of this run")
	}
}

func TestBodies(t *testing.T) {
	e := newEvents(t, Shape{PerRequest: 100, Matching: 0.05, Retries: 0.1})
	e.begin()
	type event map[string]any
	first := map[string]string{}
	names := map[any]int{}
	var repeats, said int64
	for range 200 {
		body, n := e.body(nil, e.take(1))
		said += n
		var events []json.RawMessage
		if err := json.Unmarshal(body, &events); err != nil || len(events) != 100 {
			t.Fatalf("%d events, %v in %s", len(events), err, body)
		}
		for _, raw := range events {
			var ev event
			if err := json.Unmarshal(raw, &ev); err != nil {
				t.Fatal(err)
			}
			names[ev["event_name"]]++
			id := ev["event_id"].(string)
			if before, ok := first[id]; ok {
				repeats++
				if before != string(raw) {
					t.Fatalf("a repeat differs from its original:\n%s\n%s", before, raw)
				}
			}
			first[id] = string(raw)
		}
	}
	if repeats != said || repeats < 1000 || repeats > 2500 {
		t.Errorf("%d of 20,000 events are repeats and body said %d; want the same, near 10 %%", repeats, said)
	}
	if names[matchingEvent] != 1000 {
		t.Errorf("%d of 20,000 events match, want 5 %%", names[matchingEvent])
	}
	e.begin()
	if _, n := e.body(nil, e.take(1)); n != 0 {
		t.Errorf("the first request of a round repeats %d events of the round before", n)
	}
}

// While one answer hangs, the requests that could not be sent in time count their wait: a closed loop would show one
// slow answer among fast ones.
func TestOpenLoopCountsFromWhenARequestWasDue(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	release := make(chan struct{})
	first := true
	server := &fasthttp.Server{Handler: func(ctx *fasthttp.RequestCtx) {
		if first { // one connection, so one at a time
			first = false
			<-release
		}
		ctx.SetBodyString(`{"stored":1,"duplicate":0,"rejected":0}`)
	}}
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	defer func() { server.Shutdown(); <-done }()
	time.AfterFunc(500*time.Millisecond, func() { close(release) })
	tally, err := (&load{url: "http://" + l.Addr().String(), events: newEvents(t, Shape{PerRequest: 1}),
		connections: 1}).paced(t.Context(), 100, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if tally.requests != 100 || tally.stored != 100 {
		t.Fatalf("%d requests, %d stored, want 100 of each", tally.requests, tally.stored)
	}
	if got := tally.answers.summary(); got.P90 < 300 {
		// Those that were due in the first 200 ms of the half second waited for at least 300 ms: 20 of 100.
		t.Errorf("p90 is %g ms, want at least 300 ms: 20 requests waited behind the one that hung", got.P90)
	}
}

func TestParseSweep(t *testing.T) {
	points, err := ParseSweep("ingest", "batch=500,2000,writers=1,2,max-wait=0,5ms")
	if err != nil {
		t.Fatal(err)
	}
	if len(points) != 8 || Label("ingest", points[0]) != "writers=1 batch=500 max-wait=0" ||
		Label("ingest", points[7]) != "writers=2 batch=2000 max-wait=5ms" {
		t.Errorf("8 combinations wanted, got %v", points)
	}
	if points, err := ParseSweep("deliver", ""); err != nil || len(points) != 1 ||
		Label("deliver", points[0]) != "concurrency=64 batch=1000 lease=1m" {
		t.Errorf("an empty sweep gives %v, %v; want the defaults", points, err)
	}
	for text, want := range map[string]string{"500,batch=1": "begin with an axis", "lease=1m": "unknown axis",
		"batch=x": "not a count", "max-wait=5": "not a duration", "batch=1,batch=2": "twice", "writers=0": "not a count"} {
		if _, err := ParseSweep("ingest", text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseSweep(%q) = %v, want %q", text, err, want)
		}
	}
}

func point(writers, batch string, rate, p99 float64) Point {
	return Point{Settings: map[string]string{"writers": writers, "batch": batch, "max-wait": "5ms"},
		Rate: Spread{rate, rate, rate}, Latency: &Latency{P99: p99}}
}

func TestKnee(t *testing.T) {
	check := func(want, why string, points ...Point) {
		t.Helper()
		s := &Sweep{Kind: "ingest", Base: Base{BoundMS: 50}, Points: points}
		s.findKnee()
		if s.Knee == nil || Label("ingest", s.Knee.Settings) != want+" max-wait=5ms" || !strings.Contains(s.Knee.Why, why) {
			t.Errorf("knee %+v; want %s, %q", s.Knee, want, why)
		}
	}
	slow, equal, best := point("1", "500", 60, 20), point("2", "500", 96, 20), point("2", "2000", 100, 30)
	check("writers=2 batch=500", "smallest setting within 5 % of the best rate", slow, best, equal)
	check("writers=2 batch=2000", "sweep further", slow, best)
	check("writers=1 batch=500", "50 ms", slow, point("2", "2000", 100, 80))
	check("writers=2 batch=2000", "no setting kept p99", point("1", "500", 60, 70), point("2", "2000", 100, 80))
	broken := best
	broken.Books.Lost = 1
	check("writers=1 batch=500", "", slow, broken)
}

func TestCheckSaysHonestly(t *testing.T) {
	for want, c := range map[string]Check{
		"of raw COPY 0.66, floor 0.70: BELOW": {What: "of raw COPY", Got: Spread{Median: 0.66}, Bound: 0.7,
			Floor: true},
		"of raw COPY 0.71, floor 0.70: met": {What: "of raw COPY", Got: Spread{Median: 0.71}, Bound: 0.7,
			Floor: true},
		"p99 61.0 ms, at most 50.0 ms: ABOVE": atMost("p99", 61, 50),
		"program CPU 4.00 us/event, at most 5.00 us/event: met": {What: "program CPU", Got: Spread{Median: 4},
			Unit: "us/event", Bound: 5},
	} {
		if c.String() != want {
			t.Errorf("%q, want %q", c, want)
		}
	}
}

// A report with a loss shows no rate for that path.
func TestReportsOfALoss(t *testing.T) {
	r := &Report{Results: []Result{{Name: "ingest", Unit: "event", Rate: Spread{77_777, 77_777, 77_777},
		Books: Books{Acknowledged: 100, Lost: 1}}}}
	if err := r.Err(); err == nil || !strings.Contains(err.Error(), "ingest: lost 1, doubled 0 of 100") {
		t.Errorf("Err() = %v", err)
	}
	var table strings.Builder
	if err := WriteTable(&table, r); err != nil {
		t.Fatal(err)
	}
	if text := table.String(); strings.Contains(text, "77,777") || !strings.Contains(strings.ToLower(text),
		"books do not balance") {
		t.Errorf("the table shows the rate of a path that lost an event, or not that it did:\n%s", text)
	}
}

// Every row of the documentation's tables has as many cells as its head.
func TestMarkdownRows(t *testing.T) {
	r := &Report{Results: []Result{
		{Name: "ingest", Floor: &Floor{Name: "raw COPY"}, Checks: []Check{{What: "of raw COPY", Floor: true}}},
		{Name: "latency", Latency: &Latency{}},
	}}
	var b strings.Builder
	if err := WriteMarkdown(&b, r); err != nil {
		t.Fatal(err)
	}
	want := 0
	for line := range strings.Lines(b.String()) {
		n := strings.Count(line, "|")
		if n > 0 && want > 0 && n != want {
			t.Errorf("%d bars, its head has %d: %s", n, want, line)
		}
		want = n
	}
}
