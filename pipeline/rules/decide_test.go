package rules

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice.example/sluice/pipeline"
	"sluice.example/sluice/pipeline/rules/expr"
)

// event makes a valid event of tenant 1.
func event(name, user, properties string) pipeline.Event {
	now := time.Now().UTC().Truncate(time.Microsecond)
	ev := pipeline.Event{ID: pipeline.NewUUIDv7(now), Tenant: 1, Name: name, UserID: user, OccurredAt: now,
		ReceivedAt: now}
	if properties != "" {
		ev.Properties = []byte(properties)
	}
	return ev
}

// load loads rules from a text. The runbook r.md is there.
func load(t testing.TB, rules string) *Set {
	t.Helper()
	set, err := loadText(t, rules)
	if err != nil {
		t.Fatalf("rules do not load:\n%v\n%s", err, rules)
	}
	return set
}

func loadText(t testing.TB, rules string) (*Set, error) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"rules.yaml": rules, "r.md": "do something"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	o := DefaultOptions()
	o.Tenants = map[string]int32{"default": 1, "acme": 2}
	o.Destinations = []string{"welcome", "sales", "crm"}
	return Load(filepath.Join(dir, "rules.yaml"), o)
}

// ruleText is a rules file with one event rule on "x"; lines are added to the rule.
func ruleText(lines ...string) string {
	return "version: 1\nruleset: t\nrules:\n" + oneRule("r", lines...)
}

func oneRule(id string, lines ...string) string {
	return "  - id: " + id + "\n    owner: me\n    response: r.md\n    on: x\n    send_to: crm\n    " +
		strings.Join(lines, "\n    ") + "\n"
}

// decided lists matches and failures of a batch as text.
func decided(f *Findings) string {
	if f == nil {
		return "nil"
	}
	var out []string
	for _, m := range f.Matches {
		out = append(out, fmt.Sprintf("%s[%d] subject=%q key=%q %s", m.Rule.Name, m.Batch, m.Subject, m.Key, m.Payload))
	}
	for _, f := range f.Failures {
		out = append(out, fmt.Sprintf("%s[%d] %s: %v", f.Rule.Name, f.Batch, f.Kind, f.Err))
	}
	return strings.Join(out, "\n")
}

func TestShopRulesDecide(t *testing.T) {
	set, err := Load("../../rules/shop.yaml", Options{
		Tenants: map[string]int32{"default": 1}, Destinations: []string{"welcome", "sales"}, MaxPayloadBytes: 1 << 16,
	})
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 11, 30, 12, 0, 0, 5000, time.UTC)
	signup := event("signup_completed", "u1", "")
	signup.OccurredAt = at
	signup.ReceivedAt = at
	buy := func(user, properties string) pipeline.Event {
		ev := event("purchase_completed", user, properties)
		ev.SessionID = "s1"
		return ev
	}
	got := decided(set.Decide([]pipeline.Event{
		signup,
		buy("u1", `{"order_id":"o1","amount_cents":49999}`),
		buy("", `{"order_id":"o2","amount_cents":50000}`),
		event("page_viewed", "u1", ""),
	}))
	want := `shop/welcome[0] subject="u1" key="u1" {"user_id":"u1","signed_up_at":"2026-11-30T12:00:00.000005Z",` +
		`"plan":"free"}
shop/big-purchase[2] subject="sales-team" key="o2" {"order_id":"o2","amount_cents":50000,"user_id":""}`
	if got = strings.ReplaceAll(got, `"user_id":null`, `"user_id":""`); got != want {
		t.Fatalf("got\n%s\nwant\n%s", got, want)
	}
}

