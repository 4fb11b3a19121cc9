package ingest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/internal/tenants"
	"sluice.example/sluice/pipeline"
)

// line is one line of the answer to a stream.
type line struct {
	Index, Count, Stored, Duplicate, Rejected, Status int
	Done                                              bool
	Detail                                            string
	Events                                            []struct {
		Index                 int
		Result, Field, Reason string
	}
}

// talk is a stream that is written to and read from by turns.
type talk struct {
	t     *testing.T
	body  *io.PipeWriter
	lines *bufio.Scanner
	resp  *http.Response
	next  int // the index of the first event without a verdict
}

func (d *door) stream(t *testing.T, headers ...string) *talk {
	t.Helper()
	r, w := io.Pipe()
	req, err := http.NewRequest("POST", "http://"+d.addr+"/v1/stream", r)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-ndjson")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close(); resp.Body.Close() })
	return &talk{t, w, bufio.NewScanner(resp.Body), resp, 0}
}

func (k *talk) send(text string) {
	k.t.Helper()
	if _, err := io.WriteString(k.body, text); err != nil {
		k.t.Fatalf("send: %v", err)
	}
}

func (k *talk) read() line {
	k.t.Helper()
	if !k.lines.Scan() {
		k.t.Fatalf("the answer ended: %v", k.lines.Err())
	}
	var l line
	if err := json.Unmarshal(k.lines.Bytes(), &l); err != nil {
		k.t.Fatalf("line %q: %v", k.lines.Text(), err)
	}
	k.next += l.Count
	return l
}

// rest reads to the end and adds up; the last line is given.
func (k *talk) rest() (sum, last line) {
	k.t.Helper()
	for k.lines.Scan() {
		last = line{}
		if err := json.Unmarshal(k.lines.Bytes(), &last); err != nil {
			k.t.Fatalf("line %q: %v", k.lines.Text(), err)
		}
		if last.Done || last.Status != 0 {
			continue
		}
		if last.Index != k.next {
			k.t.Fatalf("line %q: begins at %d; want %d", k.lines.Text(), last.Index, k.next)
		}
		k.next += last.Count
		sum.Count += last.Count
		sum.Stored += last.Stored
		sum.Rejected += last.Rejected
		sum.Duplicate += last.Duplicate
		sum.Events = append(sum.Events, last.Events...)
	}
	return sum, last
}

func (d *door) noMemoryHeld(t *testing.T) {
	t.Helper()
	pgtest.Eventually(t, "no bytes are counted", func() bool { return d.server.bodies.InUse() == 0 },
		func() any { return d.server.bodies.InUse() })
}

func TestStreamAnswersWhileItGoesOn(t *testing.T) {
	m := &memory{}
	d := open(t, m, tenants.Set{}, nil)
	k := d.stream(t)
	if k.resp.StatusCode != 200 || k.resp.Header.Get("Content-Type") != "application/x-ndjson" {
		t.Fatalf("%d %q", k.resp.StatusCode, k.resp.Header.Get("Content-Type"))
	}
	for i := range 3 {
		k.send(fmt.Sprintf("{\"event_name\":\"e%d\"}\n", i))
		if l := k.read(); l.Index != i || l.Count != 1 || l.Stored != 1 {
			t.Fatalf("line %+v; want event %d stored", l, i)
		}
	}
	k.send(`{"event_name":"last"}`) // without a line break
	k.body.Close()
	sum, last := k.rest()
	if !last.Done || last.Count != 4 || last.Stored != 4 || sum.Count != 1 {
		t.Errorf("last line %+v; want 4 stored", last)
	}
	books(t, d, "1", 4, 0, 0)
	d.noMemoryHeld(t)
}

