package review

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sluice.example/sluice/pipeline/rules"
)

// TestReviewIsWrittenIntoTheRule, and nothing else of the file changes.
func TestReviewIsWrittenIntoTheRule(t *testing.T) {
	known := rules.DefaultOptions()
	known.Destinations, known.Irreversible = []string{"mail"}, []string{"mail"}
	const head = "# ours\nversion: 1\nruleset: t\ndefaults: {owner: me, response: 'https://wiki/r'}\nrules:\n"
	const block = "  # welcome\n  - id: a   # the first\n    on: x\n    dedupe_key: event.user_id\n    send_to: mail\n" +
		"    tests: [{name: sends, events: [{event_name: x, user_id: u}], expect: [{status: sent}]}]\n"
	const flow = "  - {on: x, id: b, dedupe_key: event.user_id, send_to: mail} # é\n"
	file := filepath.Join(t.TempDir(), "rules.yaml")
	text := func() string {
		t.Helper()
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	put := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	without := func(s string) string {
		for _, between := range []string{"\n    ", ", "} {
			for {
				before, after, found := strings.Cut(s, "reviewed_by: {")
				_, rest, ends := strings.Cut(after, "}"+between)
				if !found || !ends || strings.Contains(strings.TrimSuffix(after, rest), "id:") {
					break
				}
				s = before + rest
			}
		}
		return s
	}
	for _, rule := range []string{"t/a", "b", "t/a", "t/b"} {
		if text := head + block + flow; rule == "t/a" {
			put(text)
		}
		r, err := Write(file, known, rule, "Ann Lee")
		if err != nil {
			t.Fatalf("%s: %v", rule, err)
		}
		if r.Shadow || r.Review.By != "Ann Lee" {
			t.Errorf("%s: shadow %t, reviewed by %q", rule, r.Shadow, r.Review.By)
		}
		if got := without(text()); got != head+block+flow {
			t.Errorf("%s: the file became\n%s", rule, text())
		}
	}
	// A change undoes it, and another review replaces the first.
	put(strings.Replace(text(), "    on: x\n", "    on: y\n", 1))
	set, err := rules.Load(file, known)
	if err != nil || !set.Named("a").AwaitsReview() {
		t.Fatalf("after a change: %v", err)
	}
	put(strings.Replace(text(), "event_name: x", "event_name: y", 1))
	if _, err := Write(file, known, "a", "Bob"); err != nil {
		t.Fatal(err)
	}
	if got := text(); strings.Count(got, "reviewed_by") != 2 || strings.Contains(strings.Split(got, "- {")[0], "Ann") {
		t.Errorf("the file became\n%s", got)
	}
	for by, rule := range map[string]string{"": "a", "a: b": "a", `x"`: "a", "Ann": "c"} {
		before := text()
		if _, err := Write(file, known, rule, by); err == nil || text() != before {
			t.Errorf("rule %q by %q: %v", rule, by, err)
		}
	}
	left, err := os.ReadDir(filepath.Dir(file))
	if err != nil || len(left) != 1 {
		t.Errorf("files left: %v, %v", left, err)
	}
}
