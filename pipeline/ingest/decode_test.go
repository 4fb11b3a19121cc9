package ingest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"sluice.example/sluice/internal/jsontext"
	"sluice.example/sluice/internal/jsontext/hostile"
	"sluice.example/sluice/pipeline"
)

var now = time.Date(2026, 11, 30, 12, 0, 0, 123456789, time.UTC)

const (
	idV4 = "3f2c9b9e-5a3b-4c7d-8e9f-0a1b2c3d4e5f"
	idV7 = "019ad4d0-6b00-7abc-8def-0123456789ab" // 2025-11-30
)

// sampleEvents makes n events of about 450 bytes.
func sampleEvents(n int) []string {
	events := make([]string, n)
	for i := range events {
		events[i] = fmt.Sprintf(`{"event_id":"%s","event_name":"page_viewed","occurred_at":"2026-11-30T11:%02d:%02d.123Z",`+
			`"anonymous_id":"anon-%d","session_id":"sess-%d","page_url":"https://shop.example.com/products/%d?ref=home",`+
			`"referrer":"https://www.example.org/search","user_agent":"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36",`+
			`"properties":{"price_cents":%d,"currency":"EUR","title":"Blue chair no. %d","in_stock":true,`+
			`"tags":["home","chair"]}}`,
			pipeline.NewUUIDv7(now), i/60%60, i%60, i%1000, i%5000, i, 1000+i*7, i)
	}
	return events
}

func decode(t testing.TB, cfg Config, text string, lines bool) (*decoder, []pipeline.Event, *malformed) {
	t.Helper()
	d := new(decoder)
	d.reset(&cfg, 7, now)
	var m *malformed
	body := []byte(text)
	if lines {
		m = d.lines(body)
	} else {
		m = d.json(body)
	}
	if m != nil {
		return d, nil, m
	}
	events := d.take()
	for i := range body {
		body[i] = 0xee // what was taken must not lie in the body
	}
	return d, events, nil
}

func TestDecodeEveryField(t *testing.T) {
	text := `{"event_id":"` + strings.ToUpper(idV4) + `","event_name":"sign\u0075p",` +
		`"occurred_at":"2026-11-30T13:00:00.1234567+02:00","anonymous_id":"a\"1","user_id":"ü\u00fc\ud83d\ude00",` +
		"\n\t" + `"session_id":"s","page_url":"https://x/?a=1&b=2","referrer":"r","user_agent":"ua",` +
		`"\u0070roperties": { "n": 12345678901234567890.10, "C:\\u0000dir":"\u00e9" } }`
	_, events, m := decode(t, DefaultConfig(), text, false)
	if m != nil || len(events) != 1 {
		t.Fatalf("%v, %d events; want one", m, len(events))
	}
	id, _ := pipeline.ParseUUID(idV4)
	got := events[0]
	want := pipeline.Event{ID: id, Tenant: 7, Name: "signup", OccurredAt: time.Date(2026, 11, 30, 11, 0, 0, 123456000,
		time.UTC),
		ReceivedAt: now.Truncate(time.Microsecond), AnonymousID: `a"1`, UserID: "üü😀", SessionID: "s",
		PageURL:  "https://x/?a=1&b=2",
		Referrer: "r", UserAgent: "ua", Properties: []byte(`{ "n": 12345678901234567890.10, "C:\\u0000dir":"\u00e9" }`)}
	if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
		t.Errorf("got\n%+v; want\n%+v", got, want)
	}
}