// TestExpressions evaluates one rule on one event.
func TestExpressions(t *testing.T) {
	check := func(lines, properties, want string) {
		t.Helper()
		set := load(t, ruleText(strings.Split(lines, "\n")...))
		got := decided(set.Decide([]pipeline.Event{event("x", "u", properties)}))
		if !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Errorf("rule %q on %s:\n got %s\nwant %s", lines, properties, got, want)
		}
	}
	ok := `t/r[0] subject="u" key="`
	subject := "subject: event.user_id\n"

	// Big integers stay exact, also next to each other.
	check(subject+"dedupe_key: event.properties.id", `{"id":9007199254740993}`, ok+`9007199254740993"`)
	check(subject+"dedupe_key: event.properties.id", `{"id":18446744073709551615}`, ok+`18446744073709551615"`)
	check(subject+"dedupe_key: event.properties.id", `{"id":18446744073709551616}`,
		"t/r[0] expression: dedupe_key: the integer 18446744073709551616 has more than 64 bits")
	// Dots, escapes and path characters in keys are just characters; the last of repeated keys counts, as in jsonb.
	check(subject+`dedupe_key: event.properties["a.b"]`, `{"a":{"b":"no"},"a.b":"yes"}`, ok+`yes"`)
	check(subject+`dedupe_key: event.properties["*"]`, `{"x":"no","*":"star"}`, ok+`star"`)
	check(subject+`dedupe_key: event.properties["é\"|@"]`, `{"\u00e9\"|@":"esc\n"}`, ok+`esc\n"`)
	check(subject+`dedupe_key: event.properties.k`, `{"k":"first","k":"last"}`, ok+`last"`)
	check(subject+`dedupe_key: event.properties.a.b.c`, `{"a":{"b":{"c":7}}}`, ok+`7"`)
	// Missing, null and empty.
	check(subject+"dedupe_key: event.properties.id", `{}`, "t/r[0] expression: dedupe_key: no such key: id")
	check(subject+"dedupe_key: event.properties.id", "", "t/r[0] expression: dedupe_key: no such key: id")
	check(subject+"dedupe_key: event.properties.id", `{"id":null}`, "t/r[0] no-key: dedupe_key: null or empty")
	check("subject: event.session_id", `{}`, "t/r[0] no-key: subject: null or empty")
	check(subject+"dedupe_key: event.properties.id", `{"id":1.5}`,
		"t/r[0] expression: dedupe_key: a double can't be a key")
	check("subject: coalesce(event.properties.who, event.session_id, event.user_id)", `{}`, `t/r[0] subject="u"`)
	check("match: has(event.properties.a) && !has(event.session_id) && has(event.user_id)", `{"a":0}`, `t/r[0]`)
	check("match: has(event.properties.a)", `{"a":null}`, "")
	// Missing properties are no match, and absorbed by || where the other side decides.
	check("match: event.properties.a > 1", `{}`, "t/r[0] expression: no such key: a")
	check("match: event.properties.a > 1 || true", `{}`, "t/r[0] subject")
	check("match: event.properties.a > 1", `{"a":"text"}`, "t/r[0] expression: no such overload")
	check("match: event.properties.a", `{"a":"text"}`, "t/r[0] expression: match is a string, not a bool")
	check("match: event.properties.a >= 2", `{"a":2.0}`, "t/r[0] subject")
	check("match: '\"b\" in event.properties.list && size(event.properties.list) == 2'", `{"list":["a","b"]}`,
		"t/r[0] subject")
	check(`match: event.properties.a == {"b":[1,null]}`, `{"a":{"b":[1,null]}}`, "t/r[0] subject")
	check(`match: event.user_agent.matches("^$") && event.occurred_at > timestamp("2020-01-01T00:00:00Z")`, ``,
		"t/r[0] subject")
	// Keys have a bound.
	check(subject+"dedupe_key: event.properties.id", `{"id":"`+strings.Repeat("x", 1025)+`"}`,
		"t/r[0] too-large: dedupe_key: longer than 1024 bytes")
	check(subject+"payload: event.properties", `{"id":"`+strings.Repeat("x", 70000)+`"}`, "t/r[0] too-large: payload")
	check(subject+"payload: {a: event.properties, b: event.properties, c: event.properties}",
		`{"id":"`+strings.Repeat("x", 40000)+`"}`, "t/r[0] too-large: payload")
}

func TestPayloadKeepsEveryDigit(t *testing.T) {
	set := load(t, ruleText("payload: {n: event.properties.n, all: event.properties, list: [event.properties.n, 1 + "+
		"2], nested: {t: event.event_name}}"))
	got := decided(set.Decide([]pipeline.Event{event("x", "u", `{"n":1234567890123456789012345678901.50}`)}))
	want := `{"n":1234567890123456789012345678901.50,"all":{"n":1234567890123456789012345678901.50},` +
		`"list":[1234567890123456789012345678901.50,3],"nested":{"t":"x"}}`
	if !strings.HasSuffix(got, want) {
		t.Fatalf("got %s\nwant %s", got, want)
	}
}

func TestDeclaredPropertiesAreChecked(t *testing.T) {
	rules := "version: 1\nruleset: t\nevents: {x: {n: int, f: double, s: string, any: any}}\nrules:\n" +
		oneRule("r", "match: event.properties.n > 1 && event.properties.f < 2.5")
	for _, c := range [][2]string{
		{`{"n":2,"f":2}`, "t/r[0] subject"},
		{`{"n":2.0,"f":2.4}`, "t/r[0] subject"},
		{`{"n":2.5,"f":2.4}`, "t/r[0] expression: properties.n is of type double, but is declared as int"},
		{`{"n":"2","f":2.4}`, "t/r[0] expression: properties.n is of type string, but is declared as int"},
		{`{"f":2.4}`, `t/r[0] expression: the event has no "properties.n"`},
		{`{"n":null,"f":2.4}`, `t/r[0] expression: the event has no "properties.n"`},
		{`{"n":1}`, ""},
	} {
		got := decided(load(t, rules).Decide([]pipeline.Event{event("x", "u", c[0])}))
		if !strings.HasPrefix(got, c[1]) || c[1] == "" && got != "" {
			t.Errorf("on %s: got %s, want %s", c[0], got, c[1])
		}
	}
}

