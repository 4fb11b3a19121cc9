package replay

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"sluice.example/sluice/pipeline"
	"sluice.example/sluice/pipeline/rules"
)

// noon is when things begin in these tests.
var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// feed feeds events like "0 x u" or "30 view u late=20", each at a minute after noon and of a user and session, and
// then advances to the end.
func feed(t testing.TB, text string, end int, events ...string) *Run {
	t.Helper()
	r := New(load(t, text), noon)
	for i, line := range events {
		var minute, late int
		var name, user string
		if n, err := fmt.Sscanf(line, "%d %s %s late=%d", &minute, &name, &user, &late); n < 3 {
			t.Fatalf("%q: %v", line, err)
		}
		at := noon.Add(time.Duration(minute) * time.Minute)
		ev := pipeline.Event{ID: pipeline.HashUUID(fmt.Sprint(i)), Tenant: 1, Name: name, UserID: user, SessionID: user,
			ReceivedAt: at, OccurredAt: at.Add(-time.Duration(late) * time.Minute)}
		r.Feed([]pipeline.Event{ev}, at)
	}
	r.Advance(noon.Add(time.Duration(end) * time.Minute))
	return r
}

// story is what was decided, one decision after the other.
func story(r *Run) string {
	var out []string
	for _, d := range r.Decided() {
		s := fmt.Sprintf("%d %s", int(d.At.Sub(noon).Minutes()), d.Subject)
		switch {
		case d.Suppressed != "":
			s += " " + d.Suppressed
		case d.Skipped != "":
			s += " " + d.Skipped
		}
		out = append(out, s)
	}
	return strings.Join(out, ", ")
}

const eventRule = "  - id: r\n    on: x\n    send_to: crm\n    subject: event.user_id\n    "

// TestLimits: keys, cooldowns, caps and digests on a virtual clock.
func TestLimits(t *testing.T) {
	check := func(lines, want string, end int, events ...string) {
		t.Helper()
		if got := story(feed(t, eventRule+strings.ReplaceAll(lines, "; ", "\n    ")+"\n", end, events...)); got != want {
			t.Errorf("%s\n got %s\nwant %s", lines, got, want)
		}
	}
	check("description: all", "0 u, 1 u", 10, "0 x u", "1 x u", "2 y u")
	check("dedupe_key: event.user_id", "0 u, 1 u duplicate, 2 v", 10, "0 x u", "1 x u", "2 x v")
	check("dedupe_key: event.user_id; dedupe_for: 10m", "0 u, 9 u duplicate, 10 u", 20, "0 x u", "9 x u", "10 x u")
	check("cooldown: 10m", "0 u, 9 u cooldown, 9 v, 10 u", 20, "0 x u", "9 x u", "9 x v", "10 x u")
	check("cap: {max: 2, per: 10m}", "0 u, 1 u, 9 u cap, 10 u, 11 u", 20, "0 x u", "1 x u", "9 x u", "10 x u", "11 x u")
	// What is held back does not count: the cooldown runs from the last message.
	check("cooldown: 10m; cap: {max: 1, per: 1h}", "0 u, 5 u cooldown, 12 u cap, 60 u", 70, "0 x u", "5 x u", "12 x u",
		"60 x u")
	// A digest tells once what was held back, and begins anew.
	check("cooldown: 10m; digest: {after: 30m}", "0 u, 1 u cooldown, 2 u cooldown, 31 u, 33 u, 34 u cooldown, 64 u", 100,
		"0 x u", "1 x u", "2 x u", "33 x u", "34 x u")
	check("state: shadow", "0 u shadow", 10, "0 x u")
	check("state: off", "", 10, "0 x u")
}

// TestLimitsOverRules: what several rules send to one subject counts together, on a virtual clock.
func TestLimitsOverRules(t *testing.T) {
	check := func(limit, want string, events ...string) {
		t.Helper()
		text := "  - {id: low, on: x, send_to: crm, subject: event.user_id}\n" +
			"  - {id: high, on: x, send_to: crm, subject: event.user_id, priority: 1}\nlimits:\n  - {id: l, " +
			"subject: event.user_id, " + limit + "}\n"
		var got []string
		for _, d := range feed(t, text, 300, events...).Decided() {
			line := strings.TrimPrefix(d.Rule, "t/") + " " + d.Suppressed
			if d.Suppressed == "" {
				line += fmt.Sprint(int(d.SendAt.Sub(noon).Minutes()))
			}
			got = append(got, line)
		}
		if all := strings.Join(got, ", "); all != want {
			t.Errorf("%s\n got %s\nwant %s", limit, all, want)
		}
	}
	check("at_most: 1, per: 1h, send_to: crm", "low limit, high 0, low limit, high limit, low limit, high 60", "0 x u",
		"59 x u", "60 x u")
	check("at_most: 1, per: 1h, rules: [low]", "low 0, high 0, low limit, high 1", "0 x u", "1 x u")
	check("at_most: 1, per: 1h, rules: [low, high], over: defer", "low 60, high 0", "0 x u")
	check("at_most: 1, per: 1h, rules: [low, high], over: defer, hours: {from: '12:30', to: '14:00'}", "low 120, high 0",
		"0 x u")
	check("at_most: 1, per: 1h, send_to: crm, over: digest", "low limit, high 0, low limit, high limit, l 60, "+
		"low limit, high limit, l 120, low limit, high 180, l 240", "0 x u", "59 x u", "61 x u", "180 x u")
}

