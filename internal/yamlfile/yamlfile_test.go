package yamlfile

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// faults lists what is wrong, without the file's name.
func faults(f *File) string {
	return strings.ReplaceAll(f.Faults().Error(), f.Name+":", "")
}

func TestValues(t *testing.T) {
	f := Parse("f.yaml", []byte(`
name: shop
number: 7
share: 0.25
on: true
wait: 1.5d
names: [a, b]
one: a
word: off
copied: &x {deep: 3}
again: *x
`))
	s := f.Top()
	name, number, share, on := s.String("name"), s.Int("number", 0, 1, 10), s.Float("share", 0, 0, 1), s.Bool("on", false)
	if name != "shop" || number != 7 || share != 0.25 || !on {
		t.Errorf("name %q, number %d, share %g, on %t; want shop, 7, 0.25, true", name, number, share, on)
	}
	if got := s.Duration("wait", 0, time.Second, time.Hour*48); got != 36*time.Hour {
		t.Errorf("wait is %s, want 36h", got)
	}
	if got := s.Strings("names"); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("names are %q", got)
	}
	if got := s.Strings("one"); !slices.Equal(got, []string{"a"}) {
		t.Errorf("one is %q; want a list of one", got)
	}
	if got := s.OneOf("word", "on", "off"); got != "off" {
		t.Errorf("word is %q", got)
	}
	if got := s.Section("again").Int("deep", 0, 0, 9); got != 3 {
		t.Errorf("again.deep is %d; want the alias's value", got)
	}
	s.Section("copied")
	s.Close()
	if err := f.Err(); err != nil {
		t.Errorf("faults in a good file:\n%v", err)
	}
}

func TestMissingKeysHaveFallbacks(t *testing.T) {
	s := Parse("f.yaml", []byte("a: 1")).Top()
	if s.String("x") != "" || s.Int("x", 4, 0, 9) != 4 || s.Float("x", 0.5, 0, 1) != 0.5 || !s.Bool("x", true) ||
		s.Duration("x", time.Minute, 0, time.Hour) != time.Minute || s.OneOf("x", "first", "second") != "first" ||
		s.Strings("x") != nil || s.Section("x") != nil || s.Has("x") || !s.Has("a") {
		t.Error("a key that is not there does not read as its fallback")
	}
	s.Default("x", &yaml.Node{Kind: yaml.ScalarNode, Value: "5"})
	s.Default("a", &yaml.Node{Kind: yaml.ScalarNode, Value: "5"})
	if s.Int("x", 4, 0, 9) != 5 || s.Int("a", 4, 0, 9) != 1 {
		t.Error("Default has to set what is not there, and nothing else")
	}
}

// TestFaultsInTheOrderOfTheFile: all of them at once, whatever the order in which they are found.
func TestFaultsInTheOrderOfTheFile(t *testing.T) {
	f := Parse("f.yaml", []byte(`name: {}
name: twice
number: 70
nmae: x
share: 2
on: maybe
wait: 5
long: 9d
short: 1s
names: []
word: of
list: [a, {}, ""]
`))
	for range 2 { // twice, since map order differs
		s := f.Section(f.Root(), "top", "name", "number", "share", "on", "wait", "long", "short", "names",
			"word", "list", "need")
		s.Strings("list")
		s.OneOf("word", "off", "on")
		s.Strings("names")
		s.Duration("short", 0, time.Minute, 24*time.Hour)
		s.Duration("long", 0, time.Minute, 24*time.Hour)
		s.Duration("wait", 0, 0, time.Hour)
		s.Bool("on", false)
		s.Float("share", 0, 0, 1)
		s.Int("number", 0, 1, 10)
		s.String("name")
		s.Require("need", "to be complete")
		want := `1:1: top: missing required key "need" (to be complete)
1:7: top.name: expected a string, got a mapping
2:1: top: duplicate key "name", first on line 1
3:9: top.number: expected a whole number from 1 to 10, got "70"
4:1: top: unknown key "nmae"; did you mean "name"?
5:8: top.share: expected a number from 0 to 1, got "2"
6:5: top.on: expected true or false, got "maybe"
7:7: top.wait: expected a duration such as 90s, 15m, 24h or 7d, got "5"
8:7: top.long: 9d is too long; the most is 1d
9:8: top.short: 1s is too short; the least is 1m
10:8: top.names: expected a string or a list of strings, got a list
11:7: top.word: "of" is not one of off, on; did you mean "off"?
12:11: top.list: expected a string, got a mapping
12:15: top.list: expected a string, got ""`
		if got := faults(f); got != want {
			t.Fatalf("got\n%s\nwant\n%s", got, want)
		}
		f.faults = nil
	}
}

