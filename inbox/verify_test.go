package inbox

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
)

// The vector of the reference libraries (standard-webhooks/libraries/go), and Svix's for ed25519.
const (
	swSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	swPublic = "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4="
	swID     = "msg_p5jXN8AQM9LWM0D4loKWxJek"
	swTime   = 1614265330
	swBody   = `{"test": 2432232314}`
	swV1     = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
	swV1a    = "v1a,hnO3f9T8Ytu9HwrXslvumlUpqtNVqkhqw/enGzPCXe5BdqzCInXqYXFymVJaA7AZdpXwVLPo3mNl8EM+m7TBAg=="
	other    = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
)

func swHeaders(signature string) []string {
	return []string{"webhook-id", swID, "webhook-timestamp", fmt.Sprint(swTime), "webhook-signature", signature}
}

func TestStandardWebhooks(t *testing.T) {
	timeless := append(swHeaders(swV1)[:2:2], swHeaders(swV1)[4:]...)
	at := func(timestamp string) []string { return append([]string{"webhook-timestamp", timestamp}, timeless...) }
	for _, c := range []struct {
		name    string
		secrets []string
		headers []string
		body    string
		now     int64
		why     string // empty: verified
	}{
		{"v1 vector", []string{swSecret}, swHeaders(swV1), swBody, swTime, ""},
		{"v1a vector", []string{swPublic}, swHeaders(swV1a), swBody, swTime, ""},
		{"both", []string{swSecret, swPublic}, swHeaders(swV1a + " " + swV1), swBody, swTime, ""},
		{"new secret not yet used", []string{other, swSecret}, swHeaders(swV1), swBody, swTime, ""},
		{"sender signs with old and new", []string{swSecret}, swHeaders("v1,AAAA " + swV1), swBody, swTime, ""},
		{"unknown version beside", []string{swSecret}, swHeaders("v9,%% v2 " + swV1), swBody, swTime, ""},
		{"no padding", []string{swSecret}, swHeaders(strings.TrimRight(swV1, "=")), swBody, swTime, ""},
		{"oldest allowed", []string{swSecret}, swHeaders(swV1), swBody, swTime + 300, ""},
		{"newest allowed", []string{swSecret}, swHeaders(swV1), swBody, swTime - 300, ""},

		{"too old", []string{swSecret}, swHeaders(swV1), swBody, swTime + 301,
			"301 s from this machine's clock, the tolerance is 300 s"},
		{"too new", []string{swSecret}, swHeaders(swV1), swBody, swTime - 301, "-301 s from"},
		{"body changed", []string{swSecret}, swHeaders(swV1), swBody + " ", swTime, "no signature in webhook-signature fits"},
		{"body changed, v1a", []string{swPublic}, swHeaders(swV1a), swBody + " ", swTime,
			"no signature in webhook-signature fits"},
		{"other secret", []string{other}, swHeaders(swV1), swBody, swTime, "no signature in webhook-signature fits"},
		{"v1a under the name v1", []string{swSecret, swPublic}, swHeaders("v1" + swV1a[3:]), swBody, swTime,
			"no signature in webhook-signature fits"},
		{"only a key for the other version", []string{swPublic}, swHeaders(swV1), swBody, swTime,
			"v1: 0 secrets, v1a: 1 keys"},
		{"no version", []string{swSecret}, swHeaders(swV1[3:]), swBody, swTime, "no signature of a version"},
		{"not base64", []string{swSecret}, swHeaders("v1,!!"), swBody, swTime, "no signature in base64"},
		{"too many", []string{swSecret}, swHeaders(strings.Repeat("v1,AAAA ", 16) + swV1), swBody, swTime,
			"holds 17 signatures"},
		{"no id", []string{swSecret}, swHeaders(swV1)[2:], swBody, swTime, "webhook-id is missing"},
		{"id twice", []string{swSecret}, append(swHeaders(swV1), "webhook-id", "x"), swBody, swTime,
			"webhook-id came 2 times"},
		{"no timestamp", []string{swSecret}, timeless, swBody, swTime, "webhook-timestamp is missing"},
		{"no signature", []string{swSecret}, swHeaders(swV1)[:4], swBody, swTime, "webhook-signature is missing"},
		{"timestamp NaN", []string{swSecret}, at("NaN"), swBody, swTime, "not a whole number"},
		{"timestamp huge", []string{swSecret}, at("9223372036854775808"), swBody, swTime, "not a whole number"},
		{"timestamp negative", []string{swSecret}, at("-1614265330"), swBody, swTime, "not a whole number"},
		{"dot in id", []string{swSecret}, append([]string{"webhook-id", swID + ".1"}, swHeaders(swV1)[2:]...), swBody,
			swTime, "holds a dot"},
	} {
		t.Run(c.name, func(t *testing.T) {
			v, err := NewStandardWebhooks(c.secrets...)
			if err != nil {
				t.Fatal(err)
			}
			v.Now = clock(c.now)
			err = v.Verify(headers(c.headers...), []byte(c.body))
			if c.why == "" {
				if err != nil {
					t.Fatalf("not verified: %v", err)
				}
				return
			}
			unverifiedBecause(t, err, c.why, c.secrets...)
		})
	}
}