func TestStreamOfManyEvents(t *testing.T) {
	const n = 50_000
	var text strings.Builder
	for i := range n {
		if i%1000 == 7 {
			text.WriteString("{}\n")
		} else {
			fmt.Fprintf(&text, "{\"event_name\":\"e\",\"user_id\":\"%d\"}\r\n\n", i)
		}
	}
	long := `{"event_name":"x","properties":{"a":"` + strings.Repeat("x", 100_000) + `"}}` + "\n"
	all := text.String() + long + `{"event_name":"after"}` + "\n" + long + long
	for name, coded := range map[string]string{"": all, "gzip": gz(all[:len(all)/2]) + gz(all[len(all)/2:]),
		"zstd": zst(all)} {
		m := &memory{}
		d := open(t, m, tenants.Set{}, func(c *Config) {
			c.MaxEvents, c.MaxEventBytes, c.MaxBodyBytes, c.MaxDecodedBytes = 700, 50_000, 1024, 1024
		})
		k := d.stream(t, "Content-Encoding", name)
		go func() {
			io.WriteString(k.body, coded)
			k.body.Close()
		}()
		sum, last := k.rest()
		want := line{Done: true, Count: n + 4, Stored: n - 50 + 1, Rejected: 53}
		if fmt.Sprint(last) != fmt.Sprint(want) || sum.Count != want.Count || sum.Stored != want.Stored ||
			len(sum.Events) != want.Rejected {
			t.Fatalf("%s: last line %+v, sum of the others %d, %d, %d; want %+v", name, last, sum.Count, sum.Stored,
				len(sum.Events), want)
		}
		for i, e := range sum.Events {
			at, reason := i*1000+7, "required"
			if i >= 50 {
				at, reason = []int{n, n + 2, n + 3}[i-50], "ingest.max-event-bytes"
			}
			if e.Index != at || !strings.Contains(e.Reason, reason) {
				t.Fatalf("%s: rejected %+v; want index %d, %s", name, e, at, reason)
			}
		}
		before := -1
		for _, e := range m.events[:n-50] {
			user, err := strconv.Atoi(e.UserID)
			if err != nil || user <= before {
				t.Fatalf("%s: user %q after %d; the order is lost", name, e.UserID, before)
			}
			before = user
		}
		d.noMemoryHeld(t)
	}
}

// TestOffsetsOfAStream count from its first byte, whatever was answered before.
func TestOffsetsOfAStream(t *testing.T) {
	good := `{"event_name":"x"}` + "\n"
	d := open(t, &memory{}, tenants.Set{}, func(c *Config) { c.MaxEvents, c.MaxEventBytes = 10, 1000 })
	k := d.stream(t)
	sent := 0
	expect := func(text, at string) {
		t.Helper()
		k.send(text)
		want := fmt.Sprintf("at byte %d of the body", sent+strings.Index(text, at))
		sent += len(text)
		if l := k.read(); len(l.Events) != 1 || !strings.Contains(l.Events[0].Reason, want) {
			t.Errorf("%q: %+v; want %q", text, l.Events, want)
		}
	}
	expect(`{"event_name":NaN}`+"\n", "NaN")
	expect(`{"event_name":"x","properties":{"a":"\u0000"}}`+"\n", `\u0000`)
	text := strings.Repeat(good, 25)
	k.send(text)
	for before := k.next; k.next < before+25; {
		k.read()
	}
	sent += len(text)
	expect(" \n"+good+`{"event_name":NaN}`+"\n", "NaN")
	// After a line that is skipped.
	long := `{"event_name":"` + strings.Repeat("x", 70_000) + `"}` + "\n"
	k.send(long)
	k.read()
	sent += len(long)
	expect(`{"event_name":NaN}`+"\n", "NaN")
	k.body.Close()
	if _, last := k.rest(); !last.Done {
		t.Errorf("last line %+v", last)
	}
}

// TestStreamIsNotReadWhileNothingIsWritten: a stream that the database does not keep up with waits at the client.
func TestStreamIsNotReadWhileNothingIsWritten(t *testing.T) {
	m := &memory{hold: make(chan struct{}), inside: make(chan struct{}, 1_000_000)}
	d := open(t, m, tenants.Set{}, nil)
	k := d.stream(t)
	event := `{"event_name":"e","properties":{"a":"` + strings.Repeat("x", 1000) + `"}}` + "\n"
	const n = 20_000 // 20 MB, more than the sockets of the two sides hold
	go func() {
		for range n {
			if _, err := io.WriteString(k.body, event); err != nil {
				return
			}
		}
		k.body.Close()
	}()
	<-m.inside
	// The reader is full, and stays so.
	var before float64
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		now := testutil.ToFloat64(d.metrics.wire)
		if now == before && now > streamBytes {
			break
		}
		if before = now; time.Now().After(deadline) {
			t.Fatalf("%v bytes were read, and it goes on", now)
		}
	}
	if before > 4*streamBytes {
		t.Errorf("%v bytes were read while nothing was written; want at most about two chunks of %d", before, streamBytes)
	}
	close(m.hold)
	if sum, last := k.rest(); !last.Done || sum.Stored != n {
		t.Errorf("last line %+v, %d stored; want %d", last, sum.Stored, n)
	}
}