func TestDecodeShapes(t *testing.T) {
	one := `{"event_name":"a"}`
	for _, tt := range []struct {
		text           string
		lines          bool
		events, bad    int
		status, offset int
	}{
		{text: one, events: 1},
		{text: " \n[" + one + " , " + one + "]\r\n", events: 2},
		{text: `[]`},
		{text: `{"events":[` + one + `,` + one + `]}`, events: 2},
		{text: `{ "events" : [ ] } `},
		{text: `{"events":{}}`, bad: 1},
		{text: `{"events":[],"event_name":"x"}`, status: 400, offset: 13},
		{text: `{"event_name":"x","events":[]}`, bad: 1},
		{text: `{"sent_at":1,"events":[` + one + `]}`, status: 400, offset: 1},
		{text: `{"events":[` + one + `],"events":[]}`, status: 400, offset: 31},
		{text: `{"user_id":"a\u0022b","events":[` + one + `]}`, status: 400, offset: 1},
		{text: `{"\u0065vents":[` + one + `]}`, status: 400, offset: 1},
		{text: `{"events":5,"events":[` + one + `]}`, status: 400, offset: 12},
		{text: `[{"events":[` + one + `]},` + one + `]`, events: 1, bad: 1},
		{text: `{"events":[` + one + `]}` + "\n" + one, lines: true, events: 1, bad: 1},
		{text: "\xef\xbb\xbf" + one, events: 1},
		{text: ``, status: 400, offset: 0},
		{text: ` 5`, status: 400, offset: 1},
		{text: `[5,"x",null,` + one + `,[` + one + `]]`, events: 1, bad: 4},
		{text: one + one, status: 400, offset: 18},
		{text: `[` + one + `,]`, status: 400, offset: 20},
		{text: `[` + one, status: 400, offset: 19},
		{text: `{"events":[` + one + `]`, status: 400, offset: 30},
		{text: `{"event_name":"a",}`, status: 400, offset: 18},
		{text: `{"event_name":"a"`, status: 400, offset: 17},
		{text: `{"event_name"`, status: 400, offset: 13},
		{text: `{`, status: 400, offset: 1},
		{text: one + "\n\n" + one + "\r\n", lines: true, events: 2},
		{text: one + "\n{\"event_name\":\n" + one, lines: true, events: 2, bad: 1},
		{text: one + "\n" + one + one + "\n5\n" + one[:9], lines: true, events: 1, bad: 3},
		{text: "", lines: true},
		{text: "\n \n", lines: true},
	} {
		d, events, m := decode(t, DefaultConfig(), tt.text, tt.lines)
		if m != nil {
			if m.status != tt.status || m.offset != tt.offset {
				t.Errorf("%q: %+v; want status %d, offset %d", tt.text, *m, tt.status, tt.offset)
			}
			continue
		}
		if tt.status != 0 || len(events) != tt.events || len(d.rejected) != tt.bad || d.count != tt.events+tt.bad {
			t.Errorf("%q: %d events, rejected %+v, count %d; want %d, %d, status %d", tt.text, len(events), d.rejected,
				d.count, tt.events, tt.bad, tt.status)
		}
	}
}

