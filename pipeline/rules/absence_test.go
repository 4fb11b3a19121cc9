package rules

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice.example/sluice/pipeline"
)

// noon is when things happen in these tests.
var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// at makes an event of a session that happened some minutes after noon and arrived at once.
func at(minute int, name, session string) pipeline.Event {
	when := noon.Add(time.Duration(minute) * time.Minute)
	return pipeline.Event{ID: pipeline.NewUUIDv4(), Tenant: 1, Name: name, SessionID: session, OccurredAt: when,
		ReceivedAt: when}
}

// cart is the rules file of an abandoned cart; lines are added to the rule.
func cart(lines ...string) string {
	return "version: 1\nruleset: t\nrules:\n  - id: cart\n    kind: absence\n    owner: me\n    response: r.md\n    " +
		"send_to: crm\n" +
		"    trigger: {on: add}\n    cancel: {on: buy}\n    key: event.session_id\n    within: 60m\n    grace: 5m\n    " +
		strings.Join(lines, "\n    ") + "\n"
}

// minute writes a time as minutes after noon, "-" for none.
func minute(t *time.Time) string {
	if t == nil {
		return "-"
	}
	return fmt.Sprint(int(t.Sub(noon).Minutes()))
}

func TestMerge(t *testing.T) {
	low, high := pipeline.UUID{1}, pipeline.UUID{2}
	early, late := at(1, "add", "s"), at(5, "add", "s")
	tieA, tieB := at(5, "add", "s"), at(5, "add", "s")
	tieA.ID, tieB.ID = low, high
	ahead := at(3, "add", "s")
	ahead.OccurredAt = noon.Add(10 * time.Hour) // a clock that runs ahead
	buy, view := at(3, "buy", "s"), at(9, "view", "s")
	check := func(rule string, events []pipeline.Event, want string) {
		t.Helper()
		set := load(t, rule)
		for range 2 { // in either order
			events = slices.Clone(events) // findings borrow them
			slices.Reverse(events)
			found := set.Decide(events)
			var got []string
			for _, m := range Merge(found.Marks) {
				id := "-"
				if m.Trigger != nil {
					id = fmt.Sprint(m.Trigger.ID[0])
				}
				got = append(got, fmt.Sprintf("%d/%s trigger %s cancel %s activity %s first %s id %s",
					m.Tenant, m.Key, minute(m.TriggerAt), minute(m.CancelAt), minute(m.ActivityAt), minute(m.FirstAt), id))
			}
			if strings.Join(got, "; ") != want {
				t.Errorf("got  %s\nwant %s", strings.Join(got, "; "), want)
			}
		}
	}
	early.ID, late.ID = low, high
	check(cart(), []pipeline.Event{early, late, buy}, "1/s trigger 5 cancel 3 activity - first - id 2")
	check(cart(), []pipeline.Event{tieA, tieB}, "1/s trigger 5 cancel - activity - first - id 2")
	check(cart(), []pipeline.Event{buy}, "1/s trigger - cancel 3 activity - first - id -")
	ahead.ID = low
	// It is for whoever records it to say what now is; once it is stored that is when it arrived.
	check(cart(), []pipeline.Event{ahead}, "1/s trigger 600 cancel - activity - first - id 1")
	set := load(t, cart())
	stored := set.Revisit(set.rules[0], []pipeline.Event{ahead}).Marks[0]
	live := set.Decide([]pipeline.Event{ahead}).Marks[0].Clamped(noon.Add(4 * time.Minute))
	if at, now := stored.At(), live.At(); !at.Equal(noon.Add(3*time.Minute)) || !now.Equal(noon.Add(4*time.Minute)) {
		t.Errorf("a clock that runs ahead: %s once stored, %s as of now", at, now)
	}
	check(cart("anchor: idle"), []pipeline.Event{early, view}, "1/s trigger 1 cancel - activity 9 first - id 1")
	check(cart("anchor: first"), []pipeline.Event{late, early, buy}, "1/s trigger 5 cancel 3 activity - first 1 id 2")
	other := late
	other.Tenant, other.SessionID = 2, "a"
	third := at(2, "buy", "b")
	check(cart(), []pipeline.Event{other, late, third},
		"1/b trigger - cancel 2 activity - first - id -; 1/s trigger 5 cancel - activity - first - id 2; "+
			"2/a trigger 5 cancel - activity - first - id 2")
}

