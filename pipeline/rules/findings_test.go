package rules

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"sluice.example/sluice/pipeline"
	"sluice.example/sluice/pipeline/rules/expr"
)

const several = "version: 1\nruleset: t\nrules:\n"

// TestOnlyStoredEventsAreFound: what an event led to that turned out to be stored before is left out of everything.
func TestOnlyStoredEventsAreFound(t *testing.T) {
	set := load(t, cart()+oneRule("ev", "match: event.user_id != 'odd'", "subject: event.session_id")+
		"  - {id: rate, kind: rate, owner: me, response: r.md, send_to: crm, count: {on: x}, fire: {drop: 30%}}\n")
	events := []pipeline.Event{at(0, "x", "s1"), at(0, "add", "s1"), at(0, "x", ""), at(0, "page", "s1"), at(0, "x", "s2")}
	found := set.Decide(events)
	check := func(stored []bool, want string) {
		t.Helper()
		of := found.Stored(stored)
		byTenant, byRule := found.Heard(stored)
		var rules []string
		for _, r := range set.rules {
			rules = append(rules, fmt.Sprintf("%s %d", r.ID, byRule[r]))
		}
		got := fmt.Sprintf("%d matches, %d marks, %d counts, %d failures; heard %d: %s", len(of.Matches), len(of.Marks),
			len(of.Counts), len(of.Failures), byTenant[1], strings.Join(rules, ", "))
		if got != want {
			t.Errorf("of %v: got  %s\nwant %s", stored, got, want)
		}
	}
	check([]bool{true, true, true, true, true}, "2 matches, 1 marks, 3 counts, 1 failures; heard 4: cart 1, ev 3, rate 3")
	check([]bool{false, true, false, true, true}, "1 matches, 1 marks, 1 counts, 0 failures; heard 2: cart 1, ev 1, "+
		"rate 1")
	check([]bool{false, false, true, false, false}, "0 matches, 0 marks, 1 counts, 1 failures; heard 1: cart 0, ev 1, "+
		"rate 1")
	check(make([]bool, 5), "0 matches, 0 marks, 0 counts, 0 failures; heard 0: cart 0, ev 0, rate 0")
}

// TestRevisit: one rule looks at stored events again; those of other tenants and names are not its own.
func TestRevisit(t *testing.T) {
	set := load(t, cart("tenants: [acme]")+oneRule("ev"))
	foreign, own := at(0, "add", "s"), at(1, "add", "s")
	own.Tenant = 2
	view := at(2, "view", "s")
	view.Tenant = 2
	found := set.Revisit(set.rules[0], []pipeline.Event{foreign, own, view, own})
	if len(found.Marks) != 2 || found.Marks[0].Batch != 1 || len(found.Matches) != 0 {
		t.Errorf("%d marks, %d matches; want the two marks of tenant 2", len(found.Marks), len(found.Matches))
	}
}

func TestDigestFindings(t *testing.T) {
	limited := []string{"subject: event.user_id", "cooldown: 10m"}
	set := load(t, several+oneRule("plain", append(limited, "digest: {after: 1h}")...)+
		oneRule("told", append(limited, `digest: {payload: {n: digest.count, who: digest.subject}}`)...)+
		oneRule("none", limited...)+oneRule("bad", append(limited, `digest: {payload: {n: 'digest.count / 0'}}`)...))
	held := func(state string) Held {
		return Held{Tenant: 2, State: state, Subject: "u", Count: 3, Since: noon}
	}
	found := set.Digest([]Held{held("t/plain"), held("t/told"), held("t/none"), held("t/gone"), held("t/bad")})
	want := `t/plain[0] subject="u" key="digest u@1796040000000000" {"count":3,"subject":"u",` +
		`"since":"2026-11-30T12:00:00Z"}
t/told[0] subject="u" key="digest u@1796040000000000" {"n":3,"who":"u"}
t/bad[0] expression: digest.payload: division by zero`
	if got := decided(found); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	for _, m := range found.Matches {
		if m.Limited() || !m.Once {
			t.Errorf("%s: a digest is what limits made, so none applies to it", m.Rule.ID)
		}
	}
	if d := set.rules[1].Limits.DigestAfter; d != 10*time.Minute {
		t.Errorf("a digest without after comes after %s, want the cooldown", d)
	}
}

