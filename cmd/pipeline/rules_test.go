package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/operate/backtest"
	"sluice.example/sluice/pipeline/rules"
)

func TestRulesCheckAndTest(t *testing.T) {
	check := func(wantStatus int, want string, args ...string) {
		t.Helper()
		status, out, errOut := runCommand(t, nil, append([]string{"rules"}, args...)...)
		if status != wantStatus || !strings.Contains(out+errOut, want) {
			t.Errorf("rules %q: exit status %d, output\n%s%s\nwant %d and %q", args, status, out, errOut, wantStatus, want)
		}
	}
	bad := writeFile(t, "bad.yaml", "version: 1\nruleset: t\nrules:\n  - {id: a, onwer: me, response: "+
		"'https://wiki/a', on: x, send_to: crm}\n")
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
	destinations := writeFile(t, "d.yaml", "destinations:\n  - {name: welcome, url: 'https://example.com', secret_env: "+
		"S}\n")
	t.Setenv("S", "0123456789abcdef0123456789abcdef")
	check(0, "ok: 4 rules, 5 tests passed, 0 warnings", "check", "../../rules/shop.yaml")
	check(0, "5 tests passed", "test", "../../rules/shop.yaml")
	check(1, `unknown key "onwer"; did you mean "owner"?`, "check", bad)
	check(1, "1 message", "check", failing)
	check(1, "1 of 1 test failed", "test", failing)
	check(1, "the rules have errors", "test", bad)
	check(1, `unknown destination "sales"`, "check", "../../rules/shop.yaml", "--destinations", destinations)
	one := func(id string) string {
		return writeFile(t, id+".yaml", "version: 1\nruleset: t\nrules:\n  - {id: "+id+", owner: me, response: "+
			"'https://wiki/a', on: x, send_to: crm}\n")
	}
	check(0, "rules[b]: looks like t/a under another id, and would begin anew", "check", one("b"), "--against", one("a"))
	check(1, "the rules to compare with have errors", "check", one("b"), "--against", bad)
	check(2, `unknown action "chek"; did you mean "check"?`, "chek")
	check(2, "which rules?", "check")
}

// TestRulesReview: a rule with an irreversible destination is a shadow until somebody has read it.
func TestRulesReview(t *testing.T) {
	destinations := writeFile(t, "d.yaml", "destinations:\n  - {name: mail, type: file, path: out.jsonl, "+
		"irreversible: true}\n")
	file := writeFile(t, "rules.yaml", "version: 1\nruleset: t\nrules:\n  - {id: a, owner: me, "+
		"response: 'https://wiki/a', on: x, dedupe_key: event.user_id, send_to: mail}\n")
	check := func(wantStatus int, want string, args ...string) {
		t.Helper()
		status, out, errOut := runCommand(t, nil, append([]string{"rules", "--destinations", destinations}, args...)...)
		if status != wantStatus || !strings.Contains(out+errOut, want) {
			t.Errorf("rules %q: exit status %d, output\n%s%s\nwant %d and %q", args, status, out, errOut, wantStatus, want)
		}
	}
	check(0, "nobody has reviewed it: until then it is a shadow", "check", file)
	check(2, "which rule, and who has read it?", "review", "t/a", file)
	check(1, `there is no rule "t/b"`, "review", "t/b", file, "--by", "Ann")
	check(0, "t/a is reviewed by Ann Lee as ", "review", "t/a", file, "--by", "Ann Lee")
	check(0, "ok: 1 rule, 0 tests passed, 0 warnings", "check", file)
}

// TestRulesList: what a running process has in force is listed within seconds.
func TestRulesList(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	startNode(t, url, writeRules(t, "http://127.0.0.1:9/", "[1s]")...)
	var status int
	var out, errOut string
	pgtest.Eventually(t, "the list has all rules", func() bool {
		status, out, errOut = runCommand(t, nil, "rules", "list", "--database-url", url)
		return status == 0 && strings.Contains(out, "shop/big-purchase") && strings.Contains(out, "team-sales") &&
			strings.Contains(out, "absence") &&
			strings.Contains(out, "shop/conversion-drop is unknown: nothing was counted yet")
	}, func() any { return fmt.Sprintf("exit status %d, output\n%s%s", status, out, errOut) })
	status, out, errOut = runCommand(t, nil, "rules", "list", "--json", "--database-url", url)
	var list []struct{ Rule, Kind, State string }
	if err := json.Unmarshal([]byte(out), &list); status != 0 || err != nil || len(list) != 4 {
		t.Errorf("rules list --json: status %d, %v, %+v\n%s", status, err, list, errOut)
	}
}

