package main

import (
	"strings"
	"testing"
	"time"

	"sluice/internal/pgtest"
)

func TestRulesCheckAndTest(t *testing.T) {
	check := func(wantStatus int, want string, args ...string) {
		t.Helper()
		status, out, errOut := runCommand(t, nil, append([]string{"rules"}, args...)...)
		if status != wantStatus || !strings.Contains(out+errOut, want) {
			t.Errorf("rules %q: exit status %d, output\n%s%s\nwant %d and %q", args, status, out, errOut, wantStatus, want)
		}
	}
	bad := writeFile(t, "bad.yaml", "version: 1\nruleset: t\nrules:\n  - {id: a, onwer: me, response: 'https://wiki/a', on: x, send_to: crm}\n")
	failing := writeFile(t, "failing.yaml", `version: 1
ruleset: t
rules:
  - id: a
    owner: me
    response: https://wiki/a
    on: x
    send_to: crm
    tests: [{name: none, events: [{event_name: x}], expect: []}]
`)
	destinations := writeFile(t, "d.yaml", "destinations:\n  - {name: welcome, url: 'https://example.com', secret_env: S}\n")
	t.Setenv("S", "0123456789abcdef0123456789abcdef")
	check(0, "ok: 4 rules, 5 tests passed, 0 warnings", "check", "../../rules/shop.yaml")
	check(0, "5 tests passed", "test", "../../rules/shop.yaml")
	check(1, `unknown key "onwer"; did you mean "owner"?`, "check", bad)
	check(1, "1 message", "check", failing)
	check(1, "1 of 1 test failed", "test", failing)
	check(1, "the rules have errors", "test", bad)
	check(1, `unknown destination "sales"`, "check", "../../rules/shop.yaml", "--destinations", destinations)
	check(2, `unknown action "chek"; did you mean "check"?`, "chek")
	check(2, "which rules?", "check")
}

// TestRulesList: what a running process has in force is listed within seconds.
func TestRulesList(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	startNode(t, url, writeRules(t, "http://127.0.0.1:9/", "[1s]")...)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		status, out, errOut := runCommand(t, nil, "rules", "list", "--database-url", url)
		if status == 0 && strings.Contains(out, "shop/big-purchase") && strings.Contains(out, "team-sales") && strings.Contains(out, "absence") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("rules list: exit status %d, output\n%s%s", status, out, errOut)
		}
	}
}
