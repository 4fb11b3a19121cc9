package ingest

import (
	"fmt"
	"strings"
	"testing"

	"sluice.example/sluice/internal/tenants"
)

// TestNumbersThatArePrintedLong: a number costs what PostgreSQL prints for it, wherever it stands, and only its event.
func TestNumbersThatArePrintedLong(t *testing.T) {
	d := open(t, &memory{}, tenants.Set{}, nil)
	const cloud = "application/cloudevents+json"
	for _, number := range []string{"1e131071", "-1e131071", "1e-16383", strings.Repeat("7", 401)} {
		for _, tt := range []struct{ path, media, body, field string }{
			{"/v1/events", "", `[{"event_name":"a","properties":{"n":%s}},{"event_name":"b"}]`, "properties"},
			{"/v1/events", "", `[{"event_name":"a","properties":{"l":[1,{"n":[%s]}]}},{"event_name":"b"}]`, "properties"},
			{"/v1/events", "", `[{"event_name":"a","event_id":%s},{"event_name":"b"}]`, "event_id"},
			{"/v1/batch", "", `{"batch":[{"type":"track","event":"a","userId":"u","context":{"n":%s}},` +
				`{"type":"track","event":"b","userId":"u"}]}`, "context"},
			{"/v1/batch", "", `{"batch":[{"type":"track","event":"a","userId":"u","extra":%s},` +
				`{"type":"track","event":"b","userId":"u"}]}`, "extra"},
			{"/batch", "", `{"api_key":"k","batch":[{"event":"a","distinct_id":"u","properties":{"n":%s}},` +
				`{"event":"b","distinct_id":"u"}]}`, "properties"},
			{"/v1/cloudevents", "application/cloudevents-batch+json", `[{"specversion":"1.0","id":"1","source":"s","type":"a",` +
				`"data":{"n":%s}},{"specversion":"1.0","id":"2","source":"s","type":"b"}]`, "data"},
		} {
			r := d.do("POST", tt.path, strings.NewReader(fmt.Sprintf(tt.body, number)), "Content-Type", tt.media)
			if r.status != 200 || r.json.Stored != 1 || r.json.Rejected != 1 || len(r.json.Events) != 1 ||
				r.json.Events[0].Index != 0 || r.json.Events[0].Field != tt.field ||
				!strings.Contains(r.json.Events[0].Reason, "400 digits") {
				t.Errorf("%s %.20s in %s: %d %s; want the first rejected for %s", tt.path, number, tt.body, r.status, r.body,
					tt.field)
			}
		}
		r := d.do("POST", "/v1/cloudevents", strings.NewReader(
			`{"specversion":"1.0","id":"1","source":"s","type":"a","data":[`+number+`]}`), "Content-Type", cloud)
		if r.status != 422 || !strings.Contains(r.body, "400 digits") {
			t.Errorf("data [%.20s]: %d %s; want 422", number, r.status, r.body)
		}
	}
}

// TestEventCountsAsItIsPrinted: the bound on an event is one on what its readers get.
func TestEventCountsAsItIsPrinted(t *testing.T) {
	d := open(t, &memory{}, tenants.Set{}, func(c *Config) { c.MaxEventBytes = 4096 })
	const native = `{"event_name":"a","properties":{"l":[%s1]}}`
	const track = `{"batch":[{"type":"track","event":"a","userId":"u","context":{"l":[%s1]}}]}`
	const shared = `{"batch":[{"type":"track","event":"a","userId":"u"}],"context":{"l":[%s1]}}`
	for _, tt := range []struct {
		what, path, body, piece string
		n                       int
		taken                   bool
	}{
		{"exponents", "/v1/events", native, "1e399,", 9, true},
		{"exponents", "/v1/events", native, "1e399,", 11, false},
		{"fractions", "/v1/events", native, "1e-390,", 11, false},
		{"exponents in a context", "/v1/batch", track, "1e399,", 9, true},
		{"exponents in a context", "/v1/batch", track, "1e399,", 11, false},
		{"a context beside the batch", "/v1/batch", shared, "1e399,", 11, false},
		{"a context beside the batch", "/v1/batch", shared, "1234567,", 430, true},
		{"a context beside the batch", "/v1/batch", shared, "1234567,", 450, false},
		{"commas", "/v1/events", native, "1,", 1340, true},
		{"commas", "/v1/events", native, "1,", 1380, false},
		{"escapes", "/v1/events", native, `"\u0001",`, 440, false},
		{"escapes", "/v1/events", native, `"\u0001",`, 400, true},
		{"spaces that are not printed", "/v1/events", native, "1, ", 1340, true},
	} {
		r := d.do("POST", tt.path, strings.NewReader(fmt.Sprintf(tt.body, strings.Repeat(tt.piece, tt.n))))
		if taken := r.status == 200 && r.json.Stored == 1; taken != tt.taken ||
			!taken && !strings.Contains(r.body, "(ingest.max-event-bytes)") {
			t.Errorf("%d %s %q: %d %s; want taken: %v", tt.n, tt.what, tt.piece, r.status, r.body, tt.taken)
		}
	}
}

// TestContextBesideABatchIsBounded: it is stored with each call, so that 32 MiB of body could become 40 GB.
func TestContextBesideABatchIsBounded(t *testing.T) {
	d := open(t, &memory{discard: true}, tenants.Set{}, func(c *Config) { c.MaxDecodedBytes = 1 << 20 })
	call := `{"type":"track","event":"a","userId":"u"}`
	body := `{"context":{"a":"` + strings.Repeat("x", 10_000) + `"},"batch":[` + strings.Repeat(call+",", 199) +
		call + `]}`
	r := d.do("POST", "/v1/batch", strings.NewReader(body))
	if r.status != 200 || r.json.Stored != 104 || r.json.Rejected != 96 || r.json.Events[0].Field != "context" {
		t.Errorf("%d: %d stored, %d rejected (%.300s); want 104 and 96", r.status, r.json.Stored, r.json.Rejected, r.body)
	}
}
