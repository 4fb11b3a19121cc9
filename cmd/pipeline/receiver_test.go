package main

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

func startReceiver(t *testing.T, o receiverOptions) *httptest.Server {
	t.Helper()
	if o.failStatus == 0 {
		o.failStatus = 503
	}
	if o.keepKeys == 0 {
		o.keepKeys = 100
	}
	r, err := newReceiver(o)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(r.handler())
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

func TestReceiverCountsAndDeduplicates(t *testing.T) {
	s := startReceiver(t, receiverOptions{keepKeys: 2, keepMessages: 2})
	for _, key := range []string{"a", "b", "a", "c", "a"} { // with two keys kept, the last "a" is new again
		if got := post(t, s.URL+"/hooks/x", `{"rule":"welcome","data":{}}`, "Idempotency-Key", key); got != 200 {
			t.Errorf("key %s: status %d, want 200", key, got)
		}
	}
	post(t, s.URL, `not JSON`)
	var got receiverStats
	getJSON(t, s.URL+"/stats", &got)
	if got.Requests != 6 || got.Accepted != 5 || got.Duplicates != 1 || got.WithoutKey != 1 || got.ForgottenKeys != 2 || got.ByType["welcome"] != 4 || got.ByType[""] != 1 {
		t.Errorf("stats = %+v", got)
	}
	var shown struct{ Messages []receivedMessage }
	getJSON(t, s.URL+"/messages", &shown)
	if len(shown.Messages) != 2 || shown.Messages[0].Key != "a" || string(shown.Messages[0].Body) == "" {
		t.Errorf("messages = %+v; want the last two", shown.Messages)
	}
}

func TestReceiverVerifies(t *testing.T) {
	v, err := inbox.NewXSignature("s3cret")
	if err != nil {
		t.Fatal(err)
	}
	s := startReceiver(t, receiverOptions{verifiers: []inbox.Verifier{v}})
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
	var got receiverStats
	getJSON(t, s.URL+"/stats", &got)
	if got.Accepted != 1 || got.BadSignatures != 2 {
		t.Errorf("stats = %+v", got)
	}
}

func TestReceiverFailsAsTold(t *testing.T) {
	s := startReceiver(t, receiverOptions{failRate: 1, failStatus: 410})
	if got := post(t, s.URL, `{}`, "webhook-id", "k"); got != 410 {
		t.Errorf("status %d, want 410", got)
	}
	// What failed is not remembered; what was taken and answered with a failure is.
	s = startReceiver(t, receiverOptions{loseAnswers: 1, seed: 1})
	for _, want := range []int{503, 200} {
		if got := post(t, s.URL, `{}`, "webhook-id", "k"); got != want {
			t.Errorf("status %d, want %d", got, want)
		}
	}
	var got receiverStats
	getJSON(t, s.URL+"/stats", &got)
	if got.Accepted != 1 || got.AnswersLost != 1 || got.Duplicates != 1 {
		t.Errorf("stats = %+v", got)
	}

	s = startReceiver(t, receiverOptions{hangRate: 1})
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

func TestReceiverRefusesNonsense(t *testing.T) {
	status, _, got := runCommand(t, []string{"RECEIVER_SECRET=two\nlines"}, "receiver", "--fail-rate", "2")
	if status != 2 || !strings.Contains(got, "RECEIVER_SECRET") || strings.Contains(got, "two") {
		t.Errorf("status %d, %q", status, got)
	}
	status, _, got = runCommand(t, nil, "receiver", "--fail-rate", "2", "--fail-status=7")
	if status != 2 || !strings.Contains(got, "--fail-rate") || !strings.Contains(got, "--fail-status") {
		t.Errorf("status %d, %q", status, got)
	}
	status, _, got = runCommand(t, nil, "receiver", "--fail-rat", "2")
	if status != 2 || !strings.Contains(got, `did you mean "fail-rate"?`) {
		t.Errorf("status %d, %q", status, got)
	}
}