func TestRulesSeeTheirTenantsOnly(t *testing.T) {
	set := load(t, "version: 1\nruleset: t\nrules:\n"+oneRule("all")+oneRule("acme", "tenants: [acme]")+
		oneRule("none", "state: off")+oneRule("any", `tenants: acme`))
	ev := event("x", "u", "")
	names := func(tenant int32) string {
		ev.Tenant = tenant
		var out []string
		for _, c := range set.Decide([]pipeline.Event{ev}).Matches {
			out = append(out, c.Rule.ID)
		}
		return strings.Join(out, " ")
	}
	for tenant, want := range map[int32]string{1: "all", 2: "all acme any", 3: "all"} {
		if got := names(tenant); got != want {
			t.Errorf("tenant %d is seen by %q, want %q", tenant, got, want)
		}
	}
	if p := set.Decide([]pipeline.Event{event("other", "u", "")}); p != nil {
		t.Errorf("a batch without listeners gave a plan: %s", decided(p))
	}
}

func TestAPanicIsOneRulesFailure(t *testing.T) {
	set := load(t, "version: 1\nruleset: t\nrules:\n"+oneRule("bad", "payload: {a: 1}")+oneRule("good"))
	set.rules[0].subject = &expr.Program{} // as a bug would
	got := decided(set.Decide([]pipeline.Event{event("x", "u", "")}))
	if !strings.Contains(got, "t/good[0] subject") || !strings.Contains(got, "t/bad[0] panic: ") {
		t.Fatalf("got %s; want a decision of good and a panic of bad", got)
	}
}

func TestHashChangesWithContentOnly(t *testing.T) {
	hash := func(rule string) string { return load(t, rule).rules[0].Hash }
	base := hash(ruleText("match: event.user_id == 'a'", "cooldown: 5m"))
	if got := hash(ruleText(`match: "event.user_id == 'a'" # why`, "'cooldown': 5m")); got != base {
		t.Errorf("hash changed with quoting and comments: %s, %s", base, got)
	}
	if got := hash(ruleText("cooldown: 5m", "match: event.user_id == 'a'")); got != base {
		t.Errorf("hash changed with the order of keys: %s, %s", base, got)
	}
	if got := hash(ruleText("match: event.user_id == 'b'", "cooldown: 5m")); got == base {
		t.Error("hash did not change with the match")
	}
}

// An event rule decides about what happened within its max_age before it arrived, 72h without one, unless the sender
// means any age.
func TestHistoryIsPassedBy(t *testing.T) {
	const text = `version: 1
ruleset: t
rules:
  - {id: usual, owner: me, response: r.md, on: x, send_to: crm}
  - {id: short, owner: me, response: r.md, on: x, send_to: crm, max_age: 1h}
  - {id: unlimited, owner: me, response: r.md, on: x, send_to: crm, max_age: none}
`
	set := load(t, text)
	for _, c := range []struct {
		ago          time.Duration
		anyAge       bool
		decide, pass string
	}{
		{30 * time.Minute, false, "t/usual t/short t/unlimited", ""},
		{71 * time.Hour, false, "t/usual t/unlimited", "t/short"},
		{73 * time.Hour, false, "t/unlimited", "t/usual t/short"},
		{400 * 24 * time.Hour, true, "t/usual t/short t/unlimited", ""},
	} {
		ev := event("x", "u", "")
		ev.OccurredAt, ev.AnyAge = ev.ReceivedAt.Add(-c.ago), c.anyAge
		found := set.Decide([]pipeline.Event{ev}).Stored([]bool{true})
		var decided, passed []string
		for _, m := range found.Matches {
			decided = append(decided, m.Rule.Name)
		}
		for _, p := range found.Passed {
			passed = append(passed, p.Rule.Name)
		}
		if got := strings.Join(decided, " "); got != c.decide {
			t.Errorf("%s ago, any age %v: decided by %q, want %q", c.ago, c.anyAge, got, c.decide)
		}
		if got := strings.Join(passed, " "); got != c.pass {
			t.Errorf("%s ago, any age %v: passed by %q, want %q", c.ago, c.anyAge, got, c.pass)
		}
		if again := set.Decide([]pipeline.Event{ev}).Stored([]bool{false}); len(again.Passed)+len(again.Matches) != 0 {
			t.Errorf("%s ago: a repeat counts: %+v", c.ago, again)
		}
	}
}

// TestResponseStaysInTheFolder: a rule names a file beside the rules, not any file of the machine.
func TestResponseStaysInTheFolder(t *testing.T) {
	for _, response := range []string{"../r.md", "/etc/passwd", "../../../etc/passwd", "."} {
		_, err := loadText(t, "version: 1\nruleset: t\nrules:\n  - {id: a, owner: me, response: "+response+
			", on: x, send_to: crm}\n")
		if err == nil || !strings.Contains(err.Error(), "folder of the rules") {
			t.Errorf("response: %s: %v; want a fault", response, err)
		}
	}
}
