package receiver

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"sluice.example/sluice/inbox"
	"sluice.example/sluice/internal/pgtest"
)

func start(t *testing.T, change func(*Options)) *httptest.Server {
	t.Helper()
	o := DefaultOptions()
	if change != nil {
		change(&o)
	}
	r, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(r.Handler())
	t.Cleanup(s.Close)
	return s
}

func post(t *testing.T, url, body string, headers ...string) int {
	t.Helper()
	req, err := http.NewRequest("POST", url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, res.Body)
	return res.StatusCode
}

func getJSON(t *testing.T, url string, into any) {
	t.Helper()
	res, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if err := json.NewDecoder(res.Body).Decode(into); err != nil || res.StatusCode != 200 {
		t.Fatalf("GET %s: status %d, %v", url, res.StatusCode, err)
	}
}

func TestCountsAndDeduplicates(t *testing.T) {
	s := start(t, func(o *Options) { o.KeepKeys, o.KeepMessages = 2, 2 })
	for _, key := range []string{"a", "b", "a", "c", "a"} { // with two keys kept, the last "a" is new again
		if got := post(t, s.URL+"/hooks/x", `{"rule":"welcome","data":{}}`, "Idempotency-Key", key); got != 200 {
			t.Errorf("key %s: status %d, want 200", key, got)
		}
	}
	post(t, s.URL, `not JSON`)
	var got Stats
	getJSON(t, s.URL+"/stats", &got)
	if got.Requests != 6 || got.Accepted != 5 || got.Duplicates != 1 || got.WithoutKey != 1 || got.ForgottenKeys != 2 ||
		got.ByType["welcome"] != 4 || got.ByType[""] != 1 {
		t.Errorf("stats = %+v", got)
	}
	var shown struct{ Messages []Message }
	getJSON(t, s.URL+"/messages", &shown)
	if len(shown.Messages) != 2 || shown.Messages[0].Key != "a" || string(shown.Messages[0].Body) == "" {
		t.Errorf("messages = %+v; want the last two", shown.Messages)
	}
}

func TestVerifies(t *testing.T) {
	v, err := inbox.NewXSignature("s3cret")
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, func(o *Options) { o.Verifiers = []inbox.Verifier{v} })
	body := `{"rule":"r","data":1}`
	mac := hmac.New(sha256.New, []byte("s3cret"))
	mac.Write([]byte(body))
	good := hex.EncodeToString(mac.Sum(nil))
	if got := post(t, s.URL, body, "X-Signature", good); got != 200 {
		t.Errorf("a signed message: status %d, want 200", got)
	}
	if got := post(t, s.URL, body+" ", "X-Signature", good); got != 401 {
		t.Errorf("a changed message: status %d, want 401", got)
	}
	if got := post(t, s.URL, body); got != 401 {
		t.Errorf("an unsigned message: status %d, want 401", got)
	}
	var got Stats
	getJSON(t, s.URL+"/stats", &got)
	if got.Accepted != 1 || got.BadSignatures != 2 {
		t.Errorf("stats = %+v", got)
	}
}

func TestFailsAsTold(t *testing.T) {
	s := start(t, func(o *Options) { o.FailRate, o.FailStatus = 1, 410 })
	if got := post(t, s.URL, `{}`, "webhook-id", "k"); got != 410 {
		t.Errorf("status %d, want 410", got)
	}
	// What failed is not remembered; what was taken and answered with a failure is.
	s = start(t, func(o *Options) { o.LoseAnswers, o.Seed = 1, 1 })
	for _, want := range []int{503, 200} {
		if got := post(t, s.URL, `{}`, "webhook-id", "k"); got != want {
			t.Errorf("status %d, want %d", got, want)
		}
	}
	var got Stats
	getJSON(t, s.URL+"/stats", &got)
	if got.Accepted != 1 || got.AnswersLost != 1 || got.Duplicates != 1 {
		t.Errorf("stats = %+v", got)
	}

	s = start(t, func(o *Options) { o.HangRate = 1 })
	ctx, cancel := context.WithCancel(context.Background())
	req, _ := http.NewRequestWithContext(ctx, "POST", s.URL, strings.NewReader(`{}`))
	done := make(chan error, 1)
	go func() { _, err := http.DefaultClient.Do(req); done <- err }()
	pgtest.Eventually(t, "the request is held", func() bool { getJSON(t, s.URL+"/stats", &got); return got.Hung == 1 })
	cancel()
	if err := <-done; err == nil {
		t.Error("a hanging receiver answered")
	}
}
