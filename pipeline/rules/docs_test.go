package rules

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestDocumentedRulesLoad: every example rule of docs/rules.md is one.
func TestDocumentedRulesLoad(t *testing.T) {
	text, err := os.ReadFile("../../docs/rules.md")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		rules := block[1]
		switch {
		case strings.HasPrefix(rules, "- id:"):
		case strings.HasPrefix(rules, "  tests:"):
			rules = "- id: cart\n  kind: absence\n  trigger: {on: add_to_cart}\n  cancel: {on: purchase_completed}\n  key: " +
				"event.session_id\n" +
				"  within: 60m\n  grace: 5m\n  send_to: sales\n" + rules
		default:
			continue // the frame of a file
		}
		found++
		set, err := loadText(t, fmt.Sprintf("version: 1\nruleset: doc\ndefaults: {owner: me, response: r.md}\nrules:\n%s",
			rules))
		if err != nil || len(set.rules) != 1 {
			t.Errorf("%v\n%s", err, rules)
		}
	}
	if found < 4 {
		t.Errorf("%d examples found, want at least 4", found)
	}
}