// TestOneBadEventOfEachKindAmongGoodOnes is the table of what clients get wrong.
func TestOneBadEventOfEachKindAmongGoodOnes(t *testing.T) {
	good := `{"event_name":"ok"}`
	for _, tt := range []struct{ bad, field, reason string }{
		{`{}`, "event_name", "required"},
		{`{"event":"x"}`, "event", `did you mean "event_name"?`},
		{`{"event_nam":"x"}`, "event_nam", `did you mean "event_name"?`},
		{`{"userId":"x","event_name":"y"}`, "userId", `did you mean "user_id"?`},
		{`{"event_name":"x","zzzzzz":1}`, "zzzzzz", "put it into properties"},
		{`{"event_name":""}`, "event_name", "must not be empty"},
		{`{"event_name":null}`, "event_name", "required"},
		{`{"event_name":5}`, "event_name", "must be a string, not the number 5"},
		{`{"event_name":"x","event_id":50172}`, "event_id", "must be a string, not the number 50172"},
		{`{"event_name":"x","event_name":"x"}`, "event_name", "twice"},
		{`{"event_name":"x","user_id":"a\u0000b"}`, "user_id", "U+0000"},
		{"{\"event_name\":\"x\",\"user_id\":\"a\x00b\"}", "user_id", "U+0000"},
		{`{"event_name":"x","properties":{"k\u0000":"v"}}`, "properties", "U+0000"},
		{`{"event_name":"x","properties":{"k":"\u0000"}}`, "properties", "U+0000"},
		{`{"event_name":"x","event_id":"\u0000"}`, "event_id", "U+0000"},
		{`{"event_name":"x","properties":{"k":"\ud800"}}`, "properties", "surrogate"},
		{`{"event_name":"\udead"}`, "event_name", "surrogate"},
		{`{"event_name":"x","k\ud800":1}`, "k\\ud800", "surrogate"},
		{"{\"event_name\":\"x\",\"referrer\":\"\xff\"}", "referrer", "UTF-8"},
		{`{"event_name":"x","properties":{"k":1e200000}}`, "properties", "range"},
		{`{"event_name":"x","properties":` + strings.Repeat(`{"a":`, 200) + `1` + strings.Repeat(`}`, 200) + `}`,
			"properties", "100 levels"},
		{`{"event_name":"x","properties":[1]}`, "properties", "must be a JSON object, not the array [1]"},
		{`{"event_name":"x","properties":"{}"}`, "properties", "must be a JSON object"},
		{`{"event_name":"x","occurred_at":"yesterday"}`, "occurred_at", `not "yesterday"`},
		{`{"event_name":"x","occurred_at":"2026-11-30T12:00:00"}`, "occurred_at", "offset"},
		{`{"event_name":"x","occurred_at":1764500000}`, "occurred_at", "not the number 1764500000"},
		{`{"event_name":"x","occurred_at":"2020-01-01T00:00:00Z"}`, "occurred_at", "ingest.max-age"},
		{`{"event_name":"x","occurred_at":"2026-12-30T00:00:00Z"}`, "occurred_at", "ingest.max-ahead"},
		{`{"event_name":"x","event_id":"` + strings.Repeat("i", 513) + `"}`, "event_id", "513 bytes long; 512"},
		{`{"event_name":"` + strings.Repeat("n", 201) + `"}`, "event_name", "201 bytes"},
		{`{"event_name":"x","page_url":"` + strings.Repeat("u", 9000) + `"}`, "page_url", "9000 bytes"},
		{`{"event_name":"x","properties":{"k":"` + strings.Repeat("u", 2<<20) + `"}}`, "", "ingest.max-event-bytes"},
		{`"event"`, "", "must be a JSON object"},
	} {
		text := "[" + good + "," + tt.bad + "," + good + "]"
		d, events, m := decode(t, DefaultConfig(), text, false)
		if m != nil {
			t.Errorf("%.200q: %+v; want only one event rejected", tt.bad, *m)
			continue
		}
		if len(events) != 2 || len(d.rejected) != 1 || d.rejected[0].index != 1 {
			t.Errorf("%.200q: %d events, rejected %+v; want 2, and index 1", tt.bad, len(events), d.rejected)
			continue
		}
		if r := d.rejected[0]; r.field != tt.field || !strings.Contains(r.reason, tt.reason) || r.cause == "" {
			t.Errorf("%.200q: rejected %+v; want field %q and a reason with %q", tt.bad, r, tt.field, tt.reason)
		}
	}
}

