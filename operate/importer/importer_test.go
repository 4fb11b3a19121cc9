package importer

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice.example/sluice/internal/cli"
)

// fakeDoor answers POST /v1/events as the pipeline does: it knows duplicates by event_id, rejects events named "bad",
// and refuses a request with an event named "unreadable" as a whole. before may answer a request itself.
type fakeDoor struct {
	*httptest.Server
	before func(w http.ResponseWriter, request int, body []byte) bool

	mu       sync.Mutex
	requests int
	stored   map[string]string // event_id -> line
	repeats  int
	keys     map[string]bool
	prefer   string // of the last request
}

func startDoor(t *testing.T) *fakeDoor {
	d := &fakeDoor{stored: map[string]string{}, keys: map[string]bool{}}
	d.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		d.requests++
		d.keys[r.Header.Get("Authorization")] = true
		d.prefer = r.Header.Get("Prefer")
		if r.URL.Path != "/v1/events" || r.Header.Get("Content-Type") != "application/x-ndjson" {
			w.WriteHeader(415)
			return
		}
		if d.before != nil && d.before(w, d.requests, body) {
			return
		}
		var a eventsAnswer
		type verdict struct {
			Index         int    `json:"index"`
			Result        string `json:"result"`
			Field, Reason string
		}
		events := []verdict{}
		i := -1
		for line := range strings.Lines(string(body)) {
			i++
			var e struct {
				EventID string `json:"event_id"`
				Name    string `json:"event_name"`
			}
			if err := json.Unmarshal([]byte(line), &e); err != nil || e.EventID == "" || e.Name == "unreadable" {
				w.WriteHeader(400)
				fmt.Fprintf(w, `{"detail":"can't be read at event %d"}`, i)
				return
			}
			switch {
			case e.Name == "bad":
				a.Rejected++
				events = append(events, verdict{i, "rejected", "event_name", "is bad"})
			case d.stored[e.EventID] != "":
				a.Duplicate++
				d.repeats++
				events = append(events, verdict{i, "duplicate", "", ""})
			default:
				a.Stored++
				d.stored[e.EventID] = line
			}
		}
		if a.Stored+a.Duplicate == 0 {
			w.WriteHeader(422)
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"stored": a.Stored, "duplicate": a.Duplicate, "rejected": a.Rejected,
			"events": events})
	}))
	t.Cleanup(d.Close)
	return d
}

// imported is what came of a run.
type imported struct {
	*Result
	err      error
	out, log string
}

// runImport imports into d, with the command's defaults as changed by the caller.
func runImport(ctx context.Context, d *fakeDoor, file, input string, change func(*Options)) imported {
	o := Options{File: file, Endpoint: d.URL + "/v1/events", Batch: 500, Requests: 4, RetryFor: 10 * time.Minute,
		ProgressEvery: 5 * time.Second}
	if change != nil {
		change(&o)
	}
	var out, log bytes.Buffer
	r, err := Run(ctx, o, cli.Env{Stdin: strings.NewReader(input), Stdout: &out, Stderr: &log})
	if r == nil {
		r = &Result{}
	}
	return imported{r, err, out.String(), log.String()}
}

func writeFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "in.ndjson")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func someLines(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "{\"event_name\":\"e\",\"occurred_at\":\"2026-11-30T12:00:00Z\",\"properties\":{\"n\":%d}}\n", i)
	}
	return b.String()
}

