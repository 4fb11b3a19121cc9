package rules

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sluice.example/sluice/internal/yamlfile"
)

var update = flag.Bool("update", false, "write the golden files anew")

// TestBrokenFileGolden: a file with every kind of mistake gets one line for each, which says where and what to do.
func TestBrokenFileGolden(t *testing.T) {
	text, err := os.ReadFile("testdata/broken.yaml")
	if err != nil {
		t.Fatal(err)
	}
	_, err = loadText(t, string(text))
	var errs yamlfile.Faults
	if !errors.As(err, &errs) {
		t.Fatalf("Load = %v; want yamlfile.Faults", err)
	}
	for i := range errs {
		errs[i].File = filepath.Base(errs[i].File)
	}
	got := errs.Error() + "\n"
	if *update {
		if err := os.WriteFile("testdata/broken.golden", []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("testdata/broken.golden")
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if n := strings.Count(got, "\n"); n < 10 {
		t.Errorf("%d errors; want one for each mistake", n)
	}
}

func TestLoadErrors(t *testing.T) {
	check := func(rules, want string) {
		t.Helper()
		_, err := loadText(t, rules)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v\nwant %q\nin %.600s", err, want, rules)
		}
	}
	check("", "rules.yaml:1:1: the file is empty")
	check("version: 1\nruleset: t\nrules:\n  - id: [", "rules.yaml:")
	check("version: 2\nruleset: Shop!\nrules: {}", `2:10: ruleset: "Shop!" is not a name`)
	check("version: 2\nruleset: shop\nrules: []", `1:10: version: expected version 1, got "2"`)
	check("ruleset: shop\nrules: []", `missing required key "version"`)
	check("version: 1\nruleset: t\nrules: []\ndestinations: {}", "addresses are not part of the rules")
	check("version: 1\nruleset: t\ntenants: [acne]\nrules: []",
		`3:10: tenants: unknown tenant "acne"; did you mean "acme"?`)
	check(ruleText("digest: {after: 1h}"), "the rule has neither")
	check(ruleText("cooldown: 0s"), "9:15: rules[r].cooldown: 0s is too short")
	check(ruleText("cooldown: 90000d"), "90000d is too long; the most is 3660d")
	check(ruleText("dedupe_for: 5000d"), "too long")
	check(ruleText("match: event"), "is of type event, but has to be a condition")
	check(ruleText("match: '[1,2].all(x, x > 0)'"), "rules[r].match")
	check(ruleText("match: "+strings.Repeat("(", 60)+"true"+strings.Repeat(")", 60)), "rules[r].match")
	check(ruleText("match: "+strings.Repeat(`event.user_id.matches("(a|b|c)+[xyz]*.*(foo|bar)") && `, 120)+"true"),
		"can cost up to")
	check(ruleText("kind: absense"), `rules[r].kind: "absense" is not one of`)
	check(ruleText("match: >\n      event.user_id == 5"), "9:12: rules[r].match: found no matching overload")
	check(ruleText("match: \"event.user_id == '\\u00e9\\\\n' + 5\""),
		":42: rules[r].match: found no matching overload for '_+_'")
	if _, err := Load(filepath.Join(t.TempDir(), "none.yaml"), DefaultOptions()); err == nil ||
		!strings.Contains(err.Error(), "no such file") {
		t.Errorf("a missing file: got %v", err)
	}
}

func TestLoadFolder(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Load(dir, DefaultOptions()); err == nil {
		t.Error("an empty folder loads; want an error")
	}
	write("r.md", "x")
	write("a.yaml", ruleText())
	write("b.yml", strings.Replace(ruleText(), "ruleset: t", "ruleset: u", 1))
	set, err := Load(dir, DefaultOptions())
	if err != nil || len(set.rules) != 2 {
		t.Fatalf("Load = %v, %v; want two rules", set, err)
	}
	write("b.yml", ruleText())
	if _, err := Load(dir, DefaultOptions()); err == nil ||
		!strings.Contains(err.Error(), `ruleset "t" is already that of`) {
		t.Errorf("two files with one ruleset: got %v", err)
	}
}

// TestNamesListedTwice would count, or decide, twice.
func TestNamesListedTwice(t *testing.T) {
	for _, text := range []string{
		"  - {id: r, owner: me, response: r.md, on: [x, y, x], send_to: crm}\n",
		"  - {id: r, kind: rate, owner: me, response: r.md, count: {on: [x, x]}, fire: {rise: 50%}, send_to: crm}\n",
	} {
		_, err := loadText(t, "version: 1\nruleset: t\nrules:\n"+text)
		if err == nil || !strings.Contains(err.Error(), `event "x" is listed twice`) {
			t.Errorf("%s: %v, want an error", text, err)
		}
	}
}
