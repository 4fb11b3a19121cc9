package main

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline"
)

var overloadFor = flag.Duration("overload", 3*time.Second,
	"how long TestOverload overloads a node; the full form is 60s")

const slowEventsSQL = `
create function slow_down() returns trigger language plpgsql as $$ begin perform pg_sleep(0.25); return null; end $$;
create trigger slow_down before insert on events for each statement execute function slow_down()`

// With a database that takes a fraction of what comes in, a node keeps to its bound on memory, refuses with a time to
// come back, loses nothing that it acknowledged, and goes on when the database does. How quickly it refuses, and its
// rates, are logged: they are figures of the machine.
func TestOverload(t *testing.T) {
	const (
		maxBytes = 96 << 20
		slack    = 64 << 20
		clients  = 360
		events   = 100 // a request
	)
	url := pgtest.URL(t)
	conn := connect(t, url)
	node := startNode(t, url, "--buffer.max-bytes", strconv.Itoa(maxBytes), "--buffer.max-events", "500",
		"--buffer.writers", "2",
		"--ingest.max-reading-bytes", "16MiB", "--ingest.max-body-bytes", "4MiB", "--ingest.max-decoded-bytes", "4MiB",
		"--ingest.answer-timeout", "5m") // a full buffer takes long on a machine that has other things to do
	c := client(t)
	c.Timeout = 5 * time.Minute
	// Large, so that the bound is met by few events, which is cheap for the database.
	padding := strings.Repeat("x", 4000)
	var acknowledged, refused atomic.Int64
	var mu sync.Mutex
	var waits []time.Duration // of refusals
	post := func(body *bytes.Buffer) {
		body.Reset()
		now := time.Now().UTC().Format(time.RFC3339Nano)
		for i := range events {
			fmt.Fprintf(body, `%c{"event_id":"%s","event_name":"overload","occurred_at":"%s","properties":{"padding":"%s"}}`,
				"[,"[min(i, 1)], pipeline.NewUUIDv4(), now, padding)
		}
		body.WriteByte(']')
		begin := time.Now()
		res, err := c.Post(node.Events(), "application/json", bytes.NewReader(body.Bytes()))
		if err != nil {
			t.Errorf("POST: %v", err)
			return
		}
		took := time.Since(begin)
		said, _ := io.ReadAll(res.Body)
		res.Body.Close()
		after := res.Header.Get("Retry-After")
		switch {
		case res.StatusCode == 200 && bytes.Contains(said, fmt.Appendf(nil, `"stored":%d,`, events)):
			acknowledged.Add(events)
		case res.StatusCode == 429 && isSeconds(after):
			refused.Add(1)
			mu.Lock()
			waits = append(waits, took)
			mu.Unlock()
			time.Sleep(500 * time.Millisecond) // the load is three times and more what is taken, whatever Retry-After says
		default:
			t.Errorf("status %d, Retry-After %q: %.200s", res.StatusCode, after, said)
		}
	}
	// load has n clients post for a while, and until enough.
	load := func(n int, d time.Duration, enough func() bool) (rate float64) {
		before, begin := acknowledged.Load(), time.Now()
		var all sync.WaitGroup
		for range n {
			all.Go(func() {
				var body bytes.Buffer
				for !t.Failed() && (time.Since(begin) < d || !enough()) {
					post(&body)
				}
			})
		}
		all.Wait()
		return float64(acknowledged.Load()-before) / time.Since(begin).Seconds()
	}
	some := func() bool { return acknowledged.Load() >= 20*events }
	normal := load(8, time.Second, some)
	baseline := residentBytes(t, node.Pid, "VmRSS")
	if _, err := conn.Exec(t.Context(), slowEventsSQL); err != nil {
		t.Fatal(err)
	}
	before, begin := acknowledged.Load(), time.Now()
	enough := func() bool { return time.Since(begin) >= *overloadFor && refused.Load() >= clients/2 }
	loaded := make(chan struct{})
	go func() { defer close(loaded); load(clients, 0, enough) }()
	for !enough() && !t.Failed() {
		time.Sleep(10 * time.Millisecond)
	}
	slow := float64(acknowledged.Load()-before) / time.Since(begin).Seconds()
	if _, err := conn.Exec(t.Context(), `drop trigger slow_down on events`); err != nil {
		t.Fatal(err)
	}
	<-loaded // what the buffer holds is stored at the old rate again
	peak := residentBytes(t, node.Pid, "VmHWM")
	if t.Failed() {
		return
	}
	again := load(8, time.Second, func() bool { return true })
	slices.Sort(waits)
	t.Logf("%.0f events/s before, %.0f while the database is slow, %.0f after; %d requests refused, half within %s, 99 "+
		"%% within %s, all within %s; memory %d MiB, at most %d MiB",
		normal, slow, again, len(waits), waits[len(waits)/2], waits[len(waits)*99/100], waits[len(waits)-1], baseline>>20,
		peak>>20)
	// The node's own clock starts with a request's header and stops with its answer, so it leaves out how long this
	// process takes to make, send and read.
	metrics := metricsOf(t, node)
	within := metrics.AtMost("sluice_ingest_request_duration_seconds", 0.05, "status=4xx")
	all := metrics.Sum("sluice_ingest_request_duration_seconds_count", "status=4xx")
	t.Logf("by the node's clock %.1f %% of the refusals took less than 50 ms, on average %.1f ms", 100*within/all,
		1000*metrics.Sum("sluice_ingest_request_duration_seconds_sum", "status=4xx")/all)
	if peak-baseline > maxBytes+slack {
		t.Errorf("the memory grew from %d MiB to %d MiB, want at most %d MiB more", baseline>>20, peak>>20,
			(maxBytes+slack)>>20)
	}
	if again == 0 {
		t.Error("nothing was stored after the overload")
	}
	var rows, ids int64
	if err := conn.QueryRow(t.Context(), `select count(*), count(distinct event_id) from events`).Scan(&rows,
		&ids); err != nil {
		t.Fatal(err)
	}
	if rows != acknowledged.Load() || ids != rows {
		t.Errorf("%d rows with %d ids are stored, %d were acknowledged", rows, ids, acknowledged.Load())
	}
}

// residentBytes reads the memory of a process from /proc: VmRSS is what it has, VmHWM the most that it had.
func residentBytes(t *testing.T, pid int, field string) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		var kb int
		if _, err := fmt.Sscanf(line, field+": %d kB", &kb); err == nil {
			return kb << 10
		}
	}
	t.Fatalf("no %s in %s", field, status)
	return 0
}