func TestEachLineIsStoredOnce(t *testing.T) {
	d := startDoor(t)
	file := writeFile(t, someLines(1003)+"\n  \n"+`{"event_id":"given","event_name":"last, without a line break"}`)
	r := runImport(t.Context(), d, file, "", func(o *Options) { o.WriteKey, o.Batch, o.Requests = "k1", 100, 3 })
	if r.err != nil || len(d.stored) != 1004 || d.repeats != 0 || d.stored["given"] == "" || !d.keys["Bearer k1"] {
		t.Fatalf("%v, %d stored, %d repeats, keys %v\n%s", r.err, len(d.stored), d.repeats, d.keys, r.log)
	}
	if r.Stored != 1004 || r.Duplicate != 0 || r.Rejected != 0 || r.Complete {
		t.Errorf("%+v; want 1004 stored", r.Result)
	}
	requests := d.requests
	if r = runImport(t.Context(), d, file, "", nil); r.err != nil || d.requests != requests || !r.Complete {
		t.Errorf("a second run: %v, %d more requests, %+v", r.err, d.requests-requests, r.Result)
	}
	// From the start, in batches of another size: every id comes out as before.
	r = runImport(t.Context(), d, file, "", func(o *Options) { o.Restart, o.Batch = true, 7 })
	if r.err != nil || len(d.stored) != 1004 || d.repeats != 1004 || r.Duplicate != 1004 {
		t.Errorf("restart: %v, %d stored, %d repeats", r.err, len(d.stored), d.repeats)
	}
}

func TestResume(t *testing.T) {
	d := startDoor(t)
	d.before = func(w http.ResponseWriter, request int, _ []byte) bool {
		if request > 5 {
			w.WriteHeader(403)
		}
		return request > 5
	}
	file := writeFile(t, strings.Replace(someLines(1000), `"e"`, `"bad"`, 1))
	r := runImport(t.Context(), d, file, "", func(o *Options) { o.Batch, o.Requests = 10, 1 })
	if r.err == nil || !strings.Contains(r.err.Error(), "the same command goes on") {
		t.Fatalf("error %v\n%s", r.err, r.log)
	}
	if len(d.stored) != 49 {
		t.Fatalf("%d stored by 5 requests of 10 with one bad event, want 49", len(d.stored))
	}
	d.mu.Lock()
	d.before = nil
	d.mu.Unlock()
	r = runImport(t.Context(), d, file, "", func(o *Options) { o.Batch, o.Requests = 10, 3 })
	if r.err != nil || r.AllRejected != 1 || r.Rejected != 0 || len(d.stored) != 999 ||
		!strings.Contains(r.out, "going on after line") {
		t.Fatalf("%v, %+v; %d stored, want 999\n%s", r.err, r.Result, len(d.stored), r.out)
	}
	if d.repeats != 0 {
		t.Errorf("%d acknowledged events were sent again", d.repeats)
	}
	const want = `{"line":1,"field":"event_name","reason":"is bad","event":{"event_id":`
	rejected, err := os.ReadFile(r.RejectedFile)
	if err != nil || bytes.Count(rejected, []byte("\n")) != 1 || !strings.HasPrefix(string(rejected), want) {
		t.Errorf("rejected file: %v\n%s", err, rejected)
	}

	// The file grows: only what is new is sent.
	f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(f, `{"event_name":"new"}`+"\n")
	f.Close()
	requests := d.requests
	if r = runImport(t.Context(), d, file, "", nil); r.err != nil || len(d.stored) != 1000 || d.requests != requests+1 {
		t.Errorf("after growth: %v, %d stored, %d requests", r.err, len(d.stored), d.requests-requests)
	}
	// Another file under the same name is not taken for it.
	if err := os.WriteFile(file, []byte(someLines(2000)), 0o600); err != nil {
		t.Fatal(err)
	}
	if r = runImport(t.Context(), d, file, "", nil); r.err == nil || !strings.Contains(r.err.Error(), "--restart") {
		t.Errorf("another file: %v", r.err)
	}
}

// An interrupted import has saved what was acknowledged.
func TestInterrupted(t *testing.T) {
	d := startDoor(t)
	ctx, cancel := context.WithCancel(t.Context())
	d.before = func(_ http.ResponseWriter, request int, _ []byte) bool {
		if request == 4 {
			cancel()
		}
		return false
	}
	file := writeFile(t, someLines(1000))
	r := runImport(ctx, d, file, "", func(o *Options) { o.Batch, o.Requests = 10, 1 })
	var c checkpoint
	text, err := os.ReadFile(file + ".import")
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	if err != nil || c.Line < 30 || c.Line > 40 || r.err == nil || !strings.Contains(r.err.Error(), "interrupted") {
		t.Fatalf("checkpoint at line %d, %v; %v", c.Line, err, r.err)
	}
}

