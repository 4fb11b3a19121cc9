package deliver

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline"
)

// standIn behaves like QStash as far as publishing and delivering go: it authenticates, deduplicates, forwards headers,
// signs with a JWT, and retries without waiting.
type standIn struct {
	url string
	t   *testing.T

	mu        sync.Mutex
	seen      map[string]string // deduplication id -> message id
	published []*http.Request
	refuse    http.HandlerFunc // answers instead, when set
	retried   map[string]int
}

const (
	qstashToken = "qstash-t0ken"
	// Those of QStash's own development server.
	currentKey, nextKey = "sig_7kYjw48mhY7kAjqNGcy6cr29RJ6r", "sig_5ZB6DVzB1wjE8S6rZ7eenA8Pdnhs"
)

func newStandIn(t *testing.T) *standIn {
	s := &standIn{t: t, seen: map[string]string{}, retried: map[string]int{}}
	var deliveries sync.WaitGroup
	s.url = receiver(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fail := func(status int, reason string) {
			w.WriteHeader(status)
			json.NewEncoder(w).Encode(map[string]string{"error": reason})
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.refuse != nil {
			s.refuse(w, r)
			return
		}
		if r.Header.Get("Authorization") != "Bearer "+qstashToken {
			fail(401, "unable to authenticate: invalid token")
			return
		}
		// The path as it was sent: the receiver's URL stands in it with both of its slashes.
		to, ok := strings.CutPrefix(r.RequestURI, "/v2/publish/")
		if rest, queued := strings.CutPrefix(r.RequestURI, "/v2/enqueue/"); queued {
			if _, to, ok = strings.Cut(rest, "/"); !strings.HasPrefix(rest, "orders/") {
				fail(404, "queue not found")
				return
			}
		}
		if !ok || !strings.HasPrefix(to, "http://") && !strings.HasPrefix(to, "https://") {
			fail(400, "invalid destination url: endpoint has invalid scheme, add http:// or https://")
			return
		}
		dedup := r.Header.Get("Upstash-Deduplication-Id")
		if strings.Contains(dedup, ":") {
			fail(400, "invalid deduplication id")
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if id, twice := s.seen[dedup]; twice && dedup != "" {
			w.WriteHeader(202)
			fmt.Fprintf(w, `{"messageId":%q,"deduplicated":true}`, id)
			return
		}
		id := fmt.Sprintf("msg_%d", len(s.published)+1)
		s.seen[dedup] = id
		s.published = append(s.published, r)
		w.WriteHeader(201)
		fmt.Fprintf(w, `{"messageId":%q}`, id)
		deliveries.Go(func() { s.deliver(r, id, to, body) })
	})
	t.Cleanup(deliveries.Wait)
	return s
}

func (s *standIn) deliver(published *http.Request, id, to string, body []byte) {
	retries, _ := strconv.Atoi(published.Header.Get("Upstash-Retries"))
	for n := 0; n <= retries; n++ {
		req, err := http.NewRequest(published.Header.Get("Upstash-Method"), to, bytes.NewReader(body))
		if err != nil {
			s.t.Errorf("stand-in: %v", err)
			return
		}
		req.Header.Set("Content-Type", published.Header.Get("Content-Type"))
		for name := range published.Header {
			if forward, ok := strings.CutPrefix(name, "Upstash-Forward-"); ok {
				req.Header.Set(forward, published.Header.Get(name))
			}
		}
		req.Header.Set("User-Agent", "Upstash-QStash")
		req.Header.Set("Upstash-Message-Id", id)
		req.Header.Set("Upstash-Retried", strconv.Itoa(n))
		req.Header.Set("Upstash-Signature", qstashJWT(currentKey, to, body, time.Now()))
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return // the test is over
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if resp.StatusCode < 300 || resp.StatusCode == 489 {
			return
		}
		s.mu.Lock()
		s.retried[id]++
		s.mu.Unlock()
	}
}

func qstashJWT(key, sub string, body []byte, now time.Time) string {
	sum := sha256.Sum256(body)
	enc := base64.RawURLEncoding
	claims := fmt.Sprintf(`{"iss":"Upstash","sub":%q,"exp":%d,"nbf":0,"iat":%d,"jti":"jwt_test","body":%q}`,
		sub, now.Unix()+300, now.Unix(), base64.URLEncoding.EncodeToString(sum[:]))
	signed := enc.EncodeToString([]byte(`{"alg":"HS256","typ":"JWT"}`)) + "." + enc.EncodeToString([]byte(claims))
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write([]byte(signed))
	return signed + "." + enc.EncodeToString(mac.Sum(nil))
}

// The stand-in signs as QStash does: this is the vector that inbox verifies too.
func TestStandInSigns(t *testing.T) {
	const want = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9." +
		"eyJpc3MiOiJVcHN0YXNoIiwic3ViIjoiaHR0cHM6Ly9leGFtcGxlLmNvbS9ob29rIiwiZXhwIjoxNzAwMDAwMzAwLCJuYmYiOjAs" +
		"ImlhdCI6MTcwMDAwMDAwMCwianRpIjoiand0X3Rlc3QiLCJib2R5Ijoicm9XSk1mWjRoLWdWRFctV3lmNERCaXdkODJ0RVpNVGR5" +
		"T0FDd0lUVjBaZz0ifQ.v2LpWEtxfF7K89Psk0sFtS6I5_pVPdyOu5VfnPGo3nw"
	if got := qstashJWT(currentKey, "https://example.com/hook", []byte(`{"test": 2432232314}`),
		time.Unix(1700000000, 0)); got != want {
		t.Errorf("JWT = %s\nwant %s", got, want)
	}
}

func qstashDestination(s *standIn, to string, more ...string) string {
	return fmt.Sprintf("  - name: crm\n    type: qstash\n    url: %s\n    to: %q\n    token_env: TOKEN\n"+
		"    allow_private: true\n    %s\n", s.url, to, strings.Join(more, "\n    "))
}

func TestQStash(t *testing.T) {
	s := newStandIn(t)
	url, requests := capture(t)
	to := url + "/hooks?x=1"
	_, sink := openSink(t, qstashDestination(s, to, "retries: 2", "headers: {X-Shop: demo}", "secret_env: SECRET",
		"label: shop", "flow_control: parallelism=3"), "TOKEN", qstashToken)
	for range 2 { // the answer to the first was lost, say
		if a := deliverOne(sink, lease(`{"n": 1}`)); a.status/100 != 2 {
			t.Fatalf("answer = %+v", a)
		}
	}
	redriven := lease(`{"n": 1}`)
	redriven.Redrives = 1
	if a := deliverOne(sink, redriven); a.status/100 != 2 {
		t.Fatalf("answer = %+v", a)
	}
	first, second := <-requests, <-requests
	if len(s.published) != 2 {
		t.Fatalf("%d messages published; want the first and the redriven one", len(s.published))
	}
	for name, want := range map[string]string{"Upstash-Retries": "2", "Upstash-Label": "shop",
		"Upstash-Flow-Control-Value": "parallelism=3", "Upstash-Method": "POST"} {
		if got := s.published[0].Header.Get(name); got != want {
			t.Errorf("%s = %q; want %q", name, got, want)
		}
	}
	for _, got := range []request{first, second} {
		if got.Body != `{"id":"`+pipeline.HashUUID("x").String()+`","type":"welcome","aggregateType":null,`+
			`"aggregateId":"user-1","tenantId":"3","payload":{"n": 1}}` ||
			got.Headers["idempotency-key"] != pipeline.HashUUID("x").String() ||
			got.Headers["x-shop"] != "demo" || got.Headers["x-order"] != "17" ||
			len(got.Headers["x-signature"]) != 64 || got.Headers["content-type"] != "application/json" {
			t.Errorf("the receiver got %+v", got)
		}
	}

	// The official client publishes to the stand-in, and the official Receiver takes what the stand-in sends.
	in := map[string]any{"base": s.url, "token": qstashToken, "keys": []string{currentKey, nextKey},
		"verify": []map[string]any{
			{"signature": first.Headers["upstash-signature"], "body": first.Body, "url": to},
			{"signature": first.Headers["upstash-signature"], "body": first.Body + " ", "url": to},
			{"signature": first.Headers["upstash-signature"], "body": first.Body, "url": "https://other.example.com"},
			{"signature": qstashJWT(nextKey, to, []byte(first.Body), time.Now()), "body": first.Body, "url": to},
		},
		"publish": []map[string]any{
			{"url": to, "body": map[string]int{"n": 2}, "deduplicationId": "abc",
				"headers": map[string]string{"X-Shop": "npm"}},
			{"url": to, "body": map[string]int{"n": 2}, "deduplicationId": "abc"},
			{"url": "ftp://nowhere", "body": map[string]int{"n": 3}},
		}}
	var out struct {
		Published []struct {
			MessageID    string
			Deduplicated bool
			Error        string
		}
		Verified []string
	}
	nodeScript(t, "qstash.mjs", in, &out)
	if v := out.Verified; len(v) != 4 || v[0] != "true" || !strings.Contains(v[1], "SignatureError") ||
		!strings.Contains(v[2], "SignatureError") || v[3] != "true" {
		t.Errorf("Receiver = %q; want true, two refusals, true", v)
	}
	if p := out.Published; len(p) != 3 || p[0].MessageID == "" || p[0].Deduplicated ||
		p[1].MessageID != p[0].MessageID || !p[1].Deduplicated || !strings.Contains(p[2].Error, "invalid scheme") {
		t.Errorf("client = %+v", p)
	}
	if got := <-requests; got.Body != `{"n":2}` || got.Headers["x-shop"] != "npm" {
		t.Errorf("from the official client the receiver got %+v", got)
	}
}

// TestQStashConsumerWorksOnce: a consumer in Node with the official Receiver gets two events five times each, since it
// failed four times, and does the work of each once.
func TestQStashConsumerWorksOnce(t *testing.T) {
	s := newStandIn(t)
	var mu sync.Mutex
	var got []map[string]any
	perEvent := map[string]int{}
	var to string
	to = receiver(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		id := r.Header.Get("X-Event-Id")
		got = append(got, map[string]any{"body": string(body), "url": to, "headers": map[string]string{
			"upstash-signature": r.Header.Get("Upstash-Signature"), "x-event-id": id}})
		if perEvent[id]++; perEvent[id] < 5 {
			w.WriteHeader(500)
		}
	})
	_, sink := openSink(t, qstashDestination(s, to, "retries: 4"), "TOKEN", qstashToken)
	placed := lease(`{"total": 5}`)
	placed.Rule, placed.Type, placed.SubjectKey, placed.TenantRef = false, "order.placed", "order:17", "customer 9"
	placed.IdempotencyKey = pipeline.HashUUID("placed")
	for _, l := range []*pipeline.Lease{lease(`{"n": 1}`), placed} {
		if a := deliverOne(sink, l); a.status/100 != 2 {
			t.Fatalf("answer = %+v", a)
		}
	}
	pgtest.Eventually(t, "each came five times", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(got) == 10
	})
	var out struct{ Worked []string }
	nodeScript(t, "qstash.mjs", map[string]any{"base": s.url, "token": qstashToken, "keys": []string{currentKey, nextKey},
		"consume": got}, &out)
	slices.Sort(out.Worked)
	want := []string{"3 welcome null user-1", "customer 9 order.placed order 17"}
	if !slices.Equal(out.Worked, want) {
		t.Errorf("the consumer worked on %q; want %q", out.Worked, want)
	}
}

