package tenants

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func hashed(key string) string { return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(key))) }

func TestSet(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tenants.yaml")
	text := fmt.Sprintf("tenants:\n  - {id: 2, name: acme, keys: [%q, %q]}\n  - {id: 7, name: other, keys: [%q]}\n",
		hashed("old"), hashed("new"), hashed("third"))
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	a, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if want := map[string]int32{"acme": 2, "other": 7}; !maps.Equal(a.IDs(), want) {
		t.Errorf("tenants %v; want %v", a.IDs(), want)
	}
	for key, tenant := range map[string]int32{
		"old": 2, "new": 2, "third": 7, "": 0, "Old": 0, "fourth": 0,
		hashed("old"): 0, strings.TrimPrefix(hashed("old"), "sha256:"): 0,
	} {
		if got, ok := a.OfKey([]byte(key)); got != tenant || ok != (tenant != 0) {
			t.Errorf("key %q: tenant %d, %v; want %d", key, got, ok, tenant)
		}
	}
	if got, ok := (Set{}).OfKey(nil); got != 1 || !ok || !maps.Equal((Set{}).IDs(),
		map[string]int32{"default": 1}) {
		t.Errorf("without tenants: %d, %v; want tenant 1 without a key", got, ok)
	}
}

func TestLoadNamesEveryFault(t *testing.T) {
	text := `tenants:
  - {id: 0, name: zero, keys: ["` + hashed("a") + `"]}
  - {id: 2, keys: ["` + hashed("b") + `"]}
  - {id: 3, name: acme, keys: ["my-secret-key", "sha256:abc"]}
  - {id: 3, name: acme, keys: []}
  - {id: 4, name: thief, keys: ["` + hashed("a") + `"]}
  - {id: 9, name: "` + strings.Repeat("n", 65) + `", keys: ["` + hashed("c") + `"]}
  - {name: none, limits: {events-per-second: -1, bytes-per-secnd: 5}}
`
	_, err := Parse("tenants.yaml", text)
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
		`.name: expected at most 64 characters, none of them a control character`,
		`tenants.yaml:8:5: tenants[none]: missing required key "id"`,
		`tenants.yaml:8:5: tenants[none]: missing required key "keys"`,
		`tenants.yaml:8:46: tenants[none].limits.events-per-second: expected a number from 0 to 1e+09, got "-1"`,
		`tenants.yaml:8:50: tenants[none].limits: unknown key "bytes-per-secnd"; did you mean "bytes-per-second"?`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error lacks %q:\n%v", want, err)
		}
	}
	if strings.Contains(err.Error(), "my-secret-key") {
		t.Errorf("the error shows what may be a key:\n%v", err)
	}
	for _, text := range []string{"", "tenants: []", "tenants: [{idd: 1}]", "{", "- 1"} {
		if _, err := Parse("tenants.yaml", text); err == nil {
			t.Errorf("%q: no error", text)
		}
	}
	if _, err := Load(filepath.Join(t.TempDir(), "none.yaml")); err == nil {
		t.Error("a file that does not exist: no error")
	}
}