func TestRetryAfterIsHonoured(t *testing.T) {
	d := startDoor(t)
	var refused time.Time
	var came []time.Duration
	d.before = func(w http.ResponseWriter, request int, _ []byte) bool {
		switch request {
		case 1:
			refused = time.Now()
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(429)
			return true
		case 2:
			came = append(came, time.Since(refused))
			w.WriteHeader(503)
			return true
		}
		return false
	}
	r := runImport(t.Context(), d, writeFile(t, someLines(5)), "", nil)
	if r.err != nil || len(d.stored) != 5 || d.repeats != 0 || len(came) != 1 {
		t.Fatalf("%v, %d stored\n%s", r.err, len(d.stored), r.log)
	}
	if came[0] < time.Second {
		t.Errorf("came back after %s; Retry-After was 1 s", came[0])
	}
	d.before = func(w http.ResponseWriter, _ int, _ []byte) bool { w.WriteHeader(503); return true }
	r = runImport(t.Context(), d, writeFile(t, someLines(5)), "", func(o *Options) { o.RetryFor = 50 * time.Millisecond })
	if r.err == nil || !strings.Contains(r.err.Error(), "gave up after 50ms") {
		t.Errorf("error %v", r.err)
	}
}

func TestRejected(t *testing.T) {
	d := startDoor(t)
	long := `{"event_name":"` + strings.Repeat("x", maxLine) + `"}`
	file := writeFile(t, strings.Join([]string{
		`{"event_name":"good"}`, `not JSON`, `["an array"]`, `{"event_name":"bad"}`, `{"event_id":null,"event_name":"good"}`,
		`{"event_name":"unreadable"}`, long, `{}`, `{ "event_id" : "" , "event_name":"good"}`, "\xff\xfe",
	}, "\n"))
	rejectedFile := filepath.Join(t.TempDir(), "r.ndjson")
	r := runImport(t.Context(), d, file, "", func(o *Options) { o.Rejected = rejectedFile })
	if r.err != nil || r.AllRejected != 6 || len(d.stored) != 4 {
		t.Errorf("%v, %+v; %d stored, want 4", r.err, r.Result, len(d.stored))
	}
	text, err := os.ReadFile(rejectedFile)
	if err != nil {
		t.Fatal(err)
	}
	got := map[int64]string{}
	for line := range bytes.Lines(text) {
		var r RejectedLine
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		got[r.Line] = r.Reason
	}
	for line, want := range map[int64]string{
		2: "not a JSON object", 3: "not a JSON object", 4: "is bad", 6: "can't be read", 7: "bytes long",
		10: "not a JSON object",
	} {
		if !strings.Contains(got[line], want) {
			t.Errorf("line %d rejected with %q, want %q", line, got[line], want)
		}
	}
	if len(got) != 6 {
		t.Errorf("rejected %v, want six lines", got)
	}
}

// A byte order mark is part of the file and of no line, however many files were put together; UTF-16 is named as such.
func TestByteOrderMark(t *testing.T) {
	d := startDoor(t)
	lines := strings.Split(strings.TrimSpace(someLines(4)), "\n")
	file := writeFile(t,
		byteOrderMark+lines[0]+"\n"+lines[1]+"\n"+byteOrderMark+lines[2]+"\n"+byteOrderMark+"\n"+lines[3]+"\n")
	r := runImport(t.Context(), d, file, "", nil)
	if r.err != nil || r.Stored != 4 || r.Rejected != 0 {
		t.Errorf("%v, %+v; want 4 stored and none rejected", r.err, r.Result)
	}
	for id, line := range d.stored {
		if strings.Contains(line, byteOrderMark) {
			t.Errorf("event %s was sent with the mark: %q", id, line)
		}
	}
	for _, mark := range []string{"\xff\xfe", "\xfe\xff"} {
		r := runImport(t.Context(), d, writeFile(t, mark+"{\x00}\x00\n\x00"), "", nil)
		if r.err == nil || !strings.Contains(r.err.Error(), "UTF-16") {
			t.Errorf("UTF-16: %v, %+v; want an error that says so", r.err, r.Result)
		}
	}
	r = runImport(t.Context(), d, "-", byteOrderMark+lines[0]+"\n", nil)
	if r.err != nil || r.Stored+r.Duplicate != 1 {
		t.Errorf("standard input: %v, %+v; want 1 stored", r.err, r.Result)
	}
}