func TestStandardWebhooksSecretForms(t *testing.T) {
	bare := strings.TrimPrefix(swSecret, "whsec_")
	short := base64.StdEncoding.EncodeToString(make([]byte, 16))
	for _, c := range []struct{ secret, why string }{
		{swSecret, ""},
		{bare, ""},
		{"v1," + swSecret, ""},
		{swSecret + "\r\n", ""},
		{" \t" + swSecret, ""},
		{"", "is empty"},
		{"\r\n", "is empty"},
		{"whsec_", "too short: 0 bytes"},
		{"whsec_" + short, "too short: 16 bytes after base64, at least 24"},
		{"whsec_MfKQ9r8GKYqr\r\nTwjUPD8ILPZIo2LaLaSw", "line break"},
		{"whsec_" + strings.Replace(bare, "M", "-", 1), "not base64"},
		{"my secret is a sentence", "not base64"},
		{"whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg==", "is a private key"},
		{"whpk_" + short, "public key of 16 bytes"},
	} {
		v, err := NewStandardWebhooks(c.secret)
		if c.why != "" {
			failed(t, err, c.why, c.secret, strings.TrimPrefix(strings.TrimSpace(c.secret), "whsec_"))
			continue
		}
		if err != nil {
			t.Errorf("secret form %q: %v", c.secret, err)
			continue
		}
		v.Now = clock(swTime)
		if err := v.Verify(headers(swHeaders(swV1)...), []byte(swBody)); err != nil {
			t.Errorf("secret form %q: %v", c.secret, err)
		}
	}
	_, err := NewStandardWebhooks("", swSecret, "whsec_"+short)
	failed(t, err, "secret 1 of 3: is empty")
	failed(t, err, "secret 3 of 3: is too short")
	_, err = NewStandardWebhooks()
	failed(t, err, "no secret given")
}

func TestXSignature(t *testing.T) {
	// The vector of GitHub's documentation.
	const secret, body = "It's a Secret to Everybody", "Hello, World!"
	const signature = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
	v, err := NewXSignature("other", secret+"\r\n")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{signature, strings.ToUpper(signature)} {
		if err := v.Verify(headers("x-signature", s), []byte(body)); err != nil {
			t.Errorf("X-Signature %s: %v", s, err)
		}
	}
	check := func(why, body string, h ...string) {
		t.Helper()
		unverifiedBecause(t, v.Verify(headers(h...), []byte(body)), why, secret)
	}
	check("missing", body)
	check("came 2 times", body, "X-Signature", signature, "X-Signature", signature)
	check("not 64 hexadecimal digits", body, "X-Signature", "sha256="+signature)
	check("not 64 hexadecimal digits", body, "X-Signature", signature[2:])
	check("does not fit", body+"\n", "X-Signature", signature)
	check("does not fit", "", "X-Signature", signature)

	_, err = NewXSignature()
	failed(t, err, "no secret given")
	_, err = NewXSignature(" \n", "ab\ncd", secret)
	failed(t, err, "secret 1 of 3: is empty")
	failed(t, err, "secret 2 of 3: has a line break", "ab\ncd")
}

// The public keys of QStash's development server, and a token made with the first of them.
const (
	qsCurrent = "sig_7kYjw48mhY7kAjqNGcy6cr29RJ6r"
	qsNext    = "sig_5ZB6DVzB1wjE8S6rZ7eenA8Pdnhs"
	qsURL     = "https://example.com/hook"
	qsTime    = 1700000000
	qsToken   = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9." +
		"eyJpc3MiOiJVcHN0YXNoIiwic3ViIjoiaHR0cHM6Ly9leGFtcGxlLmNvbS9ob29rIiwiZXhwIjoxNzAwMDAwMzAwLCJuYmYiOjAs" +
		"ImlhdCI6MTcwMDAwMDAwMCwianRpIjoiand0X3Rlc3QiLCJib2R5Ijoicm9X" +
		"Sk1mWjRoLWdWRFctV3lmNERCaXdkODJ0RVpNVGR5T0FDd0lUVjBaZz0ifQ." +
		"v2LpWEtxfF7K89Psk0sFtS6I5_pVPdyOu5VfnPGo3nw"
)

