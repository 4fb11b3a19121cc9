package ingest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"sluice.example/sluice/pipeline"
)

// oneEvent decodes a body that holds one event.
func oneEvent(t *testing.T, s *shape, in input, text string) (pipeline.Event, rejection) {
	t.Helper()
	cfg := DefaultConfig()
	d := new(decoder)
	d.reset(&cfg, 1, now)
	in.body, in.header = []byte(text), &fasthttp.RequestHeader{}
	if m := s.decode(d, in); m != nil {
		t.Fatalf("%s: %+v", text, *m)
	}
	events := d.take()
	switch {
	case d.count != 1:
		t.Fatalf("%s: %d events", text, d.count)
	case len(events) == 0:
		return pipeline.Event{}, d.rejected[0]
	}
	return events[0], rejection{}
}

// v7 is a UUID of version 7 with a time.
func v7(at time.Time) string { return pipeline.NewUUIDv7(at).String() }

// TestOffsetOfPostHogJS: the browser library says how long ago an event was, and neither its clock nor the time in its
// ids, which is of that clock, counts. A retry repeats the id, comes later, and has to be found by it.
func TestOffsetOfPostHogJS(t *testing.T) {
	received := now.Truncate(time.Microsecond)
	for _, tt := range []struct {
		name, id, more string
		want           time.Time
		unknown        bool
	}{
		{"clock 3 days fast", v7(now.Add(72 * time.Hour)), `"offset":1500`, received.Add(-1500 * time.Millisecond), true},
		{"clock an hour fast", v7(now.Add(time.Hour)), `"offset":1500`, received.Add(-1500 * time.Millisecond), true},
		{"clock a year slow", v7(now.AddDate(-1, 0, 0)), `"offset":1500`, received.Add(-1500 * time.Millisecond), true},
		{"clock right", v7(now.Add(-time.Minute)), `"offset":60000`, received.Add(-time.Minute), true},
		{"version 4", idV4, `"offset":60000`, received.Add(-time.Minute), true},
		{"as a string", idV4, `"offset":"60000"`, received.Add(-time.Minute), true},
		{"a fraction", idV4, `"offset":0.5`, received.Add(-500 * time.Microsecond), true},
		{"zero", idV4, `"offset":0`, received, true},
		{"no id", "", `"offset":60000`, received.Add(-time.Minute), false},
		{"negative", idV4, `"offset":-5`, received, true},
		{"not a number", idV4, `"offset":{"a":1}`, received, true},
		{"longer than max-age", idV4, `"offset":1e12`, received, true},
		{"beside a timestamp", idV4, `"offset":60000,"timestamp":"2026-11-30T11:00:00Z"`,
			time.Date(2026, 11, 30, 11, 0, 0, 0, time.UTC), false},
	} {
		e, bad := oneEvent(t, &posthog, input{}, `[{"event":"x","uuid":"`+tt.id+`",`+tt.more+
			`,"properties":{"token":"k","distinct_id":"d"}}]`)
		if bad.reason != "" || !e.OccurredAt.Equal(tt.want) || e.TimeUnknown != tt.unknown {
			t.Errorf("%s: rejected %q %s, at %v, unknown %v; want %v, %v",
				tt.name, bad.field, bad.reason, e.OccurredAt, e.TimeUnknown, tt.want, tt.unknown)
		}
		if !strings.Contains(string(e.Properties), `"$posthog":{"offset":`) {
			t.Errorf("%s: properties %s; want the offset as it was sent", tt.name, e.Properties)
		}
	}
}

