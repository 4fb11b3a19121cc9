package rules

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"sluice.example/sluice/pipeline"
)

// TestPeriods: a baseline of days is that of the same time of the day, whatever the clocks did in between; one of hours
// is that of hours.
func TestPeriods(t *testing.T) {
	check := func(baseline, end string, want ...string) {
		t.Helper()
		a := rateRules(t, "count: {on: x}", "fire: {drop: 30%}", "window: 30m", "baseline: "+baseline).rules[0].Rate
		when, err := time.Parse(time.RFC3339, end)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, p := range a.Periods(when) {
			got = append(got, p.Format(time.RFC3339))
		}
		if strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("%s before %s: got %v, want %v", baseline, end, got, want)
		}
		if oldest := a.Oldest(when); oldest.Format(time.RFC3339) > want[len(want)-1] ||
			oldest.Add(30*time.Minute) != a.Periods(when)[len(want)-1] {
			t.Errorf("the oldest window begins at %s; want half an hour before %s", oldest, want[len(want)-1])
		}
	}
	check("{step: 1d, periods: 2}", "2026-03-30T10:00:00Z", "2026-03-29T10:00:00Z", "2026-03-28T10:00:00Z")
	// Berlin's clocks went forward on the 29th: 12:00 was 10:00 UTC after it and 11:00 UTC before.
	check("{step: 1d, periods: 2, timezone: Europe/Berlin}", "2026-03-30T10:00:00Z", "2026-03-29T10:00:00Z",
		"2026-03-28T11:00:00Z")
	check("{step: 1w, periods: 1, timezone: Europe/Berlin}", "2026-03-30T10:00:00Z", "2026-03-23T11:00:00Z")
	check("{step: 90m, periods: 2, timezone: Europe/Berlin}", "2026-03-29T02:00:00Z", "2026-03-29T00:30:00Z",
		"2026-03-28T23:00:00Z")
}

// TestRollup: an event counts in the minute in which it happened, or arrived if its clock was ahead; one that arrives
// after its window was judged is counted as late.
func TestRollup(t *testing.T) {
	set := rateRules(t, "numerator: {on: buy}", "denominator: {on: [checkout, buy]}", "settle: 5m", "fire: {drop: 30%}")
	late := at(0, "checkout", "")
	late.ReceivedAt = noon.Add(5*time.Minute + time.Second)
	settled := at(0, "checkout", "")
	settled.ReceivedAt = noon.Add(5 * time.Minute)
	ahead := at(1, "checkout", "")
	ahead.OccurredAt = noon.Add(time.Hour)
	seconds := at(0, "checkout", "")
	seconds.OccurredAt = noon.Add(59 * time.Second)
	seconds.ReceivedAt = seconds.OccurredAt
	other := at(0, "buy", "")
	other.Tenant = 2
	sums := map[Minute]Counts{}
	for range 2 {
		Rollup(sums, set.Decide([]pipeline.Event{at(0, "checkout", ""), at(0, "buy", ""), late, settled, ahead, seconds,
			other}).Counts)
	}
	metric := set.Rates()[0].Rate.Metric
	want := map[Minute]Counts{
		// denominator: two checkouts that were in time, one of the second 59, one buy
		{metric, 1, noon}:                  {8, 2, 2, 0},
		{metric, 1, noon.Add(time.Minute)}: {2, 0, 0, 0},
		{metric, 2, noon}:                  {2, 2, 0, 0},
	}
	if fmt.Sprint(sums) != fmt.Sprint(want) {
		t.Errorf("got  %v\nwant %v", sums, want)
	}
}