// TestLastLineWithoutItsBreak: a file that grows is imported to its end, each line once and under its own number,
// wherever its end was before.
func TestLastLineWithoutItsBreak(t *testing.T) {
	line := func(id string) string { return `{"event_id":"` + id + `","event_name":"x"}` }
	for _, tt := range []struct {
		name, first, then string
		rejected          int64 // in the end
		fails             bool
	}{
		{"between two lines", line("a") + "\n", line("b") + "\n" + `{"event_name":"bad"}` + "\n", 1, false},
		{"before the line break", line("a"), "\n" + line("b"), 0, false},
		{"before CRLF", line("a"), " \r\n" + line("b"), 0, false},
		{"inside an event", line("a") + "\n" + line("b")[:7], line("b")[7:] + "\n", 0, false},
		{"inside an event, after a bad one", line("a") + "\n" + `{"event_name":"bad"}` + "\nno\n" + line("b")[:7],
			line("b")[7:], 2, false},
		{"after white space", line("a") + "\n\n  ", " " + line("b") + "\n", 0, false},
		{"after empty lines", line("a") + "\n\n\n", line("b"), 0, false},
		{"after a line that is stored", line("a"), line("b"), 0, true},
	} {
		for _, packed := range []bool{false, true} {
			pack := func(text string) string { return text }
			if packed {
				pack = gzipped
			}
			d := startDoor(t)
			file := writeFile(t, pack(tt.first))
			if r := runImport(t.Context(), d, file, "", nil); r.err != nil {
				t.Fatalf("%s: %v", tt.name, r.err)
			}
			f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
			if err == nil {
				_, err = f.WriteString(pack(tt.then))
				f.Close()
			}
			if err != nil {
				t.Fatal(err)
			}
			r := runImport(t.Context(), d, file, "", nil)
			if tt.fails {
				if r.err == nil || !strings.Contains(r.err.Error(), "--restart") {
					t.Errorf("%s (gzip: %t): %v; want an error", tt.name, packed, r.err)
				}
				continue
			}
			if r.err != nil || len(d.stored) != 2 || d.stored["b"] == "" || d.repeats != 0 || r.AllRejected != tt.rejected {
				t.Errorf("%s (gzip: %t): %v, %v stored, %d repeats, %d rejected; want a and b, and %d rejected", tt.name, packed,
					r.err, d.stored, d.repeats, r.AllRejected, tt.rejected)
			}
			text, _ := os.ReadFile(r.RejectedFile)
			if got := int64(bytes.Count(text, []byte("\n"))); got != tt.rejected {
				t.Errorf("%s (gzip: %t): the file of rejected events has %d lines, want %d:\n%s", tt.name, packed, got,
					tt.rejected, text)
			}
			text, err = os.ReadFile(file + ".import")
			var c checkpoint
			if err == nil {
				err = json.Unmarshal(text, &c)
			}
			all := strings.TrimSuffix(tt.first+tt.then, "\n")
			if want := int64(strings.Count(all, "\n") + 1); err != nil || c.Line != want {
				t.Errorf("%s (gzip: %t): line %d, %v; want %d", tt.name, packed, c.Line, err, want)
			}
			if r = runImport(t.Context(), d, file, "", nil); r.err != nil || !r.Complete {
				t.Errorf("%s (gzip: %t), again: %v, %+v; want it complete", tt.name, packed, r.err, r.Result)
			}
		}
	}
}

func gzipped(text string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write([]byte(text))
	_ = w.Close()
	return b.String()
}