// TestRulesBacktest: stored events replayed by other rules, compared with those in force; nothing changes by it.
func TestRulesBacktest(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	conn := connect(t, url)
	_, err := conn.Exec(t.Context(), `insert into events (event_id, tenant_id, event_name, occurred_at,
			received_at, user_id,
			session_id, properties)
		select gen_random_uuid(), 1, name, at, at, 'u' || n, 's' || n, p::jsonb from (values
			(1, 'purchase_completed', interval '5 hours', '{"order_id":"o1","amount_cents":50000}'),
			(2, 'purchase_completed', interval '295 minutes', '{"order_id":"o2","amount_cents":60000}'),
			(3, 'purchase_completed', interval '4 hours', '{"order_id":"o3","amount_cents":45000}'),
			(4, 'purchase_completed', interval '3 hours', '{"order_id":"o3","amount_cents":45000}'),
			(5, 'purchase_completed', interval '2 hours', '{"order_id":"o4","amount_cents":"many"}'),
			(6, 'add_to_cart', interval '4 hours', '{"sku":"tea"}'),
			(7, 'add_to_cart', interval '4 hours', '{"sku":"pot"}'),
			(7, 'purchase_completed', interval '239 minutes', '{"order_id":"o7","amount_cents":1}'),
			(8, 'signup_completed', interval '40 hours', '{}')) v (n, name, ago, p), lateral (select now() - ago as at) a`)
	if err != nil {
		t.Fatal(err)
	}
	shop, err := os.ReadFile("../../rules/shop.yaml")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("../../rules")); err != nil {
		t.Fatal(err)
	}
	lower := filepath.Join(dir, "lower.yaml")
	if err := os.WriteFile(lower, []byte(strings.Replace(string(shop), ">= 50000", ">= 40000", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	const rowsSQL = `
select (select count(*) from outbox) + (select count(*) from dedupe_keys) + (select count(*) from absence_timers)`
	before := query1(t, conn, rowsSQL)
	status, out, errOut := runCommand(t, nil, "rules", "backtest", lower, "--against", "../../rules/shop.yaml", "--from",
		"1d", "--database-url", url)
	if status != 0 {
		t.Fatalf("exit status %d: %s", status, errOut)
	}
	squeezed := strings.Join(strings.Fields(out), " ")
	for _, want := range []string{
		"shop/welcome - 0 0 0 0 0 0",
		`key "o3" {"order_id":"o3","amount_cents":45000,"user_id":"u3"}`,
		"shop/big-purchase could not decide (expression), for example about event",
		"Compared: 2 messages by both, 1 only by these rules, 0 only by the others.",
		`shop/abandoned-cart subject "s6" key "s6"`,
	} {
		if !strings.Contains(squeezed, want) {
			t.Errorf("the report lacks %q:\n%s", want, out)
		}
	}
	// An event is late by 50 days: it counts where the rule has no max_age, unless it is asked not to.
	anyAge := filepath.Join(dir, "any-age.yaml")
	anyAgeText := strings.Replace(string(shop), "    on: signup_completed\n",
		"    on: signup_completed\n    max_age: none\n", 1)
	if err := os.WriteFile(anyAge, []byte(anyAgeText), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(),
		`select create_events_partition((now() at time zone 'UTC')::date - 50)`); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), `insert into events (event_id, tenant_id, event_name, occurred_at,
			received_at, user_id,
			properties)
		values (gen_random_uuid(), 1, 'signup_completed', now() - interval '50 days',
			now() - interval '1 hour', 'late', '{}')`); err != nil {
		t.Fatal(err)
	}
	for flag, want := range map[string]int{"--samples=3": 1, "--max-late=2d": 0} {
		status, out, errOut := runCommand(t, nil, "rules", "backtest", anyAge, "--json", flag, "--from",
			"1d", "--database-url", url)
		var report backtest.Report
		if err := json.Unmarshal([]byte(out), &report); status != 0 || err != nil {
			t.Fatalf("exit status %d: %v, %s", status, err, errOut)
		}
		welcome, big := report.Rules[0], report.Rules[1]
		if len(welcome.Samples) != want || report.MaxLate == "" != (want == 1) || len(big.Errors) != 1 ||
			big.Errors[0].Kind != "expression" {
			t.Errorf("with %s: %d welcomes, max_late %q, errors %v; want %d welcomes and one kind of error\n%s", flag,
				len(welcome.Samples), report.MaxLate, big.Errors, want, out)
		}
	}
	if after := query1(t, conn, rowsSQL); after != before {
		t.Errorf("the backtest changed the database: %d rows, then %d", before, after)
	}
	status, _, errOut = runCommand(t, nil, "rules", "backtest", lower, "--from", "yesterday", "--database-url", url)
	if status != 2 || !strings.Contains(errOut, `"yesterday" is not a time`) {
		t.Errorf("exit status %d: %s", status, errOut)
	}
}

// TestRulesCheckVolume: with a database, check says that too little happens for a rate rule.
func TestRulesCheckVolume(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	conn := connect(t, url)
	check := func(want string, args ...string) {
		t.Helper()
		status, out, errOut := runCommand(t, nil, append([]string{"rules", "check", "../../rules/shop.yaml"}, args...)...)
		if status != 0 || !strings.Contains(out, want) {
			t.Errorf("exit status %d, output\n%s%s\nwant %q", status, out, errOut, want)
		}
	}
	set, err := rules.Load("../../rules/shop.yaml", rules.DefaultOptions())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), `insert into rate_minutes (metric, tenant_id, minute, shard, n, x, late_n, late_x)
		select $1, 1, date_trunc('hour', now()) - i * interval '1 hour', 0, 9, 1, 0, 0
		from generate_series(1, 100) i`, set.Rates()[0].Rate.Metric); err != nil {
		t.Fatal(err)
	}
	check("ok: 4 rules, 5 tests passed, 0 warnings")
	check(`rules[conversion-drop].minimum: reached by 0 of `, "--database-url", url)
	check("skipped the check of rate rules against stored events", "--database-url", "postgres://nobody@127.0.0.1:1/x")
}
