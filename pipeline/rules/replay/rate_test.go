package replay

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"sluice.example/sluice/pipeline"
)

var conversion = []string{"numerator: {on: buy}", "denominator: {on: checkout}", "window: 60m", "every: 5m",
	"settle: 5m",
	"minimum: {denominator: 200, expected_numerator: 10}", "fire: {drop: 30%, z: 3, for: 3}", "clear: {drop: 15%, for: 3}"}

// TestRateReplay: four weeks of a shop with a night and weekly differences, then conversion drops by 60 % for three
// hours. 20 minutes of delay for some purchases, constant traffic within the hour and the night raise no alarm.
func TestRateReplay(t *testing.T) {
	set := load(t, "  - id: r\n    kind: rate\n    send_to: crm\n    "+strings.Join(conversion, "\n    ")+"\n")
	rng := rand.New(rand.NewPCG(1, 2))
	start := time.Date(2026, 1, 5, 0, 0, 0, 0, time.UTC)
	r := New(set, start)
	drop := start.Add(30*24*time.Hour + 12*time.Hour)
	end := drop.Add(8 * time.Hour)
	weekly := 1.0
	for at := start; at.Before(end); at = at.Add(time.Minute) {
		if at.Hour() == 0 && at.Minute() == 0 {
			weekly = 0.95 + rng.Float64()*0.1
		}
		conv := 0.2 * weekly
		if !at.Before(drop) && at.Before(drop.Add(3*time.Hour)) {
			conv *= 0.4
		}
		n := 10
		if at.Hour() < 6 {
			n = 0
		}
		var events []pipeline.Event
		for range n {
			ev := pipeline.Event{ID: pipeline.NewUUIDv4(), Tenant: 1, Name: "checkout", ReceivedAt: at, OccurredAt: at}
			events = append(events, ev)
			if rng.Float64() < conv {
				ev.Name = "buy"
				if rng.IntN(4) == 0 {
					ev.OccurredAt = at.Add(-20 * time.Minute)
				}
				events = append(events, ev)
			}
		}
		r.Feed(events, at)
	}
	r.Advance(end)
	var got []string
	for _, d := range r.Decided() {
		state := "resolved"
		if strings.Contains(string(d.Payload), `"state":"firing"`) {
			state = "firing"
		}
		got = append(got, state)
		if d.At.Before(drop) {
			t.Errorf("a false alarm at %s: %s", d.At, d.Payload)
		}
		if state == "firing" && d.At.After(drop.Add(2*time.Hour)) {
			t.Errorf("found only at %s after the drop", d.At.Sub(drop))
		}
	}
	if strings.Join(got, " ") != "firing resolved" {
		t.Errorf("got %v, want firing resolved", got)
	}
}

// TestRateReplayFromNothing: the replay counts from its start on, so what begins later begins at nothing; what goes on
// from the start begins at what it is.
func TestRateReplayFromNothing(t *testing.T) {
	set := load(t, "  - id: r\n    kind: rate\n    send_to: crm\n    count: {on: failed}\n    "+
		"window: 10m\n    every: 5m\n    baseline: {step: 10m, periods: 3, require: 3}\n    "+
		"fire: {rise: 100%}\n    clear: {rise: 50%, for: 2}\n")
	start := time.Date(2026, 1, 5, 0, 0, 0, 0, time.UTC)
	check := func(quiet time.Duration, want string) {
		t.Helper()
		r := New(set, start)
		begin := start.Add(quiet)
		for at := begin; at.Before(begin.Add(15 * time.Minute)); at = at.Add(time.Second) {
			r.Feed([]pipeline.Event{{ID: pipeline.NewUUIDv4(), Tenant: 1, Name: "failed", ReceivedAt: at,
				OccurredAt: at}}, at)
		}
		r.Advance(begin.Add(2 * time.Hour))
		got := []string{}
		for _, d := range r.Decided() {
			state, _, _ := strings.Cut(strings.TrimPrefix(string(d.Payload), `{"state":"`), `"`)
			got = append(got, state)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("after %s of nothing: got %v, want %q", quiet, got, want)
		}
	}
	check(time.Hour, "firing resolved")
	check(0, "")
}
