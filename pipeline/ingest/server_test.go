package ingest

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"sluice.example/sluice/internal/tenants"
	"sluice.example/sluice/pipeline"
)

// memory stands in for the buffer: it keeps events, and gives the verdicts and errors that a test asks for.
type memory struct {
	mu     sync.Mutex
	events []pipeline.Event
	err    error
	judge  func(pipeline.Event) pipeline.Verdict
	hold   chan struct{} // closed when answers may go out; nil: at once
	inside chan struct{} // told of each call

	discard bool // keep nothing
	full    bool // Room says so
	away    bool // the same

	asked int // the bytes that Room was asked for last
}

func (m *memory) Room(bytes int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked = bytes
	if m.full {
		return &pipeline.Overloaded{RetryAfter: 7 * time.Second}
	}
	if m.away {
		return &pipeline.Away{RetryAfter: 42 * time.Second}
	}
	return nil
}

func (m *memory) take(events []pipeline.Event) ([]pipeline.Verdict, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return nil, m.err
	}
	if !m.discard {
		m.events = append(m.events, events...)
	}
	verdicts := make([]pipeline.Verdict, len(events))
	for i, e := range events {
		verdicts[i].Outcome = pipeline.Stored
		if m.judge != nil {
			verdicts[i] = m.judge(e)
		}
	}
	return verdicts, nil
}

