package rules

import (
	"strings"
	"testing"
)

func TestWarnings(t *testing.T) {
	check := func(rules string, wants ...string) {
		t.Helper()
		set := load(t, rules)
		var got []string
		for _, w := range set.Warnings() {
			got = append(got, w.String())
		}
		if len(got) != len(wants) {
			t.Fatalf("got %d warnings\n%s\nwant %d\nin %s", len(got), strings.Join(got, "\n"), len(wants), rules)
		}
		for i, want := range wants {
			if !strings.Contains(got[i], want) {
				t.Errorf("got %q\nwant %q", got[i], want)
			}
		}
	}
	check(ruleText())
	check(ruleText(`match: event.event_name == "x" && event.user_id == "y"`))
	check(ruleText(`match: event.user_id == "y" || event.event_name == "z"`),
		`rules.yaml:9:56: rules[r].match: the event is never "z" here: the rule listens to x. `+
			`Add the name to on, or drop the comparison`)
	check(ruleText("match: |", "  true &&", "  event.event_name == 'z'"),
		`rules.yaml:11:27: rules[r].match: the event is never "z" here`)
	check(strings.Replace(ruleText(`match: event.event_name == "z"`), "on: x", `on: "*"`, 1),
		`rules.yaml:7:9: rules[r].on: "*" costs an evaluation for every event; list`,
		`rules.yaml:7:9: rules[r].on: every event that matches makes a message, also of names that nobody `+
			`thought of. Add cap or cooldown`,
		`rules.yaml:9:32: rules[r].match: name "z" in on instead`)
	check(strings.Replace(ruleText(`subject: event.user_id`, "cap: {max: 1, per: 1h}"), "on: x", `on: "*"`, 1),
		`list the names if they are known`)
	check(ruleText("cooldown: 1m"), "wait for each other. Add subject")
}
