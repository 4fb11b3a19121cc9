package rules

import (
	"strings"
	"testing"
)

// TestWasKeepsTheState: a rule with another id has the timers, keys and counts that it had.
func TestWasKeepsTheState(t *testing.T) {
	const rate = "version: 1\nruleset: t\nrules:\n  - {id: drop, kind: rate, owner: me, response: r.md, count: {on: x}, " +
		"window: 10m, every: 5m, baseline: {step: 1d, periods: 3, require: 2}, minimum: {expected: 10}, " +
		"fire: {rise: 100%, z: 3}, send_to: crm}\n"
	state := func(text string) string {
		t.Helper()
		r := load(t, text).Rules()[0]
		out := r.StateKey
		if r.Absence != nil {
			out += " " + r.Absence.Timer
		}
		if r.Rate != nil {
			out += " " + r.Rate.Metric
		}
		return out
	}
	for _, text := range []string{ruleText("dedupe_key: event.user_id"), cart(), cart("state: shadow"), rate} {
		renamed := strings.NewReplacer("- id: r\n", "- id: new\n    was: r\n", "- id: cart\n", "- id: new\n    was: cart\n",
			"{id: drop,", "{id: new, was: drop,").Replace(text)
		if got, want := state(renamed), state(text); got != want {
			t.Errorf("state of the renamed rule is %s, want %s", got, want)
		}
		moved := strings.NewReplacer("ruleset: t", "ruleset: new", "was: ", "was: t/").Replace(renamed)
		if got, want := state(moved), state(text); got != want {
			t.Errorf("state of the rule in another ruleset is %s, want %s", got, want)
		}
		without := strings.NewReplacer("    was: r\n", "", "    was: cart\n", "", "was: drop, ", "").Replace(renamed)
		if got, want := state(without), state(text); got == want {
			t.Errorf("without was, the state is %s as well", got)
		}
	}
}

func TestWasIsChecked(t *testing.T) {
	check := func(text, want string) {
		t.Helper()
		_, err := loadText(t, "version: 1\nruleset: t\nrules:\n"+text)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v\nwant %q", err, want)
		}
	}
	check(oneRule("a", "was: a"), "was: that is the id that the rule has")
	check(oneRule("a", "was: A b"), `"A b" is not the former id of the rule`)
	check(oneRule("a")+oneRule("b", "was: a"), ":10:5: rules[b]: t/a and t/b would share")
	check(oneRule("b", "was: a")+oneRule("a"), ":4:5: rules[b]: t/b and t/a would share")
	check(oneRule("b", "was: a")+oneRule("c", "was: a"), "t/b and t/c would share")
	load(t, "version: 1\nruleset: t\nrules:\n"+oneRule("a", "state: off")+oneRule("b", "was: a"))
}

// TestRenamesAreTold: what another id does, and what to write.
func TestRenamesAreTold(t *testing.T) {
	check := func(before, now, want string) {
		t.Helper()
		const head = "version: 1\nruleset: t\nrules:\n"
		var got []string
		for _, r := range load(t, head+now).Renames(load(t, head+before)) {
			got = append(got, r.Message.Where+": "+r.Message.Message)
		}
		if all := strings.Join(got, "\n"); (all == "") != (want == "") || !strings.Contains(all, want) {
			t.Errorf("got %s\nwant %s", all, want)
		}
	}
	body := func(text string) string { return strings.SplitN(text, "rules:\n", 2)[1] }
	renamed := strings.Replace(body(cart()), "id: cart", "id: abandoned", 1)
	check(body(cart()), renamed, "rules[abandoned]: looks like t/cart under another id, and would begin anew: who waited "+
		"within its lookback gets the message again. Write was: cart if it is that rule")
	check(body(cart()), strings.Replace(renamed, "within: 60m", "within: 90m", 1), "Write was: cart")
	check(body(cart()), strings.Replace(renamed, "id: abandoned", "id: abandoned\n    was: cart", 1),
		"rules[abandoned]: carries on what t/cart knows")
	check(body(cart()), strings.Replace(renamed, "{on: buy}", "{on: pay}", 1), "")
	check(body(cart()), body(cart())+renamed, "") // another rule beside it
	check(body(cart()), body(cart("cooldown: 1h")), "")
	check(oneRule("a"), oneRule("b"), "keys, cooldowns and caps are forgotten")
	check(oneRule("b", "was: a"), oneRule("b"), "t/b keeps its state under t/a, and this rule would begin anew")
	check(oneRule("b", "was: a"), oneRule("c", "was: b"), "Write was: a")
	check(oneRule("b", "was: a"), oneRule("c", "was: a"), "carries on what t/b knows")
	check(oneRule("b", "was: a"), oneRule("a"), "carries on what t/b knows")
	if got := load(t, ruleText()).Renames(nil); got != nil {
		t.Errorf("without rules before: %v", got)
	}
}