// TestALimitOverOneDestination holds back what goes there, and sends the rest of the decision.
func TestALimitOverOneDestination(t *testing.T) {
	text := "  - {id: r, on: x, send_to: [mail, crm, sms], subject: event.user_id}\nlimits:\n" +
		"  - {id: l, subject: event.user_id, at_most: 1, per: 1h, send_to: mail, over: %s}\n"
	for over, want := range map[string]string{
		"suppress": "0 mail,crm,sms; held limit; 1 crm,sms; ",
		"defer":    "0 mail,crm,sms; 1 crm,sms; 60 mail; ",
	} {
		got := ""
		for _, d := range feed(t, fmt.Sprintf(text, over), 300, "0 x u", "1 x u").Decided() {
			if d.Suppressed != "" {
				got += "held " + d.Suppressed + "; "
				continue
			}
			got += fmt.Sprintf("%d %s; ", int(d.SendAt.Sub(noon).Minutes()), strings.Join(d.Destinations, ","))
		}
		if got != want {
			t.Errorf("%s: got %s, want %s", over, got, want)
		}
	}
}

const absenceRule = "  - id: r\n    kind: absence\n    trigger: {on: add}\n    cancel: {on: buy}\n    key: " +
	"event.session_id\n" +
	"    within: 60m\n    grace: 5m\n    send_to: crm\n    "

// TestTimers: when a timer fires, by its anchor, and what keeps it from firing or its message from being sent.
func TestTimers(t *testing.T) {
	check := func(lines, want string, end int, events ...string) {
		t.Helper()
		if got := story(feed(t, absenceRule+strings.ReplaceAll(lines, "; ", "\n    ")+"\n", end, events...)); got != want {
			t.Errorf("%s, %q\n got %s\nwant %s", lines, events, got, want)
		}
	}
	// last: the wait counts from the latest trigger.
	check("anchor: last", "60 s", 200, "0 add s")
	check("anchor: last", "90 s", 200, "0 add s", "30 add s")
	check("anchor: last", "", 200, "0 add s", "30 buy s")
	// a late cancel of what was before
	check("anchor: last", "91 s", 200, "0 add s", "30 buy s", "31 add s", "32 buy s late=5")
	check("anchor: last", "", 200, "0 buy s", "0 add s") // a tie cancels
	check("anchor: last", "40 s", 200, "30 add s late=50")
	check("anchor: last", "60 s, 130 t, 140 s duplicate", 200, "0 add s", "70 add t", "80 add s") // once per key
	check("anchor: last; once_per: episode", "60 s, 140 s", 200, "0 add s", "80 add s")
	// first: from the first trigger after the last cancel.
	check("anchor: first", "60 s", 200, "0 add s", "30 add s")
	check("anchor: first", "80 s", 200, "0 add s", "10 buy s", "20 add s", "30 add s")
	check("anchor: first; once_per: episode", "60 s, 170 s", 300, "0 add s", "70 add s", "100 buy s", "110 add s")
	// idle: from the latest event of any kind.
	check("anchor: idle", "95 s", 200, "0 add s", "35 view s")
	check("anchor: idle", "", 200, "0 add s", "35 view s", "40 buy s")
	check("anchor: idle; activity: {on: scroll}", "60 s", 200, "0 add s", "35 view s")
	// A message that no longer holds when it is due is not sent.
	check("anchor: last", "60 s cancelled", 200, "0 add s", "62 buy s late=10")
	check("anchor: last", "60 s", 200, "0 add s", "66 buy s late=10") // it was sent
	// a cancel after the trigger and before the last activity
	check("anchor: idle", "90 s cancelled", 200, "0 add s", "30 view s", "92 buy s late=67")
	check("anchor: idle", "90 s", 200, "0 add s", "30 view s", "92 buy s late=95") // that was before the trigger
	check("once_per: episode", "60 s superseded, 122 s", 200, "0 add s", "62 add s")
	check("anchor: first; once_per: episode", "60 s", 200, "0 add s", "62 add s") // begins no other wait
	check("anchor: idle; once_per: episode", "95 s, 97 s duplicate", 200, "0 add s", "35 view s", "97 add s late=82")
	check("anchor: last", "60 s cancelled, 130 s", 200, "0 add s", "62 buy s", "70 add s") // a skipped one frees its key
	check("recheck: {skip_if: []}", "60 s", 200, "0 add s", "62 buy s late=10")
	// Too old to fire.
	check("lookback: 90m", "", 200, "100 add s late=95")
	check("lookback: 90m", "100 s", 200, "100 add s late=85")
}

