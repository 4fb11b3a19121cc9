package rules

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

func rateRules(t testing.TB, lines ...string) *Set {
	t.Helper()
	return load(t, "version: 1\nruleset: t\nrules:\n  - id: r\n    kind: rate\n    owner: me\n    response: r.md\n    "+
		"send_to: crm\n    "+strings.Join(lines, "\n    ")+"\n")
}

var conversion = []string{"numerator: {on: buy}", "denominator: {on: checkout}", "window: 60m", "every: 5m",
	"settle: 5m",
	"minimum: {denominator: 200, expected_numerator: 10}", "fire: {drop: 30%, z: 3, for: 3}", "clear: {drop: 15%, for: 3}"}

func samples(pairs ...float64) (out []Sample) {
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, Sample{N: pairs[i], X: pairs[i+1], Usable: true})
	}
	return out
}

func TestJudge(t *testing.T) {
	ratio := rateRules(t, conversion...).rules[0].Rate
	calls := rateRules(t, "count: {on: call}", "fire: {drop: 50%}", "minimum: {expected: 20}").rules[0].Rate
	check := func(a *Rate, cur []float64, before []float64, wantUnknown string, wantChange, wantZ float64) {
		t.Helper()
		j := a.judge(samples(cur...)[0], samples(before...))
		if wantUnknown != "" {
			if !strings.Contains(j.Unknown, wantUnknown) {
				t.Errorf("judge(%v, %v) is unknown for %q, want %q", cur, before, j.Unknown, wantUnknown)
			}
			return
		}
		if j.Unknown != "" || j.Change < wantChange-0.01 || j.Change > wantChange+0.01 || j.Z < wantZ-0.1 || j.Z > wantZ+0.1 {
			t.Errorf("judge(%v, %v) = %+v; want change %v, z %v", cur, before, j, wantChange, wantZ)
		}
	}
	check(ratio, []float64{1000, 20}, []float64{1000, 40, 1000, 40, 1000, 40, 1000, 40}, "", -0.5, -3.04)
	check(ratio, []float64{1000, 20}, []float64{1000, 60, 1000, 20, 1000, 60, 1000, 20}, "", -0.5, -3.04/3.73)
	check(ratio, []float64{150, 1}, []float64{1000, 40, 1000, 40, 1000, 40}, "too little happened", 0, 0)
	check(ratio, []float64{220, 1}, []float64{1000, 40, 1000, 40, 1000, 40}, "too little happened", 0, 0)
	check(ratio, []float64{0, 0}, []float64{1000, 40, 1000, 40, 1000, 40}, "nothing to divide by", 0, 0)
	check(ratio, []float64{1000, 0}, []float64{1000, 0, 1000, 0, 1000, 0}, "nothing to divide by", 0, 0)
	check(ratio, []float64{1000, 20}, []float64{1000, 40, 1000, 40}, "2 of 3 earlier windows", 0, 0)
	check(calls, []float64{0, 0}, []float64{0, 100, 0, 100, 0, 100, 0, 100}, "", -1, -8.94)
	check(calls, []float64{0, 0}, []float64{0, 10, 0, 12, 0, 11}, "too little happens", 0, 0)
}

// TestJudgeRatesThatBeginAtNothing: a rise is judged where either the baseline or the window holds enough, against the
// most that so small a baseline can stand for. A drop is judged by its baseline alone.
func TestJudgeRatesThatBeginAtNothing(t *testing.T) {
	calls := rateRules(t, "count: {on: call}", "fire: {rise: 100%}", "baseline: {step: 1h}").rules[0].Rate
	fails := rateRules(t, "numerator: {on: fail}", "denominator: {on: call}", "fire: {rise: 100%}").rules[0].Rate
	drops := rateRules(t, "count: {on: call}", "fire: {drop: 50%}").rules[0].Rate
	end := time.Date(2026, 1, 5, 12, 0, 0, 0, time.UTC)
	check := func(a *Rate, cur []float64, before []float64, want string) {
		t.Helper()
		j := a.judge(samples(cur...)[0], samples(before...))
		s, message := a.next(RateState{}, j, end)
		if got := strings.TrimSpace(s.State + " " + message); got != want {
			t.Errorf("%v after %v is %q, want %q: %+v", cur, before, got, want, j)
		}
		if _, err := json.Marshal(s); err != nil {
			t.Errorf("%v after %v can't be kept: %v", cur, before, err)
		}
	}
	check(calls, []float64{0, 5000}, []float64{0, 0, 0, 0, 0, 0}, "firing firing")
	check(calls, []float64{0, 5000}, []float64{0, 2, 0, 2, 0, 2}, "firing firing")
	check(calls, []float64{0, 10}, []float64{0, 4, 0, 9, 0, 8}, "ok") // 7 may as well be 11
	check(calls, []float64{0, 9}, []float64{0, 0, 0, 0, 0, 0}, "unknown")
	check(calls, []float64{0, 0}, []float64{0, 0, 0, 0, 0, 0}, "unknown")
	check(drops, []float64{0, 5000}, []float64{0, 2, 0, 2, 0, 2}, "unknown")
	check(fails, []float64{1000, 500}, []float64{1000, 1, 1000, 1, 1000, 1}, "firing firing")
	check(fails, []float64{1000, 500}, []float64{1000, 0, 1000, 0, 1000, 0}, "firing firing")
	check(fails, []float64{1000, 9}, []float64{1000, 1, 1000, 1, 1000, 1}, "unknown")
	check(fails, []float64{1000, 1000}, []float64{1000, 0, 1000, 0, 1000, 0}, "firing firing")
	check(fails, []float64{1000, 500}, []float64{0, 0, 0, 0, 1000, 1}, "unknown") // one window says something
}

