package rules

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"sluice.example/sluice/pipeline"
)

// TestSlot: when a message under limits may be sent.
func TestSlot(t *testing.T) {
	moments := func(minutes ...int) (out []time.Time) {
		for _, m := range minutes {
			out = Granted(out, noon.Add(time.Duration(m)*time.Minute))
		}
		return out
	}
	counted := func(most int, per time.Duration, defers bool) Under {
		return Under{Quota: &Quota{AtMost: most, Per: per, Defer: defers}}
	}
	check := func(want int, reason string, under []Under, before ...[]time.Time) {
		t.Helper()
		at, by := Slot(under, before, noon, noon)
		why := ""
		if by >= 0 {
			why = OverLimit
		}
		if got := int(at.Sub(noon).Minutes()); got != want || why != reason {
			t.Errorf("%d minutes, %q; want %d, %q", got, why, want, reason)
		}
	}
	two := counted(2, time.Hour, true)
	check(0, "", []Under{two}, nil)
	check(0, "", []Under{two}, moments(-10))
	check(10, "", []Under{two}, moments(-10, -50))
	check(0, "", []Under{two}, moments(-10, -60))
	check(50, "", []Under{two}, moments(-10, -50, 10))
	check(0, OverLimit, []Under{counted(2, time.Hour, false)}, moments(-10, -50))
	// Two limits: both have to have room at that moment.
	check(60, "", []Under{two, counted(1, time.Hour, true)}, moments(-50, -40), moments(0))
	check(0, OverLimit, []Under{two, counted(1, time.Hour, false)}, moments(-50, -40), moments(0))
	hours := func(from, to time.Duration) Under {
		quiet := &quietHours{from: from * time.Hour, to: to * time.Hour, zone: time.UTC}
		return Under{Quota: &Quota{Defer: true, quiet: quiet}}
	}
	quiet := hours(11, 13)
	check(60, "", []Under{quiet}, nil)
	check(61, "", []Under{quiet, two}, nil, moments(1, 2))
	check(0, OverLimit, []Under{hours(8, 21), hours(21, 8)}, nil, nil) // there is no other time
	var ahead []int
	for i := range maxAhead {
		ahead = append(ahead, i+1)
	}
	check(0, OverLimit, []Under{two}, moments(ahead...))
}

// TestNoWindowHasMore than a limit allows, in whatever order and with whatever delays messages ask.
func TestNoWindowHasMore(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 7))
		u := Under{Quota: &Quota{AtMost: 1 + rng.IntN(4), Per: time.Hour, Defer: rng.IntN(2) == 0}}
		if rng.IntN(2) == 0 {
			u.Quota.quiet = &quietHours{from: 15 * time.Hour, to: 16 * time.Hour, zone: time.UTC}
		}
		now := noon
		var moments []time.Time
		for range 80 { // fewer than are kept
			now = now.Add(time.Duration(rng.IntN(20)) * time.Minute)
			due := now.Add(time.Duration(rng.IntN(3)*rng.IntN(60)) * time.Minute)
			at, by := Slot([]Under{u}, [][]time.Time{moments}, now, due)
			if by < 0 {
				moments = Granted(moments, at)
			}
			if by < 0 && (at.Before(due) || u.Quiet(at) || !u.Quota.Defer && !at.Equal(due)) {
				t.Fatalf("seed %d: due at %s, sent at %s", seed, due, at)
			}
		}
		for i := u.Quota.AtMost; i < len(moments); i++ { // latest first
			if span := moments[i-u.Quota.AtMost].Sub(moments[i]); span < u.Quota.Per {
				t.Fatalf("seed %d: %d messages within %s", seed, u.Quota.AtMost+1, span)
			}
		}
		if len(moments) < 5 {
			t.Errorf("seed %d: only %d messages were sent", seed, len(moments))
		}
	}
}

// TestQuietHoursEnd by the clock on the wall, also when that is moved.
func TestQuietHoursEnd(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	check := func(from, to int, at, want string) {
		t.Helper()
		q := &quietHours{time.Duration(from) * time.Hour, time.Duration(to) * time.Hour, berlin}
		local, err := time.ParseInLocation("2006-01-02 15:04", at, berlin)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if end := q.end(local, berlin); !end.IsZero() {
			got = end.In(berlin).Format("2006-01-02 15:04")
		}
		if got != want {
			t.Errorf("%s in %d to %d: %q, want %q", at, from, to, got, want)
		}
	}
	check(21, 8, "2026-11-30 20:59", "")
	check(21, 8, "2026-11-30 21:00", "2026-12-01 08:00")
	check(21, 8, "2026-12-01 07:59", "2026-12-01 08:00")
	check(21, 8, "2026-12-01 08:00", "")
	check(21, 8, "2026-10-25 00:30", "2026-10-25 08:00")
	check(21, 8, "2026-03-28 23:30", "2026-03-29 08:00")
	check(12, 14, "2026-11-30 13:00", "2026-11-30 14:00")
	check(12, 14, "2026-11-30 14:00", "")
	check(12, 14, "2026-11-30 02:00", "")
}

// TestLimitsSeeDeclaredProperties of the events that their rules decide about.
func TestLimitsSeeDeclaredProperties(t *testing.T) {
	text := "version: 1\nruleset: t\nevents: {x: {account: string, tz: string}}\nrules:\n" + oneRule("r") + "limits:\n" +
		"  - {id: a, subject: event.properties.%s, at_most: 1, per: 1d, rules: [r], over: defer,\n" +
		"     hours: {from: '21:00', to: '08:00', timezone: event.properties.tz}}\n"
	if _, err := loadText(t, fmt.Sprintf(text, "account")); err != nil {
		t.Error(err)
	}
	if _, err := loadText(t, fmt.Sprintf(text, "acount")); err == nil || !strings.Contains(err.Error(), `"account"?`) {
		t.Errorf("got %v", err)
	}
}

