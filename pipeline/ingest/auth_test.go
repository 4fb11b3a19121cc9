package ingest

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sluice.example/sluice/internal/yamlfile"
)

func hashed(key string) string { return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(key))) }

func TestAuth(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tenants.yaml")
	text := fmt.Sprintf("tenants:\n  - {id: 2, name: acme, keys: [%q, %q]}\n  - {id: 7, name: other, keys: [%q]}\n",
		hashed("old"), hashed("new"), hashed("third"))
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	a, err := LoadAuth(path)
	if err != nil {
		t.Fatal(err)
	}
	if want := map[string]int32{"acme": 2, "other": 7}; !maps.Equal(a.Tenants(), want) {
		t.Errorf("tenants %v; want %v", a.Tenants(), want)
	}
	basic := func(user string) string { return "basic " + base64.StdEncoding.EncodeToString([]byte(user)) }
	for _, tt := range []struct {
		authorization, writeKey string
		tenant                  int32
	}{
		{"Bearer old", "", 2}, {"bearer  new ", "", 2}, {"Bearer third", "", 7}, {basic("new:"), "", 2}, {basic("third:x"),
			"", 7}, {basic("third"), "", 7},
		{"", "third", 7}, {"", "", 0}, {"Bearer ", "", 0}, {"Bearer", "", 0}, {"Bearer Old", "", 0}, {"Basic old", "", 0},
		{"Digest old", "", 0}, {"Bearer x", "old", 0},
		{basic(":old"), "", 0}, {"", "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae", 0}, {"",
			hashed("old"), 0},
	} {
		got, ok := a.tenant(credentials([]byte(tt.authorization), []byte(tt.writeKey)))
		if got != tt.tenant || ok != (tt.tenant != 0) {
			t.Errorf("Authorization %q, X-Write-Key %q: tenant %d, %v; want %d", tt.authorization, tt.writeKey, got, ok,
				tt.tenant)
		}
	}
	if got, ok := (Auth{}).tenant(nil); got != 1 || !ok || !maps.Equal((Auth{}).Tenants(),
		map[string]int32{"default": 1}) {
		t.Errorf("without tenants: %d, %v; want tenant 1 without a key", got, ok)
	}
}

func TestLoadAuthNamesEveryFault(t *testing.T) {
	text := `tenants:
  - {id: 0, name: zero, keys: ["` + hashed("a") + `"]}
  - {id: 2, keys: ["` + hashed("b") + `"]}
  - {id: 3, name: acme, keys: ["my-secret-key", "sha256:abc"]}
  - {id: 3, name: acme, keys: []}
  - {id: 4, name: thief, keys: ["` + hashed("a") + `"]}
  - {name: none, limits: {events-per-second: -1, bytes-per-secnd: 5}}
`
	_, err := parseAuth([]byte(text))
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		`tenants.yaml:2:10: tenants[zero].id: expected a whole number from 1 to 2147483647, got "0"`,
		`tenants.yaml:3:5: tenants[1]: missing required key "name"`,
		`tenants.yaml:4:32: tenants[acme].keys: expected "sha256:" and 64 hexadecimal digits`,
		`tenants.yaml:4:49: tenants[acme].keys: expected "sha256:" and 64 hexadecimal digits`,
		`tenants.yaml:5:10: tenants[acme].id: 3 is the id of tenant "acme"`,
		`tenants.yaml:5:19: tenants[acme].name: a tenant "acme" is in this file already`,
		`tenants.yaml:5:31: tenants[acme].keys: expected at least one key`,
		`tenants.yaml:6:33: tenants[thief].keys: this is also a key of tenant "zero"`,
		`tenants.yaml:7:5: tenants[none]: missing required key "id"`,
		`tenants.yaml:7:5: tenants[none]: missing required key "keys"`,
		`tenants.yaml:7:46: tenants[none].limits.events-per-second: expected a number from 0 to 1e+09, got "-1"`,
		`tenants.yaml:7:50: tenants[none].limits: unknown key "bytes-per-secnd"; did you mean "bytes-per-second"?`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error lacks %q:\n%v", want, err)
		}
	}
	if strings.Contains(err.Error(), "my-secret-key") {
		t.Errorf("the error shows what may be a key:\n%v", err)
	}
	for _, text := range []string{"", "tenants: []", "tenants: [{idd: 1}]", "{", "- 1"} {
		if _, err := parseAuth([]byte(text)); err == nil {
			t.Errorf("%q: no error", text)
		}
	}
	if _, err := LoadAuth(filepath.Join(t.TempDir(), "none.yaml")); err == nil {
		t.Error("a file that does not exist: no error")
	}
}

// parseAuth is LoadAuth for a text at hand.
func parseAuth(text []byte) (Auth, error) { return readAuth(yamlfile.Parse("tenants.yaml", text)) }