// TestATimerFailsOnceAndIsDone: what a rule can't decide about is on record, and not tried again.
func TestATimerFailsOnceAndIsDone(t *testing.T) {
	r := feed(t, absenceRule+"subject: trigger.properties.who\n", 300, "0 add s")
	failed := r.Failed()
	if len(r.Decided()) != 0 || len(failed) != 1 || failed[0].Kind != rules.FailedExpression ||
		!failed[0].At.Equal(noon.Add(time.Hour)) {
		t.Errorf("decided %q, failed %+v; want one failure after an hour", story(r), failed)
	}
}

// TestInhibitedRatesSayNothing while the rule that explains them fires.
func TestInhibitedRatesSayNothing(t *testing.T) {
	rate := func(id, name, more string) string {
		return fmt.Sprintf("  - {id: %s, kind: rate, count: {on: %s}, window: 10m, every: 10m, settle: 0s, send_to: crm,%s\n"+
			"     baseline: {step: 10m, periods: 3, require: 2}, minimum: {expected: 5}, fire: {rise: 100%%, z: 2}}\n", id, name,
			more)
	}
	for inhibited, want := range map[string]string{"": "cause firing, effect firing",
		" inhibited_by: cause,": "cause firing"} {
		r := New(load(t, rate("effect", "b", inhibited)+rate("cause", "a", "")), noon)
		for minute := range 60 {
			at := noon.Add(time.Duration(minute) * time.Minute)
			n := 2
			if minute >= 40 && minute < 50 {
				n = 20
			}
			var batch []pipeline.Event
			for range n {
				for _, name := range []string{"a", "b"} {
					batch = append(batch, pipeline.Event{Tenant: 1, Name: name, OccurredAt: at, ReceivedAt: at})
				}
			}
			r.Feed(batch, at)
		}
		var got []string
		for _, d := range r.Decided() {
			if strings.Contains(string(d.Payload), `"state":"firing"`) {
				got = append(got, strings.TrimPrefix(d.Rule, "t/")+" firing")
			}
		}
		if len(got) == 2 && got[0] > got[1] {
			got[0], got[1] = got[1], got[0]
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("with%q: %v, want %s", inhibited, got, want)
		}
	}
}

// TestContainsJSON: what an expected payload has to have, and what it leaves open.
func TestContainsJSON(t *testing.T) {
	for _, c := range []struct {
		got, want string
		ok        bool
	}{
		{`{"a":1,"b":2}`, `{"a":1}`, true},
		{`{"a":1}`, `{"a":1,"b":2}`, false},
		{`{"a":{"b":1,"c":2}}`, `{"a":{"c":2}}`, true},
		{`[1,2]`, `[1,2]`, true},
		{`[1,2]`, `[1]`, false}, // a list is compared as a whole
		{`[{"a":1,"b":2}]`, `[{"a":1}]`, true},
		{`1.50`, `1.5`, true},
		{`1`, `1.0`, true},
		{`100`, `1e2`, true},
		{`9007199254740993`, `9007199254740992`, false}, // whole numbers by their digits
		{`9007199254740993`, `9007199254740993`, true},
		{`"1"`, `1`, false},
		{`null`, `null`, true},
		{`null`, `{}`, false},
		{`"x"`, `"x"`, true},
		{`true`, `false`, false},
		{`1e999`, `1e999`, true},
		{`1e999`, `1e998`, false},
	} {
		if got := containsJSON(parseJSON([]byte(c.got)), parseJSON([]byte(c.want))); got != c.ok {
			t.Errorf("%s contains %s: %t, want %t", c.got, c.want, got, c.ok)
		}
	}
}

// TestATestOfARuleThatIsOff passes, whatever it expects: it is there for when the rule comes back.
func TestATestOfARuleThatIsOff(t *testing.T) {
	test := "tests:\n      - {name: n, events: [{event_name: x, user_id: u}], expect: []}\n"
	if _, err := loadText(t, eventRule+"state: off\n    "+test); err != nil {
		t.Errorf("off: %v", err)
	}
	if _, err := loadText(t, eventRule+test); err == nil ||
		!strings.Contains(err.Error(), `1 messages were made, 0 expected`) {
		t.Errorf("active: %v", err)
	}
	set, err := loadText(t, eventRule+strings.Replace(test, "[]", "[{subject: u}]", 1))
	if err != nil {
		t.Fatal(err)
	}
	if got := Test(set); len(got) != 1 || got[0].Rule != "t/r" || got[0].Name != "n" || got[0].Failure != "" {
		t.Errorf("Test = %+v", got)
	}
}