// TestARiseFromNothingEnds: what falls back to nothing is over, although nothing is too little to be judged.
func TestARiseFromNothingEnds(t *testing.T) {
	a := rateRules(t, "count: {on: call}", "fire: {rise: 100%}", "clear: {rise: 50%, for: 2}").rules[0].Rate
	end := time.Date(2026, 1, 5, 12, 0, 0, 0, time.UTC)
	s, got := RateState{}, []string{}
	for i, x := range []float64{0, 5000, 0, 5000, 3, 0, 0} {
		var message string
		s, message = a.next(s, a.judge(Sample{X: x}, samples(0, 0, 0, 0, 0, 0)), end.Add(time.Duration(i)*time.Hour))
		got = append(got, strings.TrimSpace(s.State+" "+message))
	}
	want := "unknown, firing firing, firing, firing, firing, ok resolved, unknown"
	if strings.Join(got, ", ") != want {
		t.Errorf("got %q, want %s", got, want)
	}
}

// TestRateFiresOnceAndResolves: a condition that stays true is one message, and one more each repeat; the all-clear
// comes after the threshold was left for a while, and unknown windows change nothing.
func TestRateFiresOnceAndResolves(t *testing.T) {
	a := rateRules(t, append(conversion, "repeat: 1h")...).rules[0].Rate
	start := time.Date(2026, 1, 5, 12, 0, 0, 0, time.UTC)
	var s RateState
	var got []string
	slot := 0
	feed := func(n int, j Judgement) {
		for range n {
			slot++
			var message string
			if s, message = a.next(s, j, start.Add(time.Duration(slot)*5*time.Minute)); message != "" {
				got = append(got, fmt.Sprintf("%s@%d", message, slot))
			}
		}
	}
	bad, good, between, unknown := Judgement{Change: -0.5, Z: -4}, Judgement{Change: 0, Z: 0},
		Judgement{Change: -0.2, Z: -2}, Judgement{Unknown: "x"}
	feed(2, bad)
	feed(1, Judgement{Change: -0.5, Z: -1}) // not significant: begins anew
	feed(13, bad)                           // 4..16: fires at 6
	feed(3, unknown)                        // 17..19
	feed(3, between)                        // 20..22: neither; repeats at 20, the first known slot an hour after
	feed(2, good)
	feed(1, bad)
	feed(3, good) // 26..28
	feed(9, good)
	if want := "firing@6 firing@20 resolved@28"; strings.Join(got, " ") != want {
		t.Errorf("got %v, want %s", got, want)
	}
	if s.State != "ok" || s.Firing() {
		t.Errorf("the state is %+v, want ok", s)
	}
}

func TestRateLoadErrors(t *testing.T) {
	check := func(want string, lines ...string) {
		t.Helper()
		_, err := loadText(t, "version: 1\nruleset: t\nrules:\n  - id: r\n    kind: rate\n    owner: me\n    response: "+
			"r.md\n    send_to: crm\n    "+strings.Join(lines, "\n    ")+"\n")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", lines, err, want)
		}
	}
	check("either count, or numerator and denominator", "fire: {drop: 30%}")
	check("count stands alone", "fire: {drop: 30%}", "count: {on: x}", "numerator: {on: x}")
	check("clear has to be nearer", "fire: {drop: 30%}", "clear: {drop: 30%}", "count: {on: x}")
	check("clear has to be nearer", "fire: {drop: 30%}", "clear: {rise: 10%}", "count: {on: x}")
	check("either drop or rise", "fire: {drop: 30%, rise: 10%}", "count: {on: x}")
	check("a percentage such as 30%", "fire: {drop: 0.3}", "count: {on: x}")
	check("whole number of minutes", "fire: {drop: 30%}", "count: {on: x}", "window: 90s")
	check("would be compared with itself", "fire: {drop: 30%}", "count: {on: x}", "window: 2h", "baseline: {step: 1h}")
	check(`"other" is not another rate rule`, "fire: {drop: 30%}", "count: {on: x}", "inhibited_by: other")
	check(`is not a time zone`, "fire: {drop: 30%}", "count: {on: x}", "baseline: {timezone: Mars/Base}")
	check(`undefined field 'valeu'; did you mean "value"?`, "fire: {drop: 30%}", "count: {on: x}",
		"payload: {v: rate.valeu}")
}
