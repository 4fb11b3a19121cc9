package deliver

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// nodeScript runs a script of the npm folder on a JSON value, and reads the one that it prints. It needs node and npm.
func nodeScript(t *testing.T, script string, in, out any) {
	t.Helper()
	if _, err := os.Stat("npm/node_modules/.package-lock.json"); errors.Is(err, fs.ErrNotExist) {
		cmd := exec.CommandContext(t.Context(), "npm", "ci", "--no-audit", "--no-fund")
		cmd.Dir = "npm"
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("npm ci: %v\n%s", err, text)
		}
	}
	text, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "node", script)
	cmd.Dir, cmd.Stdin = "npm", bytes.NewReader(text)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	answer, err := cmd.Output()
	if err != nil {
		t.Fatalf("node %s: %v\n%s", script, err, &stderr)
	}
	if err := json.Unmarshal(answer, out); err != nil {
		t.Fatalf("node %s: %v in %s", script, err, answer)
	}
}

type request struct {
	Headers map[string]string `json:"headers"`
	Body    string            `json:"body"`
}

// capture is a receiver that keeps what it gets, with names of headers in lower case.
func capture(t *testing.T) (url string, requests chan request) {
	requests = make(chan request, 100)
	return receiver(t, func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got := request{Headers: map[string]string{}, Body: string(body)}
		for name := range r.Header {
			got.Headers[strings.ToLower(name)] = r.Header.Get(name)
		}
		requests <- got
	}), requests
}

// The verifiers that receivers really use take what we send, with the new and with the old secret of a rotation, and
// refuse it when it was changed on the way or when the secret is another one.
func TestNPMVerifiers(t *testing.T) {
	const second, other = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
		"whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
	url, requests := capture(t)
	_, s := openSink(t, `
  - name: crm
    url: `+url+`
    secret_env: [SECRET, SECOND]
    signatures: [standard-webhooks, stripe]
    allow_private: true
`, "SECOND", second)
	payload := `{"name": "Zoë ☕", "amount": 12345678901234567890}`
	if a := deliverOne(s, lease(payload)); a.status != 200 {
		t.Fatalf("answer = %+v", a)
	}
	sent := <-requests
	changed := sent
	changed.Body = strings.Replace(sent.Body, "Zoë", "Zoe", 1)
	var got []struct{ StandardWebhooks, Stripe []string }
	nodeScript(t, "verify.mjs", map[string]any{
		"requests": []request{sent, changed}, "secrets": []string{testSecret, second, other},
		"stripeSecrets": []string{testSecret, second, other},
	}, &got)
	for i, want := range [][]bool{{true, true, false}, {false, false, false}} {
		for j, taken := range want {
			if got[i].StandardWebhooks[j] == "taken" != taken {
				t.Errorf("request %d, secret %d: standardwebhooks %s; want it taken: %t", i, j,
					got[i].StandardWebhooks[j], taken)
			}
			if got[i].Stripe[j] == "taken" != taken {
				t.Errorf("request %d, secret %d: stripe %s; want it taken: %t", i, j, got[i].Stripe[j], taken)
			}
		}
	}
}