// TestWrongDeviceClock: a time that cannot be stored, of a client that says what its clock showed as it sent, is taken
// by that. One that can be stored is never changed.
func TestWrongDeviceClock(t *testing.T) {
	received := now.Truncate(time.Microsecond)
	at := func(d time.Duration) string { return now.Add(d).Format("2006-01-02T15:04:05.000Z") }
	segmentBatch := func(event string, sent string) string {
		return `{"batch":[{"type":"track","event":"x","userId":"u",` + event + `}]` + sent + `}`
	}
	for _, tt := range []struct {
		name  string
		shape *shape
		in    input
		text  string
		field string        // rejected
		ago   time.Duration // before the time of receipt
		known bool
	}{
		{name: "14 days fast, sentAt of the batch", shape: &segment, ago: 5 * time.Second,
			text: segmentBatch(`"messageId":"m","timestamp":"`+at(14*24*time.Hour)+`"`,
				`,"sentAt":"`+at(14*24*time.Hour+5*time.Second)+`"`)},
		{name: "14 days fast, sentAt of the call", shape: &segment, ago: 5 * time.Second,
			text: segmentBatch(`"messageId":"m","timestamp":"`+at(14*24*time.Hour)+`","sentAt":"`+
				at(14*24*time.Hour+5*time.Second)+`"`, "")},
		{name: "1970, sentAt", shape: &segment, ago: 5 * time.Second,
			text: segmentBatch(`"messageId":"m","timestamp":"1970-01-01T00:00:05.000Z"`, `,"sentAt":"1970-01-01T00:00:10Z"`)},
		{name: "an hour fast, sentAt", shape: &segment, ago: -time.Hour, known: true,
			text: segmentBatch(`"messageId":"m","timestamp":"`+at(time.Hour)+`"`, `,"sentAt":"`+at(time.Hour)+`"`)},
		{name: "14 days fast, no sentAt", shape: &segment, field: "timestamp",
			text: segmentBatch(`"messageId":"m","timestamp":"`+at(14*24*time.Hour)+`"`, "")},
		{name: "14 days fast, sentAt of a clock that is right", shape: &segment, field: "timestamp",
			text: segmentBatch(`"messageId":"m","timestamp":"`+at(14*24*time.Hour)+`"`, `,"sentAt":"`+at(0)+`"`)},
		{name: "sentAt that is no time", shape: &segment, ago: -time.Hour, known: true,
			text: segmentBatch(`"messageId":"m","timestamp":"`+at(time.Hour)+`"`, `,"sentAt":{"a":1}`)},
		{name: "3 days fast, sent_at", shape: &posthog, ago: time.Second,
			text: `{"batch":[{"event":"x","distinct_id":"d","uuid":"` + idV4 + `","timestamp":"` + at(72*time.Hour) +
				`"}],"sent_at":"` + at(72*time.Hour+time.Second) + `"}`},
		{name: "3 days fast, milliseconds in the query", shape: &posthog, ago: time.Second,
			in:   input{sent: fmt.Append(nil, now.Add(72*time.Hour+time.Second).Truncate(time.Millisecond).UnixMilli())},
			text: `[{"event":"x","distinct_id":"d","uuid":"` + idV4 + `","timestamp":"` + at(72*time.Hour) + `"}]`},
		{name: "3 days fast, in the id alone", shape: &posthog, ago: 0,
			text: `[{"event":"x","distinct_id":"d","uuid":"` + v7(now.Add(72*time.Hour)) + `"}]`},
		{name: "3 days fast, in the id alone, sent_at", shape: &posthog, ago: time.Second,
			text: `{"batch":[{"event":"x","distinct_id":"d","uuid":"` + v7(now.Add(72*time.Hour)) +
				`"}],"sent_at":"` + at(72*time.Hour+time.Second) + `"}`},
		{name: "our own format", shape: &native, field: "occurred_at",
			text: `{"event_name":"x","event_id":"e","occurred_at":"` + at(72*time.Hour) + `"}`},
	} {
		e, bad := oneEvent(t, tt.shape, tt.in, tt.text)
		if bad.field != tt.field {
			t.Errorf("%s: rejected %q: %s; want %q", tt.name, bad.field, bad.reason, tt.field)
		}
		if bad.reason != "" || tt.field != "" {
			continue
		}
		// The clock of these tests has microseconds, what clients send has milliseconds.
		if off := e.OccurredAt.Sub(received.Add(-tt.ago)); off.Abs() > time.Millisecond || e.TimeUnknown == tt.known {
			t.Errorf("%s: at %v, unknown %v; want %v, %v",
				tt.name, e.OccurredAt, e.TimeUnknown, received.Add(-tt.ago), !tt.known)
		}
		if shifted := strings.Contains(string(e.Properties), `"timestamp":"`); shifted != (!tt.known && strings.Contains(
			tt.text, `"timestamp"`)) {
			t.Errorf("%s: properties %s; want the time as it was sent in them only if it was shifted", tt.name, e.Properties)
		}
	}
}

