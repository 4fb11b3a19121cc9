package replay

import (
	"strings"
	"testing"

	"sluice.example/sluice/pipeline/rules"
)

func TestShopRulesTests(t *testing.T) {
	set, err := rules.Load("../../../rules/shop.yaml", rules.DefaultOptions())
	if err != nil {
		t.Fatal(err)
	}
	results := Test(set)
	if len(results) < 5 {
		t.Errorf("%d tests, want at least 5", len(results))
	}
	for _, r := range results {
		if r.Failure != "" {
			t.Error(r.Failure)
		}
	}
}

// TestInlineTestsCanFail: what a test expects is really compared.
func TestInlineTestsCanFail(t *testing.T) {
	check := func(expect, want string) {
		t.Helper()
		_, err := loadText(t, `  - id: r
    on: x
    send_to: crm
    subject: event.user_id
    cooldown: 1m
    digest: {after: 1h}
    payload: {n: event.properties.n, big: event.properties.big}
    tests:
      - name: first
        events:
          - {event_name: x, user_id: u, properties: {n: 1.50, big: 9007199254740993}}
          - {at: 30s, event_name: x, user_id: u, properties: {n: 2, big: 1}}
        expect: `+expect+"\n")
		if want == "" {
			if err != nil {
				t.Errorf("expect %s: %v", expect, err)
			}
			return
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("expect %s: got %v, want %q", expect, err, want)
		}
	}
	check(`[{payload: {n: 1.5}}, {at: 61m, subject: u, send_to: crm, status: sent, payload: {count: 1}}]`,
		"at 1h0m30s, expected 1h1m0s")
	check(`[{payload: {n: 1.5, big: 9007199254740993}}, {subject: u, send_to: crm, status: sent, payload: {count: 1}}]`,
		"")
	check(`[{payload: {big: 9007199254740992}}, {}]`, "message 1: payload is")
	check(`[{}, {payload: {count: 2}}]`, "message 2: payload is")
	check(`[{}, {}, {}]`, "message 3 was not made; there were 2 in all")
	check(`[{}]`, "2 messages were made, 1 expected")
	check(`[]`, `rules[r].tests[0]: test "first" failed`)
	check(`[{sbject: u}]`, `unknown key "sbject"; did you mean "subject"?`)
	check(`[{key: nothing}, {}]`, `key is "event `)
	check(`[{status: skipped}, {}]`, `status is "sent", expected "skipped"`)
}

// TestATestKnowsLimits: what a limit over several rules suppresses is not expected, and what it defers is due later.
func TestATestKnowsLimits(t *testing.T) {
	limit := func(over, expect string) string {
		return eventRule + "tests:\n      - {name: n, events: [{event_name: x, user_id: u, repeat: 2, every: 1m}], expect: " +
			expect + "}\nlimits: [{id: l, subject: event.user_id, at_most: 1, per: 1h, rules: [r], over: " + over + "}]\n"
	}
	for over, expect := range map[string]string{"suppress": "[{at: 0s, due: 0s}]",
		"defer": "[{at: 0s, due: 0s}, {at: 1m, due: 1h}]"} {
		if _, err := loadText(t, limit(over, expect)); err != nil {
			t.Errorf("%s: %v", over, err)
		}
	}
	if _, err := loadText(t, limit("defer", "[{}, {due: 1m}]")); err == nil ||
		!strings.Contains(err.Error(), "it is due at 1h0m0s, expected 1m0s") {
		t.Errorf("a wrong time: %v", err)
	}
}