// What QStash says about itself costs no attempt; what it says about the message does.
func TestQStashRefusals(t *testing.T) {
	s := newStandIn(t)
	d, sink := openSink(t, qstashDestination(s, "https://crm.example.com"), "TOKEN", "wrong")
	if a := deliverOne(sink, lease(`{}`)); a.status != 401 || a.hold != configHold {
		t.Errorf("wrong token: %+v; want it held for %s", a, configHold)
	}
	_, queued := openSink(t, qstashDestination(s, "https://crm.example.com", "queue: nope"), "TOKEN", qstashToken)
	if a := deliverOne(queued, lease(`{}`)); a.status != 404 || a.hold != configHold {
		t.Errorf("unknown queue: %+v; want it held for %s", a, configHold)
	}
	in90s := strconv.FormatInt(time.Now().Add(90*time.Second).Unix(), 10)
	for _, c := range []struct {
		status       int
		header, at   string
		least, most  time.Duration
		attemptEnded pipeline.DeliveryStatus
	}{
		{429, "Burst-RateLimit-Reset", "3", 3 * time.Second, 3 * time.Second, ""},
		{429, "RateLimit-Reset", in90s, 80 * time.Second, 90 * time.Second, ""},
		{429, "RateLimit-Reset", in90s + "000", 80 * time.Second, 90 * time.Second, ""},
		{429, "RateLimit-Reset", "999999", 24 * time.Hour, 24 * time.Hour, ""},
		{429, "X", "", configHold, configHold, ""},
		{400, "X", "", 0, 0, pipeline.Dead},
		{412, "X", "", 0, 0, pipeline.Dead},
		{500, "X", "", 0, 0, pipeline.Failed},
	} {
		s.mu.Lock()
		s.refuse = func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set(c.header, c.at)
			w.WriteHeader(c.status)
		}
		s.mu.Unlock()
		a := deliverOne(sink, lease(`{}`))
		if a.hold < c.least || a.hold > c.most {
			t.Errorf("HTTP %d, %s %s: held for %s; want %s to %s", c.status, c.header, c.at, a.hold, c.least, c.most)
		}
		if status, _ := classify(d, 1, a); c.attemptEnded != "" && status != c.attemptEnded {
			t.Errorf("HTTP %d: %s; want %s", c.status, status, c.attemptEnded)
		}
	}
}

// A hold reaches the outbox as a release: no attempt is counted.
func TestHoldCostsNoAttempt(t *testing.T) {
	s := newStandIn(t)
	ds, err := Parse("d", []byte("destinations:\n"+qstashDestination(s, "https://crm.example.com")),
		env("TOKEN", "wrong"))
	if err != nil {
		t.Fatal(err)
	}
	q := &fakeQueue{lease: time.Minute}
	q.add("crm", 20)
	start(t, DefaultConfig(), ds, q)
	pgtest.Eventually(t, "20 released", func() bool { return q.count(pipeline.Released) == 20 })
	for _, r := range q.recorded() {
		if r.RetryIn < 50*time.Second {
			t.Errorf("released for %s; want about a minute", r.RetryIn)
		}
	}
}