// TestOneElementThatIsNotJSON costs only itself, by its index and the byte of the body, wherever it can be cut out.
func TestOneElementThatIsNotJSON(t *testing.T) {
	native := `{"event_name":"a\"b","user_id":"u"}`
	call := `{"type":"track","event":"x","userId":"u"}`
	captured := `{"event":"x","distinct_id":"u"}`
	cloud := `{"specversion":"1.0","type":"x","source":"/s","id":"1"}`
	array := [2]string{"[", "]"}
	for _, in := range []struct {
		name   string
		around [2]string
		good   string
		decode func(d *decoder, body []byte) *malformed
	}{
		{"array", array, native, (*decoder).json},
		{"events", [2]string{`{"events": [`, `]}`}, native, (*decoder).json},
		{"Segment", [2]string{`{"batch":[`, `],"writeKey":"k","sentAt":"x"}`}, call,
			func(d *decoder, body []byte) *malformed { return d.segment(input{body: body}) }},
		{"PostHog", [2]string{`{"api_key":"k","batch":[`, `],"sent_at":"x"}`}, captured, posthogBody},
		{"PostHog's array", array, captured, posthogBody},
		{"CloudEvents", array, cloud, func(d *decoder, body []byte) *malformed {
			var h fasthttp.RequestHeader
			h.SetContentType("application/cloudevents-batch+json")
			return d.cloudevents(input{body: body, header: &h})
		}},
	} {
		for _, bad := range []struct {
			text string // at the "^" stands what is not JSON
			cut  bool
		}{
			{`^NaN`, true},
			{`{"a":{"n":^NaN}}`, true},
			{`{"a":[1,-^Infinity]}`, true},
			{`{"a":"^\x00"}`, true},
			{`{"event_name":"a\"b\\","a":^undefined}`, true},
			{`{"event_name":"a\"b",^}`, true},
			{`{^'a':1}`, true},
			{`{"a":[1,2^}]`, false},
			{`{"a":{"b":1},^{"event":"x"}`, false},
			{`^`, false},
		} {
			text := in.around[0] + in.good + "," + bad.text + "," + in.good + in.around[1]
			at := strings.IndexByte(text, '^')
			text = strings.Replace(text, "^", "", 1)
			var d decoder
			cfg := DefaultConfig()
			d.reset(&cfg, 0, now)
			m := in.decode(&d, []byte(text))
			if !bad.cut {
				if m == nil || m.status != 400 || m.offset != at {
					t.Errorf("%s, %s: %+v; want status 400 and offset %d", in.name, text, m, at)
				}
				continue
			}
			if m != nil || len(d.take()) != 2 || len(d.rejected) != 1 || d.rejected[0].index != 1 ||
				!strings.Contains(d.rejected[0].reason, fmt.Sprintf("at byte %d of the body", at)) {
				t.Errorf("%s, %s: %+v, %d events, rejected %+v; want index 1, byte %d", in.name, text, m, len(d.events),
					d.rejected, at)
			}
			if strings.Contains(in.around[1], "writeKey") && d.key != "k" {
				t.Errorf("%s, %s: the key is %q", in.name, text, d.key)
			}
		}
	}
}

func posthogBody(d *decoder, body []byte) *malformed {
	return d.posthog(input{body: body, header: &fasthttp.RequestHeader{}})
}

func TestIdentity(t *testing.T) {
	cfg := DefaultConfig()
	received := now.Truncate(time.Microsecond)
	inV7 := func(tm time.Time) string { return pipeline.NewUUIDv7(tm).String() }
	get := func(fields string) pipeline.Event {
		t.Helper()
		d, events, m := decode(t, cfg, `{"event_name":"x",`+fields+`}`, false)
		if m != nil || len(events) != 1 {
			t.Fatalf("%s: %v, rejected %+v", fields, m, d.rejected)
		}
		return events[0]
	}
	for _, fields := range []string{`"event_id":""`, `"event_id":null`, `"user_id":"u"`} {
		e := get(fields)
		if inside, ok := e.ID.Time(); !ok || !inside.Equal(now.Truncate(time.Millisecond)) ||
			!e.OccurredAt.Equal(received) || e.TimeUnknown {
			t.Errorf("%s: %+v; want a UUIDv7 of the receive time, and that time", fields, e)
		}
	}
	if e := get(`"event_id":"order 17/é"`); e.ID != pipeline.HashUUID("order 17/é") || e.ClientID != "order 17/é" ||
		!e.TimeUnknown || !e.OccurredAt.Equal(received) {
		t.Errorf("an id that is no UUID: %+v", e)
	}
	if e := get(`"event_id":"` + idV4 + `"`); e.ClientID != "" || !e.TimeUnknown || !e.OccurredAt.Equal(received) {
		t.Errorf("a UUID without a time: %+v", e)
	}
	if e := get(`"event_id":"` + idV4 + `","occurred_at":"2026-11-29T00:00:00Z"`); e.TimeUnknown ||
		!e.OccurredAt.Equal(time.Date(2026, 11, 29, 0, 0, 0, 0, time.UTC)) {
		t.Errorf("a UUID and a time: %+v", e)
	}
	yesterday := now.Add(-24 * time.Hour).Truncate(time.Millisecond)
	if e := get(`"event_id":"` + inV7(yesterday) + `"`); e.TimeUnknown || !e.OccurredAt.Equal(yesterday) {
		t.Errorf("a UUIDv7 of yesterday: %+v; want its time", e)
	}
	if e := get(`"event_id":"` + inV7(now.Add(-500*24*time.Hour)) + `"`); !e.TimeUnknown || !e.OccurredAt.Equal(received) {
		t.Errorf("a UUIDv7 older than max-age: %+v; want its time unknown", e)
	}
	d, _, _ := decode(t, cfg, `{"event_name":"x","event_id":"`+inV7(now.Add(72*time.Hour))+`"}`, false)
	if len(d.rejected) != 1 || d.rejected[0].field != "event_id" {
		t.Errorf("a UUIDv7 beyond max-ahead: rejected %+v; want event_id", d.rejected)
	}
}

