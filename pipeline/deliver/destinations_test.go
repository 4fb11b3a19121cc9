package deliver

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestDestinationsFile(t *testing.T) {
	secretFile := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secretFile, []byte(testSecret+"\r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ds, err := Parse("destinations.yaml", []byte(`
destinations:
  - name: crm
    url: https://crm.example.com/hooks
    secret_env: SECRET
  - name: sales-alerts
    type: webhook
    url_env: SALES_URL
    secret_file: `+secretFile+`
    timeout: 2s
    concurrency: 4
    prefetch: 2
    attempts: 3
    retry: [5s, 5m, 1h]
    retry_status: [404]
    headers: {X-Shop: demo}
    headers_env: {Authorization: TOKEN}
    signatures: [x-signature]
    allow_private: true
  - name: log
    url: http://log.example.com
    signatures: none
    retry: {base: 1s, max: 1m, jitter: 0}
`), env("SECRET", testSecret, "SALES_URL", "https://sales.example.com", "TOKEN", "Bearer t0ken"))
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(ds.Names(), " "); got != "crm sales-alerts log" {
		t.Errorf("names = %s", got)
	}
	crm, sales, log := ds.list[0], ds.list[1], ds.list[2]
	if crm.Type != "webhook" || crm.timeout != 5*time.Second || crm.attempts != 6 || crm.concurrency != 64 ||
		crm.prefetch != 8 || crm.web.allowPrivate ||
		crm.retry.wait(1) > 15*time.Second || len(crm.web.signer.versions) != 1 || crm.web.signer.plain == nil {
		t.Errorf("defaults: %+v", crm)
	}
	if sales.timeout != 2*time.Second || sales.concurrency != 4 || sales.prefetch != 2 || sales.attempts != 3 ||
		sales.retry.wait(2) != 5*time.Minute ||
		!sales.retryStatus[404] || fmt.Sprint(sales.web.headers) != "[[X-Shop demo] [Authorization Bearer t0ken]]" ||
		!sales.web.allowPrivate ||
		sales.web.signer.versions != nil || sales.web.endpoint.addr != "sales.example.com:443" {
		t.Errorf("sales: %+v", sales)
	}
	if log.web.signer.plain != nil || log.web.signer.versions != nil || log.retry.wait(3) != 4*time.Second {
		t.Errorf("log: %+v", log)
	}
}

func TestEmptyDestinationsFile(t *testing.T) {
	if ds, err := Parse("destinations.yaml", nil, env()); err != nil || len(ds.Names()) != 0 {
		t.Errorf("Parse of an empty file = %v, %v; want no destinations", ds.Names(), err)
	}
}

// All mistakes come at once, each with its line, and no secret or address with them.
func TestDestinationsFaults(t *testing.T) {
	_, err := Parse("destinations.yaml", []byte(`destination: []
destinations:
  - name: CRM
    url: https://crm.example.com
    secret_env: SECRET
  - name: one
    url: ftp://hidden.example.com
    concurency: 3
    secret: abc
    secret_env: NOPE
  - name: one
    url: https://user:pass@hidden.example.com
    secret_env: SHORT
    timeout: 5
    attempts: 0
    attempts: 3
  - name: three
    type: webhok
  - name: four
    url: https://x.example.com
    retry: {base: 1s, factor: 3, jitter: 2}
    retry_status: [200]
    headers: {X-Signature: a, "a b": c}
    headers_env: {Authorization: NOPE}
    signatures: [x-signatur]
    secret_file: /does/not/exist
    allow_private: sure
  - name: five
    url: https://x.example.com
`), env("SECRET", testSecret, "SHORT", "hidden"))
	if err == nil {
		t.Fatal("Parse took it")
	}
	for _, want := range []string{
		`destinations.yaml:1:1: unknown key "destination"; did you mean "destinations"?`,
		`destinations.yaml:3:11: destinations.name: expected a name of at most 63 lower-case letters`,
		`destinations.yaml:7:10: destinations[one].url: the address must be a full http or https URL`,
		`destinations.yaml:8:5: destinations[one]: unknown key "concurency"; did you mean "concurrency"?`,
		`destinations.yaml:9:13: destinations[one].secret: must not stand in this file: use secret_env or secret_file`,
		`destinations.yaml:10:17: destinations[one].secret_env: the environment has no NOPE`,
		`destinations.yaml:11:5: destination "one" is on line 6 already`,
		`destinations.yaml:12:10: destinations[one].url: the address must not hold a user and password`,
		`destinations.yaml:14:14: destinations[one].timeout: expected a duration such as 90s`,
		`destinations.yaml:15:15: destinations[one].attempts: expected a whole number from 1 to 1000, got "0"`,
		`destinations.yaml:16:5: destinations: duplicate key "attempts", first on line 15`,
		`destinations.yaml:13:17: destinations[one].secret_env: a secret has 4 bytes after whsec_`,
		`destinations.yaml:18:11: destinations[three].type: unknown type "webhok"; did you mean "webhook"?`,
		`destinations.yaml:21:23: destinations[four].retry: unknown key "factor"`,
		`destinations.yaml:21:42: destinations[four].retry.jitter: expected a number from 0 to 1, got "2"`,
		`destinations.yaml:22:20: destinations[four].retry_status: expected the status code of a failure (300 to 599)`,
		`destinations.yaml:23:15: destinations[four].headers: X-Signature is set by this program`,
		`destinations.yaml:23:31: destinations[four].headers: "a b" is not the name of a header`,
		`destinations.yaml:24:34: destinations[four].headers_env: the environment has no NOPE`,
		`destinations.yaml:26:18: destinations[four].secret_file: open /does/not/exist`,
		`destinations.yaml:27:20: destinations[four].allow_private: expected true or false, got "sure"`,
		`destinations.yaml:28:5: destinations[five]: needs secret_env or secret_file to sign with; to send unsigned`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("missing: %s", want)
		}
	}
	if t.Failed() {
		t.Logf("got:\n%v", err)
	}
	for _, secret := range []string{testSecret, "hidden"} {
		if strings.Contains(err.Error(), secret) {
			t.Errorf("the error shows %q:\n%v", secret, err)
		}
	}
}

func TestLeaseTooShortIsRefusedWithTheNumbers(t *testing.T) {
	ds := destinations(t, hook("slow", "http://slow.example.com", "timeout: 30s"),
		hook("fine", "http://fine.example.com"))
	_, err := New(DefaultConfig(), ds, &fakeQueue{lease: time.Minute}, time.Minute, nil, nil)
	if err == nil {
		// Only then would it get as far as the metrics.
		t.Fatal("New took a lease of 1m for 8 messages of 30s each")
	}
	for _, want := range []string{`destination "slow" (destinations.yaml:2)`, "claim.lease is 1m0s",
		"timeout 30s, prefetch 8", "need 4m2s"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not say %q", err, want)
		}
	}
	if strings.Contains(err.Error(), "fine") {
		t.Errorf("error %q names a destination that is fine", err)
	}
}

func TestConfigFaultsComeTogether(t *testing.T) {
	_, err := New(Config{AllowNetworks: []string{"10.0.0.1"}}, Destinations{}, &fakeQueue{}, 0, nil, nil)
	if err == nil {
		t.Fatal("New took it")
	}
	for _, key := range []string{"poll-interval", "claim-batch", "max-bytes", "allow-networks"} {
		if !strings.Contains(err.Error(), "deliver."+key) {
			t.Errorf("error %q does not name deliver.%s", err, key)
		}
	}
}

// TestIrreversibleDestinationsAreListed: rules that send there need a review.
func TestIrreversibleDestinationsAreListed(t *testing.T) {
	ds := destinations(t, hook("crm", "https://example.com"), hook("mail", "https://example.com", "irreversible: true"))
	if got := ds.Irreversible(); len(got) != 1 || got[0] != "mail" {
		t.Errorf("irreversible are %v, want mail", got)
	}
}