// TestMarksThatCount: what is too old to matter is left out by whoever knows the time, unless the anchor needs the
// whole history; a missing key is a failure where the rule asked for the event, and not where it watches all of them.
func TestMarksThatCount(t *testing.T) {
	for rule, want := range map[string]time.Duration{
		cart("lookback: 9h"): 10 * time.Hour, cart("lookback: 9h", "anchor: first"): 0} {
		if got := load(t, rule).absences[0].Absence.Stale(); got != want {
			t.Errorf("stale after %s, want %s\n%s", got, want, rule)
		}
	}
	keyless, view := at(0, "add", ""), at(0, "view", "")
	for _, c := range []struct {
		rule            string
		ev              pipeline.Event
		marks, failures int
	}{
		{cart(), at(0, "add", "s"), 1, 0},
		{cart(), at(0, "view", "s"), 0, 0},
		{cart("anchor: idle"), at(0, "view", "s"), 1, 0},
		{cart("anchor: idle", "activity: {on: scroll}"), at(0, "view", "s"), 0, 0},
		{cart(), keyless, 0, 1},
		{cart("anchor: idle"), view, 0, 0},
	} {
		found := load(t, c.rule).Decide([]pipeline.Event{c.ev})
		if found == nil {
			found = &Findings{}
		}
		if len(found.Marks) != c.marks || len(found.Failures) != c.failures {
			t.Errorf("%s of %q: %d marks, %d failures; want %d, %d\n%s", c.ev.Name, c.ev.SessionID, len(found.Marks),
				len(found.Failures), c.marks, c.failures, c.rule)
		}
	}
}

func TestFire(t *testing.T) {
	check := func(rule string, want Match, wantSkip string) {
		t.Helper()
		set := load(t, rule)
		trigger := at(0, "add", "s")
		trigger.UserID = "u"
		latest := noon.Add(time.Minute)
		found := set.Fire(set.rules[0], []Due{{Tenant: 3, Key: "s", Anchor: noon, Latest: latest, Trigger: trigger}})
		if len(found.Matches) != 1 {
			t.Fatalf("got %s, want one match", decided(found))
		}
		m := found.Matches[0]
		skip := ""
		if m.Recheck != nil {
			skip = strings.Join(m.Recheck.Skip, ",")
			if m.Recheck.Key != "s" || !m.Recheck.Anchor.Equal(noon) || !m.Recheck.Latest.Equal(latest) ||
				m.Recheck.Timer != set.rules[0].Absence.Timer {
				t.Errorf("the re-check is %+v", m.Recheck)
			}
		}
		if m.Tenant != 3 || m.Subject != want.Subject || m.Key != want.Key || m.Delay != want.Delay ||
			m.Event != trigger.ID ||
			m.Once || skip != wantSkip {
			t.Errorf("got %+v, skipped if %s; want %+v, %s", m, skip, want, wantSkip)
		}
	}
	check(cart(), Match{Subject: "s", Key: "s", Delay: 5 * time.Minute}, "cancelled")
	check(cart("subject: trigger.user_id"), Match{Subject: "u", Key: "s", Delay: 5 * time.Minute}, "cancelled")
	check(cart("once_per: episode"), Match{Subject: "s", Key: "s@1796040000000000", Delay: 5 * time.Minute},
		"cancelled,superseded")
	check(cart("once_per: episode", "recheck: {skip_if: superseded}"),
		Match{Subject: "s", Key: "s@1796040000000000", Delay: 5 * time.Minute}, "superseded")
	check(cart("recheck: {skip_if: []}"), Match{Subject: "s", Key: "s", Delay: 5 * time.Minute}, "")
}

// TestFireWithoutItsEvent: a timer whose event went with its day's partition is a failure of the rule, not a message.
func TestFireWithoutItsEvent(t *testing.T) {
	set := load(t, cart("payload: {since: since, key: key}"))
	found := set.Fire(set.rules[0], []Due{{Tenant: 1, Key: "gone", Anchor: noon}, {Tenant: 1, Key: "here", Anchor: noon,
		Trigger: at(0, "add", "here")}})
	got := decided(found)
	if !strings.Contains(got, `key="here" {"since":"2026-11-30T12:00:00Z","key":"here"}`) || len(found.Failures) != 1 ||
		!strings.Contains(found.Failures[0].Err.Error(), "no longer stored") {
		t.Errorf("got %s; want a match for one and a failure for the other", got)
	}
}