func TestKeepUnknownFields(t *testing.T) {
	cfg := DefaultConfig()
	cfg.KeepUnknownFields = true
	for _, tt := range []struct{ text, want string }{
		{`{"event_name":"x","n": 1.10,"properties": { "a":1 } ,"o":{"p":[1e3]}}`, `{"n": 1.10,"o":{"p":[1e3]}, "a":1 }`},
		{`{"event_name":"x","n":1}`, `{"n":1}`},
		{`{"event_name":"x","n":1,"properties":{ }}`, `{"n":1 }`},
		{`{"event_name":"x","n":1,"properties":null}`, `{"n":1}`},
		{`{"event_name":"x","a":1,"properties":{"a":2}}`, `{"a":1,"a":2}`},
		{`{"event_name":"x","\u0061":1,"properties":{"a":2}}`, `{"\u0061":1,"a":2}`},
		{`{"event_name":"x","properties":{"a":2}}`, `{"a":2}`},
	} {
		// Twice in one request, so that the memory of the one is not that of the other.
		d, events, m := decode(t, cfg, "["+tt.text+","+strings.Replace(tt.text, "1", "7", 1)+"]", false)
		if m != nil || len(events) != 2 || string(events[0].Properties) != tt.want {
			t.Errorf("%s: %v %+v, %d events; want properties %q", tt.text, m, d.rejected, len(events), tt.want)
			continue
		}
		if !json.Valid(events[1].Properties) {
			t.Errorf("%s: properties %q are no JSON", tt.text, events[1].Properties)
		}
	}
	for _, text := range []string{`{"event_name":"x","n":1,"n":2}`, `{"event_name":"x","n":1,"\u006e":2}`,
		`{"event_name":"x","n":"\u0000"}`, `{"event_name":"x","n\u0000":1}`} {
		if d, _, _ := decode(t, cfg, text, false); len(d.rejected) != 1 {
			t.Errorf("%s: rejected %+v; want one", text, d.rejected)
		}
	}
}

func TestTooManyEvents(t *testing.T) {
	cfg := DefaultConfig()
	cfg.MaxEvents = 2
	for _, lines := range []bool{false, true} {
		text := `[{},{},{}]`
		if lines {
			text = "{}\n{}\n{}"
		}
		if _, _, m := decode(t, cfg, text, lines); m == nil || m.status != 413 || !strings.Contains(m.detail,
			"ingest.max-events") {
			t.Errorf("three events of two (lines %v): %+v; want 413", lines, m)
		}
	}
}