func TestStreamEnds(t *testing.T) {
	t.Run("database away", func(t *testing.T) {
		m := &memory{}
		d := open(t, m, tenants.Set{}, nil)
		k := d.stream(t)
		k.send("{\"event_name\":\"x\"}\n")
		k.read()
		m.mu.Lock()
		m.err = pipeline.ErrUnavailable
		m.mu.Unlock()
		k.send("{\"event_name\":\"x\"}\n")
		if l := k.read(); l.Status != 503 || l.Index != 1 || !strings.Contains(l.Detail, "index") {
			t.Errorf("line %+v; want 503 and index 1", l)
		}
		d.noMemoryHeld(t)
	})
	t.Run("full", func(t *testing.T) {
		m := &memory{err: &pipeline.Overloaded{RetryAfter: time.Second}, inside: make(chan struct{}, 1000)}
		d := open(t, m, tenants.Set{}, nil)
		k := d.stream(t)
		k.send("{\"event_name\":\"x\"}\n")
		<-m.inside
		<-m.inside
		m.mu.Lock()
		m.err = nil
		m.mu.Unlock()
		if l := k.read(); l.Stored != 1 {
			t.Errorf("line %+v; want it stored once there was room", l)
		}
		books(t, d, "1", 1, 0, 0)
	})
	t.Run("drain", func(t *testing.T) {
		m := &memory{}
		d := open(t, m, tenants.Set{}, nil)
		k := d.stream(t)
		k.send("{\"event_name\":\"x\"}\n{\"event_name\":\"half")
		k.read()
		d.stop()
		if l := k.read(); l.Status != 503 || l.Index != 1 || !strings.Contains(l.Detail, "shutting down") {
			t.Errorf("line %+v; want 503 and index 1", l)
		}
		k.body.Close()
		within(t, "Serve to return", d.done)
	})
	t.Run("silence", func(t *testing.T) {
		d := open(t, &memory{}, tenants.Set{}, func(c *Config) { c.IdleTimeout = 50 * time.Millisecond })
		k := d.stream(t)
		if l := k.read(); l.Status != 408 {
			t.Errorf("line %+v; want 408", l)
		}
		k.body.Close()
		d.noMemoryHeld(t)
	})
	t.Run("client gone", func(t *testing.T) {
		m := &memory{}
		d := open(t, m, tenants.Set{}, nil)
		c, r := d.raw("POST /v1/stream HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: " +
			"chunked\r\n\r\n13\r\n{\"event_name\":\"x\"}\n\r\n")
		if _, err := r.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		c.Close()
		d.noMemoryHeld(t)
	})
	t.Run("shorter than its length", func(t *testing.T) {
		d := open(t, &memory{}, tenants.Set{}, nil)
		text := strings.Repeat("{\"event_name\":\"x\"}\n", 1000)
		c, r := d.raw(fmt.Sprintf("POST /v1/stream HTTP/1.1\r\nHost: x\r\nContent-Type: application/"+
			"x-ndjson\r\nContent-Length: %d\r\n\r\n%s", len(text)+1, text))
		c.(*net.TCPConn).CloseWrite()
		if status, body := readReply(t, r); status != 200 || !strings.Contains(body, `"status":400`) ||
			strings.Contains(body, "done") {
			t.Errorf("%d, ending with %q; want a last line that says 400", status, body[max(0, len(body)-200):])
		}
	})
	t.Run("truncated", func(t *testing.T) {
		d := open(t, &memory{}, tenants.Set{}, nil)
		k := d.stream(t, "Content-Encoding", "gzip")
		text := gz("{\"event_name\":\"x\"}\n")
		k.send(text[:len(text)-6])
		k.body.Close()
		if _, last := k.rest(); last.Status != 400 {
			t.Errorf("last line %+v; want 400", last)
		}
	})
	t.Run("not a stream", func(t *testing.T) {
		d := open(t, &memory{}, tenants.Set{}, nil)
		if r := d.do("POST", "/v1/stream", strings.NewReader("{}"), "Content-Type", "application/json"); r.status != 415 {
			t.Errorf("%d; want 415", r.status)
		}
		if r := d.do("POST", "/v1/stream", strings.NewReader("{}"), "Content-Type", "application/x-ndjson",
			"Content-Encoding", "br"); r.status != 415 {
			t.Errorf("%d; want 415", r.status)
		}
	})
}