// TestGzip: a compressed file, or input, is imported as its text is, with the same ids, and resumed.
func TestGzip(t *testing.T) {
	d := startDoor(t)
	d.before = func(w http.ResponseWriter, request int, _ []byte) bool {
		if request == 4 {
			w.WriteHeader(403)
		}
		return request == 4
	}
	text := byteOrderMark + someLines(1000)
	file := writeFile(t, gzipped(text))
	change := func(o *Options) { o.Batch, o.Requests = 100, 1 }
	if r := runImport(t.Context(), d, file, "", change); r.err == nil || len(d.stored) != 300 {
		t.Fatalf("%v, %d stored; want 300 before it was stopped", r.err, len(d.stored))
	}
	r := runImport(t.Context(), d, file, "", change)
	if r.err != nil || len(d.stored) != 1000 || d.repeats != 0 || r.Stored != 700 {
		t.Errorf("resumed: %v, %d stored, %d repeats", r.err, len(d.stored), d.repeats)
	}
	r = runImport(t.Context(), d, "-", gzipped(text), nil)
	if r.err != nil || len(d.stored) != 1000 || r.Duplicate != 1000 {
		t.Errorf("standard input: %v, %d stored, %+v; want 1000 duplicates", r.err, len(d.stored), r.Result)
	}
	packed := gzipped(text)
	r = runImport(t.Context(), d, writeFile(t, packed[:len(packed)/2]), "", nil)
	if r.err == nil || !strings.Contains(r.err.Error(), "gzip") {
		t.Errorf("cut off: %v; want an error that says so", r.err)
	}
}

// TestRejectedLinesByteForByte: what stood there can be had back from the file of rejected events, in UTF-8 or not.
func TestRejectedLinesByteForByte(t *testing.T) {
	d := startDoor(t)
	lines := []string{"caf\xe9 \x00 \xff", "not <JSON> \u00e9", strings.Repeat("\xfe", 3000),
		`{"event_id":"a", "event_name" : "bad", "k":"` + "caf\xe9" + ` <\u00e9>"}`}
	r := runImport(t.Context(), d, writeFile(t, strings.Join(lines, "\n")), "", nil)
	text, err := os.ReadFile(r.RejectedFile)
	if r.err != nil || err != nil {
		t.Fatal(r.err, err)
	}
	var got []string
	for line := range bytes.Lines(text) {
		var r RejectedLine
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		got = append(got, r.Text+string(r.Bytes)+string(r.Event))
	}
	if !slices.Equal(got, lines) {
		t.Errorf("got  %q\nwant %q", got, lines)
	}
}

func TestStandardInput(t *testing.T) {
	d := startDoor(t)
	for range 2 {
		r := runImport(t.Context(), d, "-", someLines(20), nil)
		if r.err != nil || len(d.stored) != 20 {
			t.Fatalf("%v, %d stored\n%s", r.err, len(d.stored), r.log)
		}
	}
	if d.repeats != 20 {
		t.Errorf("the same input again: %d repeats, want 20", d.repeats)
	}
}

// The result counts the events that rules pass by for their age, and who means them to look says so to the pipeline.
func TestOldEventsAreCounted(t *testing.T) {
	d := startDoor(t)
	var prefer []string
	line := func(id string, ago time.Duration) string {
		return fmt.Sprintf(`{"event_id":%q,"event_name":"e","occurred_at":%q}`+"\n", id,
			time.Now().Add(-ago).UTC().Format(time.RFC3339))
	}
	file := writeFile(t, line("new", time.Minute)+line("old", 80*time.Hour)+line("older",
		9000*time.Hour)+`{"event_name":"untimed"}`+"\n")
	for _, with := range []bool{false, true} {
		r := runImport(t.Context(), d, file, "", func(o *Options) { o.WithRules, o.Restart = with, true })
		if r.err != nil || r.Old != 2 || r.WithRules != with {
			t.Errorf("with rules %v: %v, %+v; want 2 old events", with, r.err, r.Result)
		}
		var out strings.Builder
		if err := r.Print(&out); err != nil {
			t.Fatal(err)
		}
		want := "2 events are older than 3d: event rules passed them by"
		if with {
			want = "2 events are older than 3d, and event rules looked at them"
		}
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in %s", want, out.String())
		}
		prefer = append(prefer, d.prefer)
	}
	if !slices.Equal(prefer, []string{"", "any-age"}) {
		t.Errorf("the pipeline was told %q, want any-age with the rules alone", prefer)
	}
}