// TestJudgeAnnounces: what a change of state sends, and that a rule which another one inhibits says nothing.
func TestJudgeAnnounces(t *testing.T) {
	set := rateRules(t, "count: {on: failed}", "fire: {rise: 100%, for: 1}", "clear: {rise: 50%}",
		"minimum: {expected: 10}",
		"window: 10m", "repeat: 10m")
	r := set.rules[0]
	high, low := Sample{X: 90, Usable: true}, Sample{X: 30, Usable: true}
	before := []Sample{low, low, low, low}
	var state RateState
	step := func(n int, cur Sample, inhibited bool) string {
		w := Window{Tenant: 1, End: noon.Add(time.Duration(n) * 10 * time.Minute), Current: cur, Before: before,
			Inhibited: inhibited}
		var found *Findings
		state, found = set.Judge(r, state, w)
		got := state.State
		for _, m := range found.Matches {
			got += fmt.Sprintf(" %s %s", m.Key, m.Payload)
		}
		return got
	}
	check := func(got, wantState, wantKey, wantPart string) {
		t.Helper()
		if !strings.HasPrefix(got, strings.TrimSpace(wantState+" "+wantKey)) || !strings.Contains(got, wantPart) ||
			wantKey == "" && got != wantState {
			t.Errorf("got %s; want %s %s ... %s", got, wantState, wantKey, wantPart)
		}
	}
	check(step(1, low, false), "ok", "", "")
	check(step(2, high, true), "unknown", "", "")
	if !strings.Contains(state.Last.Unknown, "another rule fires") {
		t.Errorf("the reason is %q", state.Last.Unknown)
	}
	check(step(3, high, false), "firing", "firing@1796041800#1", `"value":90,"baseline":30,"change":2`)
	check(step(4, high, false), "firing", "firing@1796041800#2",
		`"window_start":"2026-11-30T12:30:00Z","window_end":"2026-11-30T12:40:00Z"`)
	check(step(5, low, false), "ok", "resolved@1796041800#2", `"state":"resolved"`)
	check(step(6, low, false), "ok", "", "")
}

func TestRatePayload(t *testing.T) {
	set := rateRules(t, "count: {on: failed}", "fire: {rise: 100%}", "minimum: {expected: 10}",
		"payload: {now: rate.numerator, usual: rate.baseline, big: rate.denominator}")
	low := Sample{X: 30, Usable: true}
	_, found := set.Judge(set.rules[0], RateState{}, Window{Tenant: 1, End: noon, Current: Sample{X: 90},
		Before: []Sample{low, low, low}})
	// A count has no denominator, so naming it is a failure of the rule and not a message with a hole.
	if len(found.Matches) != 0 || len(found.Failures) != 1 || found.Failures[0].Kind != FailedExpression {
		t.Errorf("got %s; want a failure", decided(found))
	}
}

func TestTooFew(t *testing.T) {
	ratio := rateRules(t, conversion...).rules[0].Rate
	for _, c := range []struct {
		n, x float64
		want string
	}{
		{30, 15, "make it about 7h long"}, // 200 are wanted of the denominator
		{400, 2, "make it about 6h long"}, // 10 of the numerator
		{400, 0, "too little for a rate rule"},
		{0.5, 0.1, "too little for a rate rule"}, // more than a week
	} {
		if got := ratio.TooFew(c.n, c.x); !strings.Contains(got, c.want) {
			t.Errorf("TooFew(%g, %g) = %q, want %q", c.n, c.x, got, c.want)
		}
	}
	count := rateRules(t, "count: {on: x}", "fire: {drop: 30%}", "minimum: {expected: 50}").rules[0].Rate
	if got := count.TooFew(0, 10); !strings.Contains(got, "A window holds 10.0 events on average: make it about 6h long") {
		t.Errorf("TooFew of a count = %q", got)
	}
}

// TestInhibitorsAreJudgedFirst, so that a rule sees the state of this look and not of the last.
func TestInhibitorsAreJudgedFirst(t *testing.T) {
	rate := func(id string, lines ...string) string {
		return "  - id: " + id + "\n    kind: rate\n    owner: me\n    response: r.md\n    send_to: crm\n    count: {on: " +
			"x}\n" +
			"    fire: {drop: 30%}\n    " + strings.Join(lines, "\n    ") + "\n"
	}
	set := load(t, "version: 1\nruleset: t\nrules:\n"+rate("a", "inhibited_by: [b, c]")+rate("b",
		"inhibited_by: c")+rate("c"))
	var order []string
	for _, r := range set.Rates() {
		order = append(order, r.ID)
	}
	if got := strings.Join(order, " "); got != "c b a" {
		t.Errorf("judged in the order %s, want c b a", got)
	}
	b := set.Rates()[1].Rate
	if len(b.Inhibitors) != 1 || b.Inhibitors[0] != set.Rates()[0].Rate.Metric {
		t.Errorf("b is inhibited by %v, want the metric of c", b.Inhibitors)
	}
	// Off is not in force, so nothing can wait for it.
	_, err := loadText(t, "version: 1\nruleset: t\nrules:\n"+rate("a", "inhibited_by: b")+rate("b", "state: off"))
	if err == nil || !strings.Contains(err.Error(), `"b" is not another rate rule of this file`) {
		t.Errorf("inhibited by a rule that is off: %v", err)
	}
}
