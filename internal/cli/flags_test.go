package cli

import (
	"bytes"
	"errors"
	"flag"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	var out bytes.Buffer
	var wait time.Duration
	fs := NewFlags(Env{Stdout: &out}, "t", "About.", "t --n 1")
	n := fs.Int("n", 3, "how `many`")
	yes := fs.Bool("yes", false, "do it")
	Duration(fs, &wait, "wait", time.Minute, "how `long`")
	rest, err := Parse(fs, []string{"a", "--n=7", "-yes", "b", "--wait", "1d12h", "--", "--n"}, 3)
	if err != nil || *n != 7 || !*yes || wait != 36*time.Hour || !slices.Equal(rest, []string{"a", "b", "--n"}) {
		t.Errorf("n %d, yes %v, wait %s, rest %q, %v", *n, *yes, wait, rest, err)
	}
	_, err = Parse(fs, []string{"--m", "5", "a", "--n", "many", "--wait"}, 0)
	var usage UsageError
	if !errors.As(err, &usage) {
		t.Fatalf("%v is not a UsageError", err)
	}
	for _, want := range []string{`unknown flag --m; did you mean "n"?`, `flag --n: "many": `, "flag --wait needs a value",
		`unexpected argument "a"`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in\n%v", want, err)
		}
	}
	if _, err := Parse(fs, []string{"--bad", "-h"}, 0); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("-h: %v; want flag.ErrHelp", err)
	}
	for _, want := range []string{"About.\n\nExample:\n  t --n 1\n", "  --n many\n        how many (default 3)\n",
		"  --yes\n        do it\n", "(default 1m)"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in the help\n%s", want, out.String())
		}
	}
}

func TestParseAction(t *testing.T) {
	actions := map[string]int{"list": 0, "show": 1}
	parse := func(args ...string) (string, []string, error) {
		return ParseAction(NewFlags(Env{Stdout: &bytes.Buffer{}}, "t", "", ""), args, actions)
	}
	if action, rest, err := parse("show", "7"); action != "show" || !slices.Equal(rest, []string{"7"}) || err != nil {
		t.Errorf("show 7: %q %q %v", action, rest, err)
	}
	if _, _, err := parse(); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("no action: %v; want flag.ErrHelp", err)
	}
	for want, args := range map[string][]string{`did you mean "list"?`: {"lst"},
		`unexpected argument "1"`: {"list", "1"}} {
		if _, _, err := parse(args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %q", args, err, want)
		}
	}
}