// TestExplain: what each kind of rule makes of an event that it listens to.
func TestExplain(t *testing.T) {
	set := load(t, strings.Replace(cart(), "on: add}", "on: [add, x]}", 1)+
		oneRule("matches", "subject: event.session_id", "dedupe_key: event.event_name", "cap: {max: 2, per: 1h}")+
		oneRule("not", "match: event.session_id == 'other'")+oneRule("fails", "match: event.properties.a > 1")+
		oneRule("keyless", "match: event.session_id == 's'", "subject: event.user_id")+oneRule("off", "state: off")+
		"  - {id: rate, kind: rate, owner: me, response: r.md, send_to: crm, count: {on: x}, fire: {drop: 30%}, state: "+
		"shadow}\n")
	var got []string
	for _, l := range set.Explain(at(0, "x", "s")) {
		got = append(got, fmt.Sprintf("%s %s %s as %s: matched %t key %q subject %q ledger %t %s", l.Rule, l.Kind, l.State,
			l.As, l.Matched,
			l.Key, l.Subject, l.Ledger != pipeline.UUID{}, l.Failure))
	}
	want := []string{
		`t/cart absence active as trigger: matched true key "s" subject "" ledger false `,
		`t/matches event active as event: matched true key "x" subject "s" ledger true `,
		`t/not event active as event: matched false key "" subject "" ledger false `,
		`t/fails event active as event: matched false key "" subject "" ledger false expression: no such key: a`,
		`t/keyless event active as event: matched true key "" subject "" ledger false no-key: subject: null or empty`,
		`t/rate rate shadow as numerator: matched true key "" subject "" ledger false `,
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestReach: for how long events matter, and which.
func TestReach(t *testing.T) {
	check := func(text string, wantReach time.Duration, wantNames string) {
		t.Helper()
		set := load(t, text)
		if got := set.Reach(noon); got != wantReach {
			t.Errorf("reach %s, want %s\n%s", got, wantReach, text)
		}
		if got := fmt.Sprint(set.Names()); got != wantNames {
			t.Errorf("names %s, want %s\n%s", got, wantNames, text)
		}
	}
	check(ruleText(), 0, "[x]")
	check(ruleText("subject: event.user_id", "cooldown: 2h", "cap: {max: 1, per: 3h}", "digest: {after: 4h}"), 4*time.Hour,
		"[x]")
	check(ruleText("subject: event.user_id", "cooldown: 2h", "state: off"), 0, "[]")
	check(cart("lookback: 12h"), 12*time.Hour+5*time.Minute, "[add buy]")
	check(cart("lookback: 12h", "anchor: idle"), 12*time.Hour+5*time.Minute, "[]")
	check(several+"  - {id: r, kind: rate, owner: me, response: r.md, send_to: crm, count: {on: y}, fire: {drop: 30%}, "+
		"window: 2h,\n"+
		"     baseline: {step: 1d, periods: 3}}\n"+oneRule("r2"), 3*24*time.Hour+3*time.Hour, "[x y]")
}

// TestAShadowKeepsItsOwnState, so that trying a rule does not use up what it will have to send.
func TestAShadowKeepsItsOwnState(t *testing.T) {
	key := func(lines ...string) pipeline.UUID {
		return load(t, ruleText(append(lines, "dedupe_key: event.event_name")...)).Decide(
			[]pipeline.Event{at(0, "x", "s")}).Matches[0].KeyHash
	}
	if key() == key("state: shadow") {
		t.Error("a shadow takes the keys of the rule")
	}
	if key() != key("subject: event.session_id", "cooldown: 1m") {
		t.Error("a rule that is edited forgets its keys")
	}
}

// TestFailureKinds: the kinds under which failures are counted.
func TestFailureKinds(t *testing.T) {
	for want, err := range map[string]error{
		FailedKey: fmt.Errorf("subject: %w", expr.ErrNoKey), FailedSize: fmt.Errorf("key: %w", expr.ErrLongKey),
		FailedExpression: fmt.Errorf("no such key"),
	} {
		if got := failureKind(err); got != want {
			t.Errorf("%v is counted as %s, want %s", err, got, want)
		}
	}
	if got := failureKind(fmt.Errorf("payload: %w", expr.ErrTooLarge)); got != FailedSize {
		t.Errorf("a payload that is too large is counted as %s", got)
	}
}

func TestRuleLoadErrors(t *testing.T) {
	check := func(want string, lines ...string) {
		t.Helper()
		if _, err := loadText(t, ruleText(lines...)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", lines, err, want)
		}
	}
	check("rules[r].digest: a digest reports what cooldown or cap held back, and the rule has neither",
		"digest: {after: 1h}")
	check(`missing required key "per" (in which time)`, "subject: event.user_id", "cap: {max: 3}")
	check("expected a whole number from 1 to 50", "subject: event.user_id", "cap: {max: 51, per: 1h}")
	check("type 'type(event)' does not support field selection", "subject: event.user_id", "cooldown: 1m",
		"digest: {payload: {a: event.user_id}}")
	check(`expected a list of tests, got a mapping`, "tests: {name: a}")
	check(`missing required key "expect"`, "tests: [{name: a, events: []}]")
	check(`rules[r].tests[0].events[0]: unknown key "user"`,
		"tests: [{name: a, events: [{event_name: x, user: u}], expect: []}]")
	many := strings.TrimSuffix(strings.Repeat("{event_name: x, repeat: 100000}, ", 6), ", ")
	check("the tests of this file have more than 500000 events here", "tests: [{name: a, events: ["+many+"], expect: []}]")
	check(`unknown tenant "acmee"; did you mean "acme"?`, "tenants: acmee")
	if _, err := loadText(t, strings.Replace(ruleText(), "send_to: crm", "send_to: [crm, sales, crm]", 1)); err == nil ||
		!strings.Contains(err.Error(), `7:`) && !strings.Contains(err.Error(), `destination "crm" is listed twice`) {
		t.Errorf("a destination twice: %v", err)
	}
}

// TestExpensiveEventsMakeNobodyWait: events on which a rule would take seconds are failures of that rule, alone; their
// neighbours are decided, and the batch takes a moment.
func TestExpensiveEventsMakeNobodyWait(t *testing.T) {
	set := load(t, several+oneRule("dear", `match: 'event.properties.text.matches("[a-q][^u-z]{200}x")'`)+
		oneRule("list", `match: '`+strings.Repeat("2 in event.properties.list || ", 20)+`false'`)+
		oneRule("cheap", `match: event.properties.n == 1`, "payload: {n: event.properties.n}"))
	large := at(0, "x", "s")
	large.Properties = fmt.Appendf(nil, `{"n":1,"text":"%s","list":[%s1]}`, strings.Repeat("a", 300_000),
		strings.Repeat("1,", 100_000))
	small := at(0, "x", "s")
	small.Properties = []byte(`{"n":1,"text":"a","list":[2]}`)
	var events []pipeline.Event
	for i := range 50 {
		if events = append(events, large); i%2 == 0 {
			events = append(events, small)
		}
	}
	start := time.Now()
	found := set.Decide(events)
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("a batch with 50 expensive events took %s", took)
	}
	count := map[string]int{}
	for _, m := range found.Matches {
		count[m.Rule.ID+" matches"]++
	}
	for _, f := range found.Failures {
		count[f.Rule.ID+" "+f.Kind]++
		if len(events[f.Batch].Properties) < 1000 {
			t.Errorf("%s fails on a small event: %v", f.Rule.ID, f.Err)
		}
	}
	if count["cheap matches"] != 75 || count["list matches"] != 25 || count["dear too-expensive"] != 50 ||
		count["list too-expensive"] != 50 {
		t.Errorf("got %v; want all of cheap, those of list on small events, and failures on the others", count)
	}
}

// TestPayloadCountsAsItIsPrinted: the results of a rule's arithmetic have exponents, which PostgreSQL writes out.
func TestPayloadCountsAsItIsPrinted(t *testing.T) {
	for n, fails := range map[int]bool{200: false, 250: true} {
		set := load(t, ruleText("payload: {a: ["+strings.Repeat("event.properties.n * 1e300, ", n)+"1]}"))
		f := set.Decide([]pipeline.Event{event("x", "u", `{"n":1.5}`)})
		if failed := len(f.Failures) == 1 && f.Failures[0].Kind == FailedSize; failed != fails ||
			len(f.Matches) != 1 && !fails {
			t.Errorf("%d numbers: %.300s; want too large: %v", n, decided(f), fails)
		}
	}
}