// FuzzDecode holds the promises of the decoder against any input: it does not crash, each event is told once,
// and what it takes is valid.
func FuzzDecode(f *testing.F) {
	for _, text := range hostile.Texts {
		f.Add([]byte(text), false, false)
		f.Add([]byte(`{"event_name":"x","properties":{"v":`+text+`}}`), false, false)
		f.Add([]byte(`[{"event_name":"x","a":`+text+`,"properties":{}},{"event_name":"y"}]`), true, false)
		f.Add([]byte("{\"event_name\":\"x\"}\n"+text+"\n{}"), false, true)
	}
	f.Add([]byte(`{"event_name":"x","event_id":"order","occurred_at":"2026-11-30T00:00:00+01:00"}`), true, true)
	f.Fuzz(func(t *testing.T, text []byte, keep, lines bool) {
		cfg := DefaultConfig()
		cfg.KeepUnknownFields = keep
		d := new(decoder)
		d.reset(&cfg, 1, now)
		body := slices.Clone(text)
		var m *malformed
		if lines {
			m = d.lines(body)
		} else {
			m = d.json(body)
		}
		if m != nil {
			if m.offset < 0 || m.offset > len(text) || m.detail == "" {
				t.Fatalf("%q: %+v", text, *m)
			}
			return
		}
		events := d.take()
		if len(events)+len(d.rejected) != d.count {
			t.Fatalf("%q: %d events and %d rejected of %d", text, len(events), len(d.rejected), d.count)
		}
		last := -1
		for _, r := range d.rejected {
			if r.index <= last || r.index >= d.count || r.reason == "" || r.cause == "" {
				t.Fatalf("%q: rejected %+v after index %d of %d", text, r, last, d.count)
			}
			last = r.index
		}
		for _, e := range events {
			if e.Name == "" || e.ID == (pipeline.UUID{}) && !strings.Contains(string(text), "00000000-0000") ||
				e.OccurredAt.IsZero() {
				t.Fatalf("%q: incomplete event %+v", text, e)
			}
			if e.Properties != nil {
				if s := scanned(e.Properties, maxDepth+1); s.Fault != "" || s.Flaw != jsontext.FlawNone || e.Properties[0] != '{' {
					t.Fatalf("%q: properties %q: %s, flaw %d", text, e.Properties, s.Fault, s.Flaw)
				}
			}
		}
	})
}

// scanned is a scanner that has been over text, which should be one value.
func scanned(text []byte, depth int) *jsontext.Scanner {
	s := &jsontext.Scanner{MaxDepth: depth, MaxDigits: jsontext.MaxDigits}
	s.Reset(text)
	if i := s.Value(0); i >= 0 && i < len(text) {
		s.Fail(i, "more follows")
	}
	return s
}

func BenchmarkDecode(b *testing.B) {
	for _, n := range []int{1, 100, 1000} {
		b.Run(fmt.Sprintf("events=%d", n), func(b *testing.B) { decodes(b, n, false) })
		b.Run(fmt.Sprintf("events=%d/traced", n), func(b *testing.B) { decodes(b, n, true) })
	}
}

// decodes decodes bodies of n events. traced: each with the sampled trace of its request.
func decodes(b *testing.B, n int, traced bool) {
	text := []byte("[" + strings.Join(sampleEvents(n), ",") + "]")
	header := &fasthttp.RequestHeader{}
	header.Set("Traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
	cfg := DefaultConfig()
	cfg.TraceContext = traced
	d := new(decoder)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	start := cpu()
	for b.Loop() {
		d.reset(&cfg, 1, now)
		m := d.json(text)
		events := d.take()
		if d.traced {
			setTraces(events, requestTrace(header))
		}
		if m != nil || len(events) != n || (events[0].Trace != nil) != traced {
			b.Fatal(m, d.rejected)
		}
	}
	events := float64(b.N) * float64(n)
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/events, "ns/event")
	b.ReportMetric(float64((cpu()-start).Nanoseconds())/events, "cpu-ns/event")
}

// cpu is what the process has used so far, which other processes on the machine do not change.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