func jwt(key, head, claims string) string {
	content := base64.RawURLEncoding.EncodeToString([]byte(head)) + "." +
		base64.RawURLEncoding.EncodeToString([]byte(claims))
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write([]byte(content))
	return content + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

func TestQStash(t *testing.T) {
	const hs256 = `{"alg":"HS256","typ":"JWT"}`
	sum := sha256.Sum256([]byte(swBody))
	algNone := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`))
	unpadded, padded := base64.RawURLEncoding.EncodeToString(sum[:]), base64.URLEncoding.EncodeToString(sum[:])
	claims := func(replace ...string) string {
		c := `{"iss":"Upstash","sub":"` + qsURL +
			`","exp":1700000300,"nbf":1700000000,"iat":1700000000,"jti":"jwt_1","body":"` + unpadded + `"}`
		r := strings.NewReplacer(replace...).Replace(c)
		if len(replace) > 0 && r == c {
			t.Fatalf("nothing to replace by %q", replace)
		}
		return r
	}
	for _, c := range []struct {
		name, token, body string
		now               int64
		why               string
	}{
		{"vector", qsToken, swBody, qsTime, ""},
		{"current key", jwt(qsCurrent, hs256, claims()), swBody, qsTime, ""},
		{"next key", jwt(qsNext, hs256, claims()), swBody, qsTime, ""},
		{"padded body hash", jwt(qsNext, hs256, claims(unpadded, padded)), swBody, qsTime, ""},
		{"padded signature", qsToken + "=", swBody, qsTime, ""},
		{"nbf just ahead", jwt(qsNext, hs256, claims()), swBody, qsTime - 5, ""},
		{"just ended", qsToken, swBody, qsTime + 304, ""},
		{"no nbf", jwt(qsNext, hs256, claims(`"nbf":1700000000,`, "")), swBody, qsTime, ""},

		{"nbf ahead", jwt(qsNext, hs256, claims()), swBody, qsTime - 6, "begins in 6 s, the tolerance is 5 s"},
		{"ended", qsToken, swBody, qsTime + 305, "ended 5 s ago, the tolerance is 5 s"},
		{"third key", jwt("sig_other", hs256, claims()), swBody, qsTime, "neither the current nor the next"},
		{"alg none", algNone + "." + strings.Split(qsToken, ".")[1] + ".", swBody, qsTime, "has to be HS256"},
		{"alg HS512", jwt(qsCurrent, `{"alg":"HS512"}`, claims()), swBody, qsTime, "has to be HS256"},
		{"no signature", qsToken[:strings.LastIndex(qsToken, ".")+1], swBody, qsTime, "neither the current nor the next"},
		{"claims changed", strings.Replace(qsToken, ".eyJ", ".eyK", 1), swBody, qsTime, "neither the current nor the next"},
		{"body changed", qsToken, swBody + "\n", qsTime, "hash of the body"},
		{"no body hash", jwt(qsNext, hs256, claims(unpadded, "")), "", qsTime, "hash of the body"},
		{"other address", jwt(qsNext, hs256, claims(qsURL, qsURL+"/")), swBody, qsTime,
			`sub is "https://example.com/hook/", this receiver is configured as "https://example.com/hook"`},
		{"other issuer", jwt(qsNext, hs256, claims("Upstash", "upstash")), swBody, qsTime, "iss is"},
		{"no exp", jwt(qsNext, hs256, claims(`"exp":1700000300,`, "")), swBody, qsTime, "exp is missing"},
		{"claims no JSON", jwt(qsNext, hs256, "x"), swBody, qsTime, "claims of the JWT are not readable"},
		{"header no JSON", jwt(qsNext, "x", claims()), swBody, qsTime, "header of the JWT is not readable"},
		{"not base64", qsToken + "!", swBody, qsTime, "not base64url"},
		{"two parts", "a.b", swBody, qsTime, "2 parts instead of 3"},
		{"missing", "", swBody, qsTime, "missing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			v, err := NewQStash(qsCurrent+"\n", qsNext, qsURL)
			if err != nil {
				t.Fatal(err)
			}
			v.Now = clock(c.now)
			err = v.Verify(headers("Upstash-Signature", c.token), []byte(c.body))
			if c.why == "" {
				if err != nil {
					t.Fatalf("not verified: %v", err)
				}
				return
			}
			unverifiedBecause(t, err, c.why, qsCurrent, qsNext)
		})
	}

	_, err := NewQStash(" ", "", "example.com/hook")
	for _, why := range []string{"current signing key is empty", "next signing key is empty", "full http or https URL"} {
		failed(t, err, why)
	}
}

// FuzzVerify looks for panics, and for a message that passes though nobody signed it.
func FuzzVerify(f *testing.F) {
	f.Add(swID, fmt.Sprint(swTime), swV1+" "+swV1a, []byte(swBody))
	f.Add(swID, "1e9", "v1, v1a,", []byte{})
	f.Add("a.b", "0", qsToken, []byte(swBody))
	sw, err1 := NewStandardWebhooks(other, swPublic)
	qs, err2 := NewQStash("a", "b", qsURL)
	xs, err3 := NewXSignature(hex.EncodeToString([]byte(other)))
	if err1 != nil || err2 != nil || err3 != nil {
		f.Fatal(err1, err2, err3)
	}
	sw.Now = clock(swTime)
	f.Fuzz(func(t *testing.T, id, timestamp, signature string, body []byte) {
		h := headers("webhook-id", id, "webhook-timestamp", timestamp, "webhook-signature", signature, "X-Signature",
			signature, "Upstash-Signature", signature)
		if sw.Verify(h, body) == nil && (id != swID || timestamp != fmt.Sprint(swTime) || string(body) != swBody) {
			t.Errorf("verified: id %q, timestamp %q, signature %q, body %q", id, timestamp, signature, body)
		}
		if xs.Verify(h, body) == nil || qs.Verify(h, body) == nil {
			t.Errorf("verified: signature %q, body %q", signature, body)
		}
	})
}