// TestZoneOfAnEvent is one that exists, or UTC, and is never looked for outside the folder of time zones.
func TestZoneOfAnEvent(t *testing.T) {
	set := load(t, ruleText()+"limits: [{id: a, rules: [r], hours: {from: '21:00', to: '08:00', "+
		"timezone: event.properties.tz}}]\n")
	for properties, want := range map[string]string{
		`{"tz":"Europe/Berlin"}`: "Europe/Berlin", `{"tz":"America/Argentina/Ushuaia"}`: "America/Argentina/Ushuaia",
		`{"tz":"Etc/GMT+5"}`: "Etc/GMT+5", `{}`: "UTC", `{"tz":null}`: "UTC", `{"tz":["Europe/Berlin"]}`: "UTC",
		`{"tz":"Local"}`: "UTC", `{"tz":"Atlantis"}`: "UTC", `{"tz":"/etc/passwd"}`: "UTC", `{"tz":"Europe//Berlin"}`: "UTC",
		`{"tz":"./Europe/Berlin"}`: "UTC", `{"tz":"../zoneinfo/Europe/Berlin"}`: "UTC", `{"tz":"Europe/"}`: "UTC",
	} {
		found := set.Decide([]pipeline.Event{{Tenant: 1, Name: "x", Properties: []byte(properties)}})
		if len(found.Matches) != 1 || found.Matches[0].Under[0].zone.String() != want {
			t.Errorf("%s: got %+v, want %s", properties, found, want)
		}
	}
}

func TestLimitsAreChecked(t *testing.T) {
	check := func(limit, want string) {
		t.Helper()
		text := "version: 1\nruleset: t\nrules:\n" + oneRule("r") + "limits:\n  - {" + limit + "}\n"
		_, err := loadText(t, text)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", limit, err, want)
		}
	}
	check("id: a, subject: event.user_id, at_most: 3, per: 1d, send_to: crm", "")
	check("id: a, subject: event.user_id, at_most: 3, per: 1d, rules: [r], over: defer", "")
	check("id: a, hours: {from: '21:00', to: '08:00'}, rules: [r]", "")
	check("subject: event.user_id, at_most: 3, per: 1d, send_to: crm", `missing required key "id"`)
	check("id: a, at_most: 3, per: 1d, send_to: crm", `missing required key "subject"`)
	check("id: a, subject: event.user_id, at_most: 3, send_to: crm", `missing required key "per"`)
	check("id: a, rules: [r]", `missing required key "at_most"`)
	check("id: a, subject: event.usr_id, at_most: 3, per: 1d, rules: [r]", `did you mean "user_id"?`)
	check("id: a, subject: event.user_id, at_most: 51, per: 1d, rules: [r]", "at_most")
	check("id: a, subject: event.user_id, at_most: 3, per: 1d", "a limit is over rules, or over what is sent")
	check("id: a, subject: event.user_id, at_most: 3, per: 1d, rules: [q]", `there is no rule "q" in this file`)
	check("id: a, subject: event.user_id, at_most: 3, per: 1d, send_to: sales", `no rule of this file sends to "sales"`)
	check("id: a, hours: {from: '21:00', to: '21:00'}, rules: [r]", "would never be over")
	check("id: a, hours: {from: '25:00', to: '08:00'}, rules: [r]", `"25:00" is not a time of the day`)
	check("id: a, hours: {from: '21:00', to: '08:00', timezone: Berlin}, rules: [r]", "is not a time zone")
	const digests = "id: a, subject: event.user_id, at_most: 3, per: 1d, over: digest, "
	check(digests+"send_to: crm", "")
	check(digests+"send_to: crm, digest: {payload: {n: digest.count}}", "")
	check(digests+"rules: [r], digest: {send_to: sales}", "")
	check("id: a, hours: {from: '21:00', to: '08:00'}, subject: event.user_id, send_to: crm, over: digest", "")
	check("id: a, hours: {from: '21:00', to: '08:00'}, send_to: crm, over: digest", `missing required key "subject"`)
	check(digests+"rules: [r]", "has to say where its digest goes")
	check(digests+"send_to: crm, digest: {send_to: sales}", `the digest goes to "crm"`)
	check(digests+"send_to: crm, digest: {payload: {n: digest.cont}}", `did you mean "count"?`)
	check("id: a, subject: event.user_id, at_most: 3, per: 1d, send_to: crm, digest: {payload: {}}", "add over: digest")
	check("id: r, subject: event.user_id, at_most: 3, per: 1d, send_to: crm, over: digest", `there is a rule "r"`)
	check("id: a, hours: {from: '21:00', to: '08:00', timezone: event.properties.tz}, rules: [r]", "")
	check("id: a, hours: {from: '21:00', to: '08:00', timezone: event.propertys.tz}, rules: [r]",
		`did you mean "properties"?`)
	// A change of a limit is a change of the rules in force.
	text := func(most string) string {
		return ruleText() + "limits: [{id: a, subject: event.user_id, at_most: " + most + ", per: 1d, rules: [r]}]\n"
	}
	if load(t, text("1")).Fingerprint() == load(t, text("2")).Fingerprint() {
		t.Error("another limit has the same fingerprint")
	}
}
