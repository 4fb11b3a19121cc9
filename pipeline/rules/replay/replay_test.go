package replay

import (
	"os"
	"path/filepath"
	"testing"

	"sluice.example/sluice/pipeline/rules"
)

// load loads rules from a text, with the tests in them.
func load(t testing.TB, text string) *rules.Set {
	t.Helper()
	set, err := loadText(t, text)
	if err != nil {
		t.Fatalf("rules do not load:\n%v\n%s", err, text)
	}
	return set
}

func loadText(t testing.TB, text string) (*rules.Set, error) {
	t.Helper()
	dir := t.TempDir()
	text = "version: 1\nruleset: t\ndefaults: {owner: me, response: r.md}\nrules:\n" + text
	for name, content := range map[string]string{"rules.yaml": text, "r.md": "do something"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return Load(filepath.Join(dir, "rules.yaml"), rules.DefaultOptions())
}