func TestCloseKnowsWhatWasAskedFor(t *testing.T) {
	f := Parse("f.yaml", []byte("type: webhook\nurl: u\nurll: v\nsecret: s\n"))
	f.Hint = func(key string) string {
		if key == "secret" {
			return "; put it into the environment"
		}
		return ""
	}
	s := f.Top()
	s.String("type")
	s.String("url")
	s.Close()
	want := "3:1: unknown key \"urll\"; did you mean \"url\"?\n4:1: unknown key \"secret\"; put it into the environment"
	if got := faults(f); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestFilesThatAreNotOneDocument(t *testing.T) {
	for text, want := range map[string]string{
		"a: 1\n---\nb: 2\n":   `2:1: a second document begins here; a file holds one`,
		"a: [1\nb: 2\n":       `1:1: not valid YAML: did not find expected ',' or ']'`,
		"a: 1\n  b: 2\n":      `2:1: not valid YAML: mapping values are not allowed in this context`,
		"a: 1\n---\nb: [\n":   `3:1: not valid YAML: did not find expected node content`,
		"a: *nobody\n":        `1:1: not valid YAML: unknown anchor 'nobody' referenced`,
		"a: \"\\q\"\n":        `1:1: not valid YAML: found unknown escape character`,
		"? {a: b}\n: 1\na: 2": `1:3: expected a name as the key, got a mapping`,
		"- a\n":               `1:1: expected a mapping (key: value), got a list`,
	} {
		f := Parse("f.yaml", []byte(text))
		if f.Root() != nil {
			f.Top().Require("a", "to be complete") // not reported of what is not a mapping
		}
		if got := faults(f); got != want {
			t.Errorf("%q: got %s, want %s", text, got, want)
		}
	}
	for _, text := range []string{"", "\n# nothing\n", "---\n", "null\n"} {
		f := Parse("f.yaml", []byte(text))
		if f.Root() != nil || f.Err() != nil || f.Top().Has("a") {
			t.Errorf("%q is an empty file; root %v, %v", text, f.Root(), f.Err())
		}
	}
}

func TestReadReportsTheFileItself(t *testing.T) {
	name := filepath.Join(t.TempDir(), "none.yaml")
	if got, want := Read(name).Err().Error(), name+": no such file or directory"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if err := os.WriteFile(name, []byte("a: 1"), 0o600); err != nil {
		t.Fatal(err)
	}
	if f := Read(name); f.Err() != nil || f.Top().Int("a", 0, 0, 9) != 1 {
		t.Errorf("%v", f.Err())
	}
}

// TestInside finds the place of a character in each form of a scalar.
func TestInside(t *testing.T) {
	text := "plain: abXd\nsingle: 'it''s X'\ndouble: \"a\\t\\u00e9\\x41X\"\n" +
		"literal: |\n    first\n    aX\nfolded: >\n  one\n  X\n"
	f := Parse("f.yaml", []byte(text))
	s := f.Top()
	places := map[string][2]int{
		"plain": {1, 10}, "single": {2, 16}, "double": {3, 23}, "literal": {6, 6}, "folded": {7, 9},
	}
	for key, want := range places {
		n := s.Get(key)
		before, _, _ := strings.Cut(n.Value, "X")
		line := strings.Count(before, "\n")
		col := len([]rune(before[strings.LastIndex(before, "\n")+1:]))
		if l, c := f.Inside(n, line+1, col); l != want[0] || c != want[1] {
			t.Errorf("%s: X is at %d:%d, want %d:%d", key, l, c, want[0], want[1])
		}
	}
}
