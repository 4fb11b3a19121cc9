package rules

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// loadIrreversible loads rules where crm is a destination that can't take back what it does.
func loadIrreversible(t *testing.T, text string) (*Set, error) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"rules.yaml": text, "r.md": "do something"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	o := DefaultOptions()
	o.Tenants = map[string]int32{"acme": 2}
	o.Destinations, o.Irreversible = []string{"sales", "crm"}, []string{"crm"}
	return Load(filepath.Join(dir, "rules.yaml"), o)
}

// TestIrreversibleNeedsAKey: what can't be taken back must not happen twice.
func TestIrreversibleNeedsAKey(t *testing.T) {
	check := func(text, want string) {
		t.Helper()
		_, err := loadIrreversible(t, text)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in\n%s", err, want, text)
		}
	}
	const refusal = "what crm does can't be taken back (irreversible), so the rule needs a dedupe_key"
	check(ruleText(), refusal)
	check(strings.Replace(ruleText(), "send_to: crm", "send_to: [sales, crm]", 1), refusal)
	check(strings.Replace(ruleText(), "send_to: crm", "send_to: sales", 1), "")
	check(ruleText("dedupe_key: event.user_id"), "")
	check(cart(), "")
	check("version: 1\nruleset: t\nrules:\n  - {id: drop, kind: rate, owner: me, response: r.md, count: {on: x}, "+
		"window: 10m, every: 5m, baseline: {step: 1d, periods: 3, require: 2}, minimum: {expected: 10}, "+
		"fire: {rise: 100%, z: 3}, send_to: crm}\n", refusal)
}

// TestAChangedRuleIsAShadowUntilItIsReviewed again.
func TestAChangedRuleIsAShadowUntilItIsReviewed(t *testing.T) {
	one := func(text string) *Rule {
		t.Helper()
		set, err := loadIrreversible(t, text)
		if err != nil {
			t.Fatal(err)
		}
		return set.Rules()[0]
	}
	key := "dedupe_key: event.user_id"
	fresh := one(ruleText(key))
	if !fresh.Shadow || !fresh.AwaitsReview() || fresh.StateKey != "t/r (shadow)" {
		t.Errorf("without a review: shadow %t, state %q", fresh.Shadow, fresh.StateKey)
	}
	by := fmt.Sprintf("reviewed_by: {name: Ann, digest: '%s'}", fresh.Review.Digest)
	for what, c := range map[string]struct {
		text   string
		active bool
	}{
		"reviewed":        {ruleText(key, by), true},
		"a comment":       {ruleText(key, "# why", by), true},
		"a test":          {ruleText(key, by, "tests: []"), true},
		"another match":   {ruleText(key, by, "match: true"), false},
		"another key":     {ruleText("dedupe_key: event.session_id", by), false},
		"another ruleset": {"defaults: {dedupe_for: 1d}\n" + ruleText(key, by), false},
		"other tenants":   {"tenants: [acme]\n" + ruleText(key, by), false},
		"another digest":  {ruleText(key, "reviewed_by: {name: Ann, digest: '0000000000000000'}"), false},
	} {
		r := one(c.text)
		if r.Shadow == c.active || r.AwaitsReview() == c.active || r.Review.By != "Ann" {
			t.Errorf("%s: shadow %t, awaits review %t, by %q", what, r.Shadow, r.AwaitsReview(), r.Review.By)
		}
	}
	meant := one(ruleText(key, "state: shadow"))
	if meant.AwaitsReview() {
		t.Error("what is meant as a shadow waits for a review")
	}
	set, err := loadIrreversible(t, ruleText(key, "match: true", by))
	if err != nil || len(set.Warnings()) != 1 || !strings.Contains(set.Warnings()[0].String(),
		"it has changed since Ann reviewed it: until then it is a shadow") {
		t.Errorf("warnings %v, %v", set.Warnings(), err)
	}
}
