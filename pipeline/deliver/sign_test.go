package deliver

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"sluice.example/sluice/internal/yamlfile"
)

func signerOf(t *testing.T, styles string, secrets ...string) (signer, error) {
	t.Helper()
	f := yamlfile.Parse("f", []byte("{secret_env: X, signatures: "+styles+"}"))
	r := &reader{Section: f.Section(f.Root(), "destination")}
	return r.signer(secrets), f.Err()
}

func signed(s signer, id string, now int64, body string) map[string]string {
	headers := map[string]string{}
	s.sign(nil, func(name string, value []byte) { headers[name] = string(value) }, "order.placed", []byte(id),
		time.Unix(now, 0), []byte(body))
	return headers
}

// The vector of libraries/go/webhook_test.go of standard-webhooks.
func TestStandardWebhooksVector(t *testing.T) {
	s, err := signerOf(t, "standard-webhooks", testSecret)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second uses the hash of the first again
		got := signed(s, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, `{"test": 2432232314}`)
		if got["webhook-id"] != "msg_p5jXN8AQM9LWM0D4loKWxJek" || got["webhook-timestamp"] != "1614265330" ||
			got["webhook-signature"] != "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=" {
			t.Errorf("headers = %v", got)
		}
	}
}

// The vector of GitHub's documentation, which signs the body alone in the same way.
func TestXSignatureVector(t *testing.T) {
	s, err := signerOf(t, "x-signature", "It's a Secret to Everybody")
	if err != nil {
		t.Fatal(err)
	}
	got := signed(s, "id", 0, "Hello, World!")["X-Signature"]
	if got != "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17" {
		t.Errorf("X-Signature = %s", got)
	}
}

func TestSeveralSecretsGiveSeveralSignatures(t *testing.T) {
	s, err := signerOf(t, "standard-webhooks", testSecret, "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=")
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Fields(signed(s, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330,
		`{"test": 2432232314}`)["webhook-signature"])
	if len(got) != 2 || got[0] != "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=" || !strings.HasPrefix(got[1],
		"v1,") || got[1] == got[0] {
		t.Errorf("signatures = %q; want one for each secret, the first secret's first", got)
	}
}

// The vector of svix's worker.rs.
func TestEd25519Vector(t *testing.T) {
	const secret = "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg=="
	for styles, want := range map[string]string{
		"standard-webhooks": "v1a," +
			"hnO3f9T8Ytu9HwrXslvumlUpqtNVqkhqw/enGzPCXe5BdqzCInXqYXFymVJaA7AZdpXwVLPo3mNl8EM+m7TBAg==",
	} {
		s, err := signerOf(t, styles, secret)
		if err != nil {
			t.Fatal(err)
		}
		if got := signed(s, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330,
			`{"test": 2432232314}`)["webhook-signature"]; got != want {
			t.Errorf("webhook-signature = %s\nwant %s", got, want)
		}
	}
	// With both kinds of secret there is one signature of each; the shared secret is the one of the other styles.
	s, err := signerOf(t, "[standard-webhooks, x-signature]", secret, testSecret)
	if err != nil {
		t.Fatal(err)
	}
	got := signed(s, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, `{"test": 2432232314}`)
	if f := strings.Fields(got["webhook-signature"]); len(f) != 2 ||
		f[1] != "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=" {
		t.Errorf("webhook-signature = %q", f)
	}
	if _, err := signerOf(t, "x-signature", secret); err == nil || !strings.Contains(err.Error(), "not a private key") {
		t.Errorf("x-signature with a private key: %v; want it refused", err)
	}
}

func TestGitHubVector(t *testing.T) {
	s, err := signerOf(t, "github", "It's a Secret to Everybody")
	if err != nil {
		t.Fatal(err)
	}
	got := signed(s, "id-1", 0, "Hello, World!")
	if got["X-Hub-Signature-256"] != "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17" ||
		got["X-GitHub-Event"] != "order.placed" || got["X-GitHub-Delivery"] != "id-1" || got["webhook-id"] != "" {
		t.Errorf("headers = %v", got)
	}
}

// Stripe's form: the signed text is t.body, the key is the secret as it is, and each secret has its v1.
func TestStripeForm(t *testing.T) {
	s, err := signerOf(t, "stripe", "whsec_test_secret", "another")
	if err != nil {
		t.Fatal(err)
	}
	sum := func(key string) string {
		h := hmac.New(sha256.New, []byte(key))
		h.Write([]byte(`1614265330.{"a":1}`))
		return hex.EncodeToString(h.Sum(nil))
	}
	want := "t=1614265330,v1=" + sum("whsec_test_secret") + ",v1=" + sum("another")
	if got := signed(s, "id", 1614265330, `{"a":1}`)["Stripe-Signature"]; got != want {
		t.Errorf("Stripe-Signature = %s\nwant %s", got, want)
	}
}

// The forms in which a secret is pasted: taken with the same key, or refused with a reason and without the secret.
func TestSecretForms(t *testing.T) {
	const want = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
	for secret, reason := range map[string]string{
		testSecret:                               "",
		"v1," + testSecret:                       "",
		strings.TrimPrefix(testSecret, "whsec_"): "",
		"whsec_":                                 "0 bytes after whsec_",
		"whsec_not base64!":                      "not base64",
		"whsec_AAECAwQFBgcICQoLDA0ODw==":         "16 bytes after whsec_",
		"c2hvcnQ=":                               "5 bytes after whsec_",
		"a plain secret, long enough":            "not base64, which",
		"whpk_AAECAwQFBgcICQoLDA0ODw==":          "public key",
		"whsk_AAECAwQFBgcICQoLDA0ODw==":          "16 bytes after whsk_",
	} {
		s, err := signerOf(t, "standard-webhooks", secret)
		if reason == "" {
			if got := signed(s, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330,
				`{"test": 2432232314}`)["webhook-signature"]; got != want || err != nil {
				t.Errorf("secret %q: signature %s, error %v; want %s", secret, got, err, want)
			}
			continue
		}
		if err == nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), reason) {
			t.Errorf("secret %q: error %v; want one line with %q", secret, err, reason)
			continue
		}
		if rest := strings.TrimPrefix(secret, "whsec_"); rest != "" && strings.Contains(err.Error(), rest) {
			t.Errorf("the error shows the secret: %v", err)
		}
	}
}