// TestTimesOfSDKs: the endpoints of other systems take times as their SDKs write them, and keep what was sent; our own
// takes RFC 3339, and says which field and what value.
func TestTimesOfSDKs(t *testing.T) {
	for _, tt := range []struct{ sent, want string }{
		{`"2026-11-30T11:00:00.5Z"`, "2026-11-30T11:00:00.5Z"},
		{`"2026-11-30T11:00:Z"`, "2026-11-30T11:00:00Z"},
		{`"2026-11-30T11:00Z"`, "2026-11-30T11:00:00Z"},
		{`"2026-11-30T11:00:00+0000"`, "2026-11-30T11:00:00Z"},
		{`"2026-11-30T11:00:00+00"`, "2026-11-30T11:00:00Z"},
		{`"2026-11-30T13:00:00,25+02:00"`, "2026-11-30T11:00:00.25Z"},
		{`"2026-11-30T11:00:00"`, "2026-11-30T11:00:00Z"},
		{`"2026-11-30 11:00:00"`, "2026-11-30T11:00:00Z"},
		{`1796036400`, "2026-11-30T11:00:00Z"},
		{`"1796036400123"`, "2026-11-30T11:00:00.123Z"},
		{`1796036400123`, "2026-11-30T11:00:00.123Z"},
		{`1796036400.5`, "2026-11-30T11:00:00.5Z"},
	} {
		strict := strings.HasSuffix(tt.sent, `.5Z"`)
		for name, shaped := range map[string]struct {
			shape        *shape
			text, inside string
		}{
			"segment": {&segment, `{"type":"track","event":"x","userId":"u","messageId":"m","timestamp":` + tt.sent + `}`,
				`"timestamp":` + tt.sent},
			"rudderstack": {&segment, `{"type":"track","event":"x","userId":"u","messageId":"m","originalTimestamp":` +
				tt.sent + `}`, `"originalTimestamp":` + tt.sent},
			"posthog": {&posthog, `{"event":"x","distinct_id":"d","uuid":"u","timestamp":` + tt.sent + `}`,
				`"timestamp":` + tt.sent},
		} {
			in := input{}
			if shaped.shape == &segment {
				in.call = callTrack
			}
			e, bad := oneEvent(t, shaped.shape, in, shaped.text)
			if bad.reason != "" || e.OccurredAt.Format(time.RFC3339Nano) != tt.want || e.TimeUnknown {
				t.Errorf("%s %s: rejected %q %s, at %v; want %s", name, tt.sent, bad.field, bad.reason, e.OccurredAt, tt.want)
			}
			if kept := strings.Contains(string(e.Properties), shaped.inside); kept == strict {
				t.Errorf("%s %s: properties %s; want what was sent in them, unless it is RFC 3339", name, tt.sent, e.Properties)
			}
		}
		if strict {
			continue
		}
		_, bad := oneEvent(t, &native, input{}, `{"event_name":"x","occurred_at":`+tt.sent+`}`)
		if bad.field != "occurred_at" || !strings.Contains(bad.reason, strings.Trim(tt.sent, `"`)) ||
			!strings.Contains(bad.reason, "RFC 3339") {
			t.Errorf("native %s: rejected %q: %s; want the field, the value and RFC 3339", tt.sent, bad.field, bad.reason)
		}
	}
}

// TestOriginalTimestampCounts: RudderStack's clients name the time of the event so, and send no other.
func TestOriginalTimestampCounts(t *testing.T) {
	const call = `{"type":"track","event":"x","userId":"u","messageId":"m",`
	for _, tt := range []struct{ text, at, props string }{
		{call + `"originalTimestamp":"2026-11-30T11:00:00.000Z","sentAt":"2026-11-30T11:00:05.000Z"}`,
			"2026-11-30T11:00:00Z", `{"$segment":{"type":"track"}}`},
		{call + `"originalTimestamp":"2026-11-30T11:00:00.000Z","timestamp":"2026-11-30T10:00:00.000Z"}`,
			"2026-11-30T10:00:00Z", `{"$segment":{"type":"track","originalTimestamp":"2026-11-30T11:00:00.000Z"}}`},
		{call + `"timestamp":null,"originalTimestamp":"2026-11-30T11:00:00.000Z"}`,
			"2026-11-30T11:00:00Z", `{"$segment":{"type":"track"}}`},
	} {
		e, bad := oneEvent(t, &segment, input{call: callTrack}, tt.text)
		if bad.reason != "" || e.OccurredAt.Format(time.RFC3339) != tt.at || string(e.Properties) != tt.props {
			t.Errorf("%s: rejected %+v, at %v, properties %s; want %s and %s",
				tt.text, bad, e.OccurredAt, e.Properties, tt.at, tt.props)
		}
	}
	_, bad := oneEvent(t, &segment, input{call: callTrack}, call+`"originalTimestamp":"yesterday"}`)
	if bad.field != "originalTimestamp" || !strings.Contains(bad.reason, "yesterday") {
		t.Errorf("a time that is none: rejected %+v; want originalTimestamp and its value", bad)
	}
}