// TestLateByOfAbsences: the receiver learns for how long the event was on its way, from the whole event
// as from a payload that asks for it. One that was on time, or ahead, is not late.
func TestLateByOfAbsences(t *testing.T) {
	check := func(late time.Duration, want string, lines ...string) {
		t.Helper()
		trigger := at(0, "add", "s")
		trigger.ReceivedAt = noon.Add(late)
		set := load(t, cart(lines...))
		found := set.Fire(set.rules[0], []Due{{Tenant: 1, Key: "s", Anchor: noon, Latest: noon, Trigger: trigger}})
		if len(found.Matches) != 1 {
			t.Fatalf("got %s, want one match", decided(found))
		}
		got := string(found.Matches[0].Payload)
		if !strings.HasSuffix(got, want) || !json.Valid([]byte(got)) || strings.Contains(got, "late_by") != (want != "}") {
			t.Errorf("%s late: the payload is %s, want it to end in %s", late, got, want)
		}
	}
	check(20*time.Minute+time.Millisecond, `,"late_by":1200}`)
	check(999*time.Millisecond, "}")
	check(-time.Hour, "}")
	check(20*time.Minute, `{"late_by":1200}`, "payload: {late_by: late_by}")
	check(-time.Hour, `{"late_by":0}`, "payload: {late_by: late_by}")
}

func TestAbsenceLoadErrors(t *testing.T) {
	check := func(want string, lines ...string) {
		t.Helper()
		if _, err := loadText(t, cart(lines...)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", lines, err, want)
		}
	}
	check("rules[cart].lookback: 1h7m is too short; it has to be longer than within + grace + two sweeps (1h7m)",
		"lookback: 67m")
	check("activity goes with anchor: idle", "activity: {on: view}")
	check(`"canceled" is not one of cancelled, superseded; did you mean "cancelled"?`, "recheck: {skip_if: canceled}")
	check("superseded goes with once_per: episode", "recheck: {skip_if: [superseded]}")
	check("superseded goes with anchor last or idle", "once_per: episode", "anchor: first",
		"recheck: {skip_if: [superseded]}")
	check(`"middle" is not one of last, first, idle`, "anchor: middle")
	check("type 'type(event)' does not support field selection", "payload: {sku: event.properties.sku}")
	check("is of type bool, but has to be a string or an int", "subject: trigger.user_id == ''")
	_, err := loadText(t, strings.NewReplacer("    trigger: {on: add}\n", "", "    within: 60m\n", "",
		"    key: event.session_id\n", "").
		Replace(cart()))
	for _, key := range []string{"trigger", "within", "key"} {
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("missing required key %q", key)) {
			t.Errorf("without trigger, within and key: got %v, want it to name %s", err, key)
		}
	}
}

// TestTimersBeginAnew only when what they depend on changes.
func TestTimersBeginAnew(t *testing.T) {
	timer := func(text string) string { return load(t, text).rules[0].Absence.Timer }
	base := timer(cart())
	for _, same := range []string{cart("payload: {a: 1}"), cart("once_per: episode"), cart("lookback: 12h"),
		cart("description: x"),
		strings.Replace(cart(), "within: 60m", "within: 90m", 1)} {
		if got := timer(same); got != base {
			t.Errorf("the timers are %s, want %s as before the change\n%s", got, base, same)
		}
	}
	for _, other := range []string{cart("anchor: idle"), cart("state: shadow"),
		strings.Replace(cart(), "on: add}", "on: put}", 1),
		strings.Replace(cart(), "session_id", "user_id", 1)} {
		if got := timer(other); got == base {
			t.Errorf("the timers are %s as before; want others\n%s", got, other)
		}
	}
}

func TestAbsenceNames(t *testing.T) {
	for text, want := range map[string]string{
		cart():               "[add buy]",
		cart("anchor: idle"): "[]", // all
		cart("anchor: idle", "activity: {on: [view, add]}"): "[add buy view]",
	} {
		if got := fmt.Sprint(load(t, text).rules[0].Absence.Names); got != want {
			t.Errorf("names %s, want %s\n%s", got, want, text)
		}
	}
}
