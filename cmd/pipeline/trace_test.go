package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"sluice.example/sluice/internal/pgtest"
)

const (
	testTrace   = "4bf92f3577b34da6a3ce929d0e0e4736"
	testSpan    = "00f067aa0ba902b7"
	testSampled = "00-" + testTrace + "-" + testSpan + "-01"
)

// headersOf is a receiver that keeps the headers of what it gets by the user whom it is about.
type headersOf struct {
	mu  sync.Mutex
	got map[string]http.Header
}

func (h *headersOf) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	_, user, _ := strings.Cut(string(b), `"user":`)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.got[strings.Trim(user, ` "}`)] = r.Header
}

func (h *headersOf) of(user string) http.Header {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.got[user]
}

// tracedNode is a node with a rule that sends what happens to x to a receiver.
func tracedNode(t *testing.T, url string, args ...string) (events string, got *headersOf) {
	t.Helper()
	got = &headersOf{got: map[string]http.Header{}}
	sink := httptest.NewServer(got)
	t.Cleanup(sink.Close)
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(rules, []byte("version: 1\nruleset: t\n"+
		"defaults: {owner: me, response: https://wiki/x}\nrules:\n"+
		"  - {id: x, on: x, send_to: welcome, payload: {user: event.user_id}}\n"+
		"  - {id: shadow, on: x, send_to: sales, payload: {user: event.user_id}, state: shadow}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	node := startNode(t, url, append(append(writeRules(t, sink.URL, "[50ms]"), "--rules", rules), args...)...)
	return node.Events(), got
}

// sendTraced posts an event of a user to a path, and waits until the message about it has arrived.
func sendTraced(t *testing.T, got *headersOf, url, user, body string, headers ...string) http.Header {
	t.Helper()
	req, err := http.NewRequest("POST", url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case strings.HasSuffix(url, "/stream"):
		req.Header.Set("Content-Type", "application/x-ndjson")
	case strings.HasPrefix(body, `{"specversion"`):
		req.Header.Set("Content-Type", "application/cloudevents+json")
	default:
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header[headers[i]] = append(req.Header[headers[i]], headers[i+1])
	}
	res, err := client(t).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	answer, _ := io.ReadAll(res.Body)
	res.Body.Close()
	if res.StatusCode != 200 {
		t.Fatalf("%s: status %d, %s", user, res.StatusCode, answer)
	}
	pgtest.Eventually(t, "the message about "+user+" arrives", func() bool { return got.of(user) != nil })
	return got.of(user)
}

// TestTraceReachesTheReceiver: from a request or a CloudEvent, through the outbox, to the receiver's headers; only what
// is sampled and follows the grammar.
func TestTraceReachesTheReceiver(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	events, got := tracedNode(t, url, "--ingest.trace-context")
	cloud := strings.TrimSuffix(events, "/v1/events") + "/v1/cloudevents"
	stream := strings.TrimSuffix(events, "/v1/events") + "/v1/stream"
	other := strings.Replace(testSampled, testTrace, strings.Repeat("ab", 16), 1)
	unsampled := strings.TrimSuffix(testSampled, "1") + "0"
	n := 0
	check := func(what, path, more, wantParent, wantState string, headers ...string) {
		t.Helper()
		n++
		user := fmt.Sprint("u", n)
		body := fmt.Sprintf(`{"event_name":"x","user_id":%q}`, user)
		if path == cloud {
			body = fmt.Sprintf(`{"specversion":"1.0","id":"1","source":"/%s","type":"x","userid":%q%s}`, user, user, more)
		}
		h := sendTraced(t, got, path, user, body, headers...)
		if parent, state := h.Get("Traceparent"), h.Get("Tracestate"); parent != wantParent || state != wantState ||
			h.Get("X-Evil") != "" {
			t.Errorf("%s: the receiver got traceparent %q and tracestate %q, want %q and %q; %v", what, parent, state,
				wantParent, wantState, h)
		}
	}
	check("sampled", events, "", testSampled, "rojo=00f067aa0ba902b7", "Traceparent", testSampled,
		"Tracestate", "rojo=00f067aa0ba902b7")
	check("two states", events, "", testSampled, `a="1\,b=2`, "traceparent", testSampled, "tracestate", `a="1\`,
		"tracestate", "b=2")
	check("a later version", events, "", testSampled, "", "traceparent", "cc"+testSampled[2:]+"-what.the.future.has")
	check("not sampled", events, "", "", "", "Traceparent", unsampled, "Tracestate", "a=1")
	check("none", events, "", "", "", "Tracestate", "a=1")
	check("two", events, "", "", "", "Traceparent", testSampled, "Traceparent", other)
	check("upper case", events, "", "", "", "Traceparent", strings.ToUpper(testSampled))
	check("10 kB", events, "", "", "", "Traceparent", testSampled+"-"+strings.Repeat("a", 10_000))
	check("10 kB of a later version", events, "", testSampled, "",
		"Traceparent", "cc"+testSampled[2:]+"-"+strings.Repeat("a", 10_000))
	check("a state of 10 kB", events, "", testSampled, "", "Traceparent", testSampled, "Tracestate",
		"a="+strings.Repeat("v", 10_000))
	check("its own", cloud, `,"traceparent":"`+testSampled+`","tracestate":"a=1"`, testSampled, "a=1",
		"Traceparent", other)
	check("its own is not sampled", cloud, `,"traceparent":"`+unsampled+`"`, "", "", "Traceparent", other)
	check("its own is none", cloud, `,"traceparent":"x","tracestate":"a=1"`, other, "", "Traceparent", other)
	check("line breaks", cloud, `,"traceparent":"`+testSampled+`\r\nX-Evil: 1"`, "", "")
	check("line breaks in the state", cloud, `,"traceparent":"`+testSampled+`","tracestate":"a=1\r\nX-Evil: 1"`,
		testSampled, "")
	check("10 kB in the event", cloud, `,"traceparent":"`+strings.Repeat("a", 10_000)+`"`, "", "")
	check("no string", cloud, `,"traceparent":{"a":1}`, "", "")

	h := sendTraced(t, got, cloud, "binary", `{}`, "ce-specversion", "1.0", "ce-id", "2", "ce-source", "/s",
		"ce-type", "x", "ce-userid", "binary", "ce-traceparent", testSampled)
	if h.Get("Traceparent") != testSampled {
		t.Errorf("binary mode: the receiver got %v", h)
	}
	h = sendTraced(t, got, cloud, "encoded", `{}`, "ce-specversion", "1.0", "ce-id", "3", "ce-source", "/s",
		"ce-type", "x", "ce-userid", "encoded", "ce-traceparent", testSampled+"%0d%0aX-Evil: 1")
	if h.Get("Traceparent") != "" || h.Get("X-Evil") != "" {
		t.Errorf("line breaks that are percent-encoded: the receiver got %v", h)
	}
	h = sendTraced(t, got, stream, "streamed", `{"event_name":"x","user_id":"streamed"}`, "Traceparent", testSampled)
	if h.Get("Traceparent") != testSampled {
		t.Errorf("stream: the receiver got %v", h)
	}
	raw, err := net.Dial("tcp", strings.TrimPrefix(strings.TrimSuffix(events, "/v1/events"), "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	const folded = `{"event_name":"x","user_id":"folded"}`
	fmt.Fprintf(raw, "POST /v1/events HTTP/1.1\r\nHost: x\r\nTraceparent: %s\r\n X-Evil: 1\r\n"+
		"Content-Length: %d\r\n\r\n%s", testSampled, len(folded), folded)
	if answer, err := http.ReadResponse(bufio.NewReader(raw), nil); err != nil {
		t.Fatal(err)
	} else if answer.StatusCode == 200 { // it may be refused as well
		pgtest.Eventually(t, "the message about folded arrives", func() bool { return got.of("folded") != nil })
		if h := got.of("folded"); h.Get("Traceparent") != "" || h.Get("X-Evil") != "" {
			t.Errorf("a line that is folded: the receiver got %v", h)
		}
	}

	conn := connect(t, url)
	if _, err := conn.Exec(t.Context(), `select sluice_enqueue(jsonb_build_object('event_type', 'order', 'destination',
		'welcome', 'payload', jsonb_build_object('user', 'app'), 'headers', jsonb_build_object('Traceparent', $1::text)))`,
		other); err != nil {
		t.Fatal(err)
	}
	pgtest.Eventually(t, "the application's message arrives", func() bool { return got.of("app") != nil })
	if h := got.of("app"); h.Get("Traceparent") != other {
		t.Errorf("the application's message came with %v, want its own trace", h)
	}
	// A shadow's messages are written by another list of columns.
	if n := query1(t, conn, `select count(*) from outbox where rule_id = 't/shadow' and status = 'skipped'
		and headers ->> 'traceparent' = '`+testSampled+`'`); n != 9 {
		t.Errorf("%d messages of the shadow are of the trace, want 9", n)
	}
	id := query1(t, conn, `select min(message_id) from outbox`)
	status, out, errOut := runCommand(t, nil, "explain", "message", fmt.Sprint(id), "--database-url", url)
	if status != 0 || !strings.Contains(out, "trace "+testTrace+"\n") {
		t.Errorf("explain: exit status %d, lacks the trace:\n%s%s", status, out, errOut)
	}
	status, out, errOut = runCommand(t, nil, "explain", "message", fmt.Sprint(id), "--json", "--database-url", url)
	if status != 0 ||
		!strings.Contains(out, `"trace_id": "`+testTrace) && !strings.Contains(out, `"trace_id":"`+testTrace) {
		t.Errorf("explain --json: exit status %d, lacks the trace:\n%s%s", status, out, errOut)
	}
}

func TestTraceIsOffByDefault(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	events, got := tracedNode(t, url)
	cloud := strings.TrimSuffix(events, "/v1/events") + "/v1/cloudevents"
	h := sendTraced(t, got, events, "a", `{"event_name":"x","user_id":"a"}`, "Traceparent", testSampled)
	c := sendTraced(t, got, cloud, "b", `{}`, "ce-specversion", "1.0", "ce-id", "1", "ce-source", "/s", "ce-type", "x",
		"ce-userid", "b", "ce-traceparent", testSampled, "Traceparent", testSampled)
	if h.Get("Traceparent") != "" || c.Get("Traceparent") != "" {
		t.Errorf("the receiver got %v and %v, want no trace", h, c)
	}
	if n := query1(t, connect(t, url), `select count(*) from outbox where headers is not null`); n != 0 {
		t.Errorf("%d messages have headers, want none", n)
	}
}