func (m *memory) Add(ctx context.Context, events []pipeline.Event) ([]pipeline.Verdict, error) {
	if m.inside != nil {
		m.inside <- struct{}{}
	}
	if m.hold != nil {
		select {
		case <-m.hold:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return m.take(events)
}

func (m *memory) AddAsync(events []pipeline.Event) error {
	_, err := m.take(events)
	return err
}

func (m *memory) names() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var names []string
	for _, e := range m.events {
		names = append(names, e.Name)
	}
	return names
}

type door struct {
	t       testing.TB
	server  *Server
	metrics *Metrics
	addr    string
	stop    func()        // ends ctx
	done    chan struct{} // closed when Serve has returned
	err     error
}

func open(t testing.TB, buf Buffer, who tenants.Set, change func(*Config)) *door {
	t.Helper()
	cfg := DefaultConfig()
	if change != nil {
		change(&cfg)
	}
	m := NewMetrics(prometheus.NewRegistry())
	s, err := New(cfg, buf, who, m, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	d := &door{t: t, server: s, metrics: m, addr: ln.Addr().String(), stop: stop, done: make(chan struct{})}
	go func() {
		defer close(d.done)
		d.err = s.Serve(ctx, ln)
	}()
	t.Cleanup(func() {
		stop()
		within(t, "Serve to return", d.done)
		if d.err != nil {
			t.Errorf("Serve: %v", d.err)
		}
	})
	return d
}

func within(t testing.TB, what string, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(60 * time.Second):
		t.Fatalf("waited 60 s for %s", what)
	}
}

type reply struct {
	status int
	header http.Header
	body   string
	json   struct {
		Type, Title, Detail                   string
		Status                                any // "Ok" for PostHog's clients
		Offset                                int
		Stored, Duplicate, Rejected, Accepted int
		Events                                []struct {
			Index                 int
			Result, Field, Reason string
		}
	}
}

func (d *door) post(body string, headers ...string) reply {
	d.t.Helper()
	return d.do("POST", "/v1/events", strings.NewReader(body), headers...)
}

func (d *door) do(method, path string, body io.Reader, headers ...string) reply {
	d.t.Helper()
	req, err := http.NewRequest(method, "http://"+d.addr+path, body)
	if err != nil {
		d.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	client := http.Client{Transport: &http.Transport{DisableCompression: true, DisableKeepAlives: true},
		Timeout: time.Minute}
	resp, err := client.Do(req)
	if err != nil {
		d.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		d.t.Fatal(err)
	}
	r := reply{status: resp.StatusCode, header: resp.Header, body: string(text)}
	if err := json.Unmarshal(text, &r.json); err != nil {
		d.t.Fatalf("answer %q is no JSON: %v", text, err)
	}
	if r.status >= 400 {
		if got := r.header.Get("Content-Type"); got != "application/problem+json" || r.json.Status != float64(r.status) ||
			r.json.Type == "" || r.json.Title == "" || r.json.Detail == "" {
			d.t.Errorf("%d %q: Content-Type %q; want a whole problem document", r.status, r.body, got)
		}
	}
	if r.status == 429 || r.status == 503 {
		if n, err := strconv.Atoi(r.header.Get("Retry-After")); err != nil || n < 1 {
			d.t.Errorf("%d with Retry-After %q; want whole seconds from 1 on", r.status, r.header.Get("Retry-After"))
		}
	}
	return r
}

func gz(text string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	io.WriteString(w, text)
	w.Close()
	return b.String()
}

func zst(text string) string {
	w, _ := zstd.NewWriter(nil)
	return string(w.EncodeAll([]byte(text), nil))
}

func TestVerdictsKeepThePositionInTheRequest(t *testing.T) {
	m := &memory{judge: func(e pipeline.Event) pipeline.Verdict {
		switch e.Name {
		case "dup":
			return pipeline.Verdict{Outcome: pipeline.Duplicate}
		case "bad":
			return pipeline.Verdict{Outcome: pipeline.Rejected, Field: "properties", Reason: "no \"such\" thing\n\x00é\xff"}
		}
		return pipeline.Verdict{Outcome: pipeline.Stored}
	}}
	d := open(t, m, tenants.Set{}, nil)
	body := `[{},{"event_name":"a"},5,{"event_name":"dup"},{"event_name":"b"},{"x":1},{"event_name":"bad"},{}]`
	r := d.post(body)
	if r.status != 200 || r.json.Stored != 2 || r.json.Duplicate != 1 || r.json.Rejected != 5 {
		t.Fatalf("%d %s; want 200 with 2 stored, 1 duplicate, 5 rejected", r.status, r.body)
	}
	var got []string
	for _, e := range r.json.Events {
		got = append(got, fmt.Sprintf("%d %s %s", e.Index, e.Result, e.Field))
	}
	want := []string{"0 rejected event_name", "2 rejected ", "3 duplicate ", "5 rejected x", "6 rejected properties",
		"7 rejected event_name"}
	if !slices.Equal(got, want) {
		t.Errorf("events %q; want %q", got, want)
	}
	if reason := r.json.Events[4].Reason; reason != "no \"such\" thing\n\x00é\ufffd" {
		t.Errorf("reason of the database %q", reason)
	}
	r = d.do("POST", "/v1/events?verdicts=all", strings.NewReader(body))
	for i, e := range r.json.Events {
		if e.Index != i || i == 1 && e.Result != "stored" {
			t.Fatalf("verdicts=all: %s; want all eight in order", r.body)
		}
	}
	if len(r.json.Events) != 8 {
		t.Errorf("verdicts=all: %d events; want 8", len(r.json.Events))
	}
	books(t, d, "1", 16, 8, 0)
}

// TestSeriesAreThereAtZero: an alert on the change of a counter sees the first incident only if the counter was there
// before it. Every tenant and reason is known at start.
func TestSeriesAreThereAtZero(t *testing.T) {
	who, err := tenants.Parse("tenants.yaml", "tenants: [{id: 5, name: a, keys: ["+hashed("key")+"]},"+
		" {id: 6, name: b, keys: ["+hashed("other")+"]}]")
	if err != nil {
		t.Fatal(err)
	}
	for name, set := range map[string]tenants.Set{"no tenants file": {}, "two tenants": who} {
		reg := prometheus.NewRegistry()
		if _, err := New(DefaultConfig(), &memory{}, set, NewMetrics(reg), slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
		n := len(set.IDs())
		for metric, want := range map[string]int{
			"received_events": n, "rejected_events": n * len(causes), "refused_events": n * 3, "overloaded_requests": n,
			"rate_limited_requests": n, "requests": 16, "panics": 1,
		} {
			got, err := testutil.GatherAndCount(reg, "sluice_ingest_"+metric+"_total")
			if err != nil || got != want {
				t.Errorf("%s: sluice_ingest_%s_total has %d series, %v; want %d", name, metric, got, err, want)
			}
		}
	}
}

// books checks received = rejected + refused + what the buffer took.
func books(t *testing.T, d *door, tenant string, received, rejected, refused float64) {
	t.Helper()
	sum := func(v *prometheus.CounterVec, labels ...string) (n float64) {
		for _, l := range labels {
			n += testutil.ToFloat64(v.WithLabelValues(tenant, l))
		}
		return n
	}
	gotRejected := sum(d.metrics.rejected, "type", "missing", "unknown_field", "duplicate_field", "too_long",
		"unstorable", "too_deep", "time", "malformed")
	gotRefused := sum(d.metrics.refused, "full", "draining")
	if got := testutil.ToFloat64(d.metrics.received.WithLabelValues(tenant)); got != received ||
		gotRejected != rejected || gotRefused != refused {
		t.Errorf("received %v, rejected %v, refused %v; want %v, %v, %v", got, gotRejected, gotRefused, received, rejected,
			refused)
	}
}

func TestStatusCodes(t *testing.T) {
	m := &memory{}
	d := open(t, m, tenants.Set{}, func(c *Config) {
		c.MaxBodyBytes, c.MaxDecodedBytes, c.MaxEvents = 64<<10, 128<<10, 100
	})
	good := `{"event_name":"x"}`
	ndjson := []string{"Content-Type", "application/x-ndjson; charset=UTF-8"}
	encoded := func(how string) []string { return []string{"Content-Encoding", how} }
	large := `{"event_name":"x","properties":{"a":"` + strings.Repeat("0123456789", 7000) + `"}}`
	for _, tt := range []struct {
		name, body string
		headers    []string
		status     int
		check      func(reply) bool
	}{
		{"one", good, nil, 200, func(r reply) bool { return r.json.Stored == 1 && strings.Contains(r.body, `"events":[]`) }},
		{"array", "[" + good + "," + good + "]", nil, 200, func(r reply) bool { return r.json.Stored == 2 }},
		{"events", `{"events":[` + good + `]}`, nil, 200, func(r reply) bool { return r.json.Stored == 1 }},
		{"empty array", `[]`, nil, 200,
			func(r reply) bool { return r.body == `{"stored":0,"duplicate":0,"rejected":0,"events":[]}`+"\n" }},
		{"lines", good + "\n" + good, ndjson, 200, func(r reply) bool { return r.json.Stored == 2 }},
		{"gzip", gz(good), encoded("gzip"), 200, func(r reply) bool { return r.json.Stored == 1 }},
		{"two gzip members", gz("["+good) + gz(","+good+"]"), encoded("GZIP"), 200,
			func(r reply) bool { return r.json.Stored == 2 }},
		{"zstd", zst(good), encoded("zstd"), 200, func(r reply) bool { return r.json.Stored == 1 }},
		{"beacon", good, []string{"Content-Type", "text/plain;charset=UTF-8"}, 200, nil},
		{"all rejected", `[{},{}]`, nil, 422, func(r reply) bool {
			return r.json.Rejected == 2 && len(r.json.Events) == 2 && r.json.Events[1].Index == 1
		}},
		{"malformed", `[` + good + `,]`, nil, 400, func(r reply) bool {
			return r.json.Offset == 20 &&
				strings.Contains(r.body, `"offset":20`)
		}},
		{"empty", ``, nil, 400, func(r reply) bool { return strings.Contains(r.json.Detail, "empty") }},
		{"gzip in gzip", gz(gz(good)), encoded("gzip"), 400, nil},
		{"gzip not told", gz(good), nil, 400, nil},
		{"truncated gzip", gz(large)[:200], encoded("gzip"), 400,
			func(r reply) bool { return strings.Contains(r.json.Detail, "decompressed") }},
		{"nothing in gzip", "", encoded("gzip"), 400, nil},
		{"no gzip", good, encoded("gzip"), 400, nil},
		{"truncated zstd", zst(large)[:50], encoded("zstd"), 400, nil},
		{"no zstd", good, encoded("zstd"), 400, nil},
		{"brotli", good, encoded("br"), 415, func(r reply) bool { return r.header.Get("Accept-Encoding") == "gzip, zstd" }},
		{"twice", good, encoded("gzip, gzip"), 415, nil},
		{"form", good, []string{"Content-Type", "application/x-www-form-urlencoded"}, 415, nil},
		{"charset", good, []string{"Content-Type", "application/json; charset=utf-16"}, 415, nil},
		{"too large", large, nil, 413, func(r reply) bool {
			return strings.Contains(r.json.Detail,
				"ingest.max-body-bytes")
		}},
		{"large in gzip", gz(large), encoded("gzip"), 200, nil},
		{"large in zstd", zst(large), encoded("zstd"), 200, nil},
		{"too large in gzip", gz(large + large), encoded("gzip"), 413,
			func(r reply) bool { return strings.Contains(r.json.Detail, "ingest.max-decoded-bytes") }},
		{"too large in zstd", zst(large + large), encoded("zstd"), 413,
			func(r reply) bool { return strings.Contains(r.json.Detail, "ingest.max-decoded-bytes") }},
		{"too many", "[" + strings.Repeat(good+",", 100) + good + "]", nil, 413,
			func(r reply) bool { return strings.Contains(r.json.Detail, "ingest.max-events") }},
		{"async", `[{},` + good + `]`, []string{"Prefer", "wait=5, Respond-Async"}, 202, func(r reply) bool {
			return r.json.Accepted == 1 && r.json.Rejected == 1 && r.json.Events[0].Index == 0 &&
				r.header.Get("Preference-Applied") == "respond-async"
		}},
		{"async, all rejected", `[{}]`, []string{"Prefer", "respond-async"}, 422, nil},
	} {
		r := d.post(tt.body, tt.headers...)
		if r.status != tt.status || tt.check != nil && !tt.check(r) {
			t.Errorf("%s: %d %v %s; want %d", tt.name, r.status, r.header, r.body, tt.status)
		}
	}
	if r := d.do("GET", "/v1/events", nil); r.status != 405 || r.header.Get("Allow") != "POST" {
		t.Errorf("GET: %d, Allow %q; want 405 and POST", r.status, r.header.Get("Allow"))
	}
	if r := d.do("GET", "/healthz", nil); r.status != 200 {
		t.Errorf("GET /healthz: %d; want 200", r.status)
	}
	if r := d.do("POST", "/v1/event", strings.NewReader(good)); r.status != 404 {
		t.Errorf("another path: %d; want 404", r.status)
	}
	if got := testutil.ToFloat64(d.metrics.requests.WithLabelValues("200")); got < 10 {
		t.Errorf("sluice_ingest_requests_total{status=200} = %v; want the requests above", got)
	}
	if got := d.server.bodies.InUse(); got != 0 {
		t.Errorf("%d bytes of bodies are still counted; want 0", got)
	}
}

func TestWhatTheBufferSaysBecomesTheStatus(t *testing.T) {
	m := &memory{}
	d := open(t, m, tenants.Set{}, nil)
	for _, tt := range []struct {
		err    error
		status int
		low    int
		kind   string
	}{
		{fmt.Errorf("buffer: %w", &pipeline.Overloaded{RetryAfter: 7200 * time.Millisecond, Remedy: "x"}), 429, 8,
			"overloaded"},
		{fmt.Errorf("copyin: %w", pipeline.ErrUnavailable), 503, 1, "unavailable"},
		{fmt.Errorf("copyin: %w: %w", pipeline.ErrUnavailable, context.DeadlineExceeded), 503, 1, "unavailable"},
		{fmt.Errorf("copyin: %w", pipeline.ErrFault), 500, 1, "cannot-store"},
		{fmt.Errorf("%w: %w", pipeline.ErrDiskFull, context.DeadlineExceeded), 503, 5, "disk-full"},
		{fmt.Errorf("%w: %w", pipeline.ErrLocked, context.DeadlineExceeded), 503, 1, "locked"},
		{pipeline.ErrClosed, 503, 1, "draining"},
		{errors.New("something else"), 503, 1, "unavailable"},
	} {
		for _, async := range []string{"", "respond-async"} {
			m.err = tt.err
			r := d.post(`[{"event_name":"x"},{}]`, "Prefer", async)
			after, _ := strconv.Atoi(r.header.Get("Retry-After"))
			if r.status != tt.status || after < tt.low || after > tt.low+tt.low/4+1 || !strings.HasSuffix(r.json.Type,
				":"+tt.kind) {
				t.Errorf("%v: %d, Retry-After %d, %s; want %d, %d or a little more, %s", tt.err, r.status, after, r.body,
					tt.status, tt.low, tt.kind)
			}
		}
	}
	books(t, d, "1", 32, 16, 4)
}

// Who means rules to look at old events says so with the request; nobody else's events are marked.
func TestAnyAgeIsPreferred(t *testing.T) {
	m := &memory{}
	d := open(t, m, tenants.Set{}, nil)
	for prefer, want := range map[string]bool{"": false, "respond-async": false, "any-age": true,
		"respond-async, Any-Age": true} {
		m.events = nil
		r := d.post(`[{"event_name":"x"},{"event_name":"y"}]`, "Prefer", prefer)
		if r.status != 200 && r.status != 202 || len(m.events) != 2 {
			t.Fatalf("Prefer: %s: %d, %d events", prefer, r.status, len(m.events))
		}
		for _, e := range m.events {
			if e.AnyAge != want {
				t.Errorf("Prefer: %s: AnyAge is %v, want %v", prefer, e.AnyAge, want)
			}
		}
	}
}

// A request that there is no room for is refused before its body is looked at, and its events are in no counter. The
// body is read off the connection, which goes on. Where the key is in the body it has to be decoded first, and
// clients that lose what is refused wait for room.
func TestRefusedBeforeDecoding(t *testing.T) {
	m := &memory{full: true}
	d := open(t, m, tenants.Set{}, nil)
	c, r := d.raw("")
	body := strings.Repeat("no JSON ", 50_000)
	for range 2 {
		fmt.Fprintf(c, "POST /v1/events HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, res.Body)
		if after, _ := strconv.Atoi(res.Header.Get("Retry-After")); res.StatusCode != 429 || after < 7 || res.Close {
			t.Errorf("no room: %d, Retry-After %d, close %v; want 429, 7 or more, and an open connection", res.StatusCode,
				after, res.Close)
		}
	}
	if m.asked != len(body) {
		t.Errorf("asked for room for %d bytes, want %d", m.asked, len(body))
	}
	if got := testutil.ToFloat64(d.metrics.overloaded.WithLabelValues("1")); got != 2 {
		t.Errorf("%v requests counted as overloaded, want 2", got)
	}
	if got := testutil.ToFloat64(d.metrics.decoded); got != 0 {
		t.Errorf("%v bytes decoded, want none", got)
	}
	books(t, d, "1", 0, 0, 0)
	if got := d.do("POST", "/batch/",
		strings.NewReader(`{"api_key":"k","batch":[{"event":"x","distinct_id":"u"}]}`)); got.status != 200 {
		t.Errorf("a shape that waits for room: %d %s; want 200", got.status, got.body)
	}
}

func TestAnswerTimeout(t *testing.T) {
	m := &memory{hold: make(chan struct{})}
	d := open(t, m, tenants.Set{}, func(c *Config) { c.AnswerTimeout = 10 * time.Millisecond })
	if r := d.post(`{"event_name":"x"}`); r.status != 503 || !strings.HasSuffix(r.json.Type, ":outcome-unknown") {
		t.Errorf("%d %s; want 503, outcome unknown", r.status, r.body)
	}
	close(m.hold)
}

func TestTenants(t *testing.T) {
	auth, err := tenants.Parse("tenants.yaml", "tenants: [{id: 5, name: a, keys: ["+hashed("key")+"]}]")
	if err != nil {
		t.Fatal(err)
	}
	m := &memory{}
	d := open(t, m, auth, nil)
	for _, headers := range [][]string{nil, {"Authorization", "Bearer wrong"}, {"X-Write-Key", "wrong"}} {
		if r := d.post(`{"event_name":"x"}`, headers...); r.status != 401 || r.header.Get("WWW-Authenticate") == "" {
			t.Errorf("%q: %d; want 401 with WWW-Authenticate", headers, r.status)
		}
	}
	for _, headers := range [][]string{{"Authorization", "Bearer key"}, {"X-Write-Key", "key"}, {"Authorization",
		"Basic " + base64.StdEncoding.EncodeToString([]byte("key:"))}} {
		if r := d.post(`{"event_name":"x"}`, headers...); r.status != 200 {
			t.Errorf("%q: %d; want 200", headers, r.status)
		}
	}
	for _, e := range m.events {
		if e.Tenant != 5 {
			t.Errorf("event of tenant %d; want 5", e.Tenant)
		}
	}
	books(t, d, "5", 3, 0, 0)
}

func TestABugCostsOneRequest(t *testing.T) {
	m := &memory{judge: func(e pipeline.Event) pipeline.Verdict {
		if e.Name == "bug" {
			panic("bug")
		}
		return pipeline.Verdict{Outcome: pipeline.Stored}
	}}
	d := open(t, m, tenants.Set{}, nil)
	if r := d.post(`{"event_name":"bug"}`); r.status != 500 {
		t.Errorf("%d; want 500", r.status)
	}
	if r := d.post(`{"event_name":"x"}`); r.status != 200 {
		t.Errorf("after it: %d; want 200", r.status)
	}
	if got := testutil.ToFloat64(d.metrics.panics); got != 1 {
		t.Errorf("sluice_ingest_panics_total = %v; want 1", got)
	}
}

func TestConfigNamesEveryFault(t *testing.T) {
	if err := DefaultConfig().validate(); err != nil {
		t.Errorf("the defaults: %v", err)
	}
	_, err := New(Config{MaxReadingBytes: -1}, nil, tenants.Set{}, nil, nil)
	if err == nil {
		t.Fatal("a zero Config: no error")
	}
	for _, key := range []string{"max-body-bytes", "max-decoded-bytes", "max-reading-bytes", "max-event-bytes",
		"max-events", "max-age", "max-ahead",
		"concurrency", "read-timeout", "idle-timeout", "answer-timeout"} {
		if !strings.Contains(err.Error(), "ingest."+key+" ") {
			t.Errorf("the error does not name ingest.%s:\n%v", key, err)
		}
	}
}
