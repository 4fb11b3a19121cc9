package deliver

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestLoadTopics(t *testing.T) {
	ds := Destinations{list: []*Destination{{Name: "crm"}, {Name: "billing"}}}
	load := func(text string) (map[string][]string, error) {
		t.Helper()
		file := filepath.Join(t.TempDir(), "topics.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return ds.LoadTopics(file)
	}
	topics, err := load("topics:\n  orders: [crm, billing]\n  refunds: [crm]\n")
	want := map[string][]string{"orders": {"crm", "billing"}, "refunds": {"crm"}}
	if err != nil || !maps.EqualFunc(topics, want, slices.Equal) {
		t.Errorf("%v, %v; want %v", topics, err, want)
	}
	if topics, err := load("# nothing yet\n"); err != nil || len(topics) != 0 {
		t.Errorf("an empty file: %v, %v", topics, err)
	}
	_, err = load("topics:\n  orders: [crn]\n  orders: [crm]\n  none: []\n  deep: [[crm]]\n  word: crm\nother: 1\n")
	if err == nil {
		t.Fatal("a file full of mistakes is taken")
	}
	for _, want := range []string{
		`:2:12: topics.orders: unknown destination "crn"; did you mean "crm"?`, `:3:3: topics: duplicate key "orders"`,
		":4:9: topics.none: has no destinations", ":5:10: topics.deep: expected the name of a destination, got a list",
		":6:9: topics.word: expected a list of destinations", `:7:1: unknown key "other"`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in\n%v", want, err)
		}
	}
}
