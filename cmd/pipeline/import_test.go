package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
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
		if r.URL.Path != "/v1/events" || r.Header.Get("Content-Type") != "application/x-ndjson" {
			w.WriteHeader(415)
			return
		}
		if d.before != nil && d.before(w, d.requests, body) {
			return
		}
		var a answer
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
		_ = json.NewEncoder(w).Encode(map[string]any{"stored": a.Stored, "duplicate": a.Duplicate, "rejected": a.Rejected, "events": events})
	}))
	t.Cleanup(d.Close)
	return d
}

func importLines(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "{\"event_name\":\"e\",\"occurred_at\":\"2026-11-30T12:00:00Z\",\"properties\":{\"n\":%d}}\n", i)
	}
	return b.String()
}

func TestImportStoresEachLineOnce(t *testing.T) {
	d := startDoor(t)
	file := writeFile(t, "in.ndjson", importLines(1003)+"\n  \n"+`{"event_id":"given","event_name":"last, without a line break"}`)
	status, out, errOut := runCommand(t, []string{"SLUICE_WRITE_KEY=k1"}, "import", file, "--to", d.URL, "--batch=100", "--requests", "3")
	if status != 0 || len(d.stored) != 1004 || d.repeats != 0 || d.stored["given"] == "" || !d.keys["Bearer k1"] {
		t.Fatalf("status %d, %d stored, %d repeats, keys %v\n%s%s", status, len(d.stored), d.repeats, d.keys, out, errOut)
	}
	if !strings.Contains(out, "1004 stored, 0 duplicate, 0 rejected") {
		t.Errorf("printed %q", out)
	}
	requests := d.requests
	if status, out, _ = runCommand(t, nil, "import", file, "--to", d.URL); status != 0 || d.requests != requests || !strings.Contains(out, "completely before") {
		t.Errorf("a second run: status %d, %d more requests\n%s", status, d.requests-requests, out)
	}
	// From the start, in batches of another size: every id comes out as before.
	if status, out, errOut = runCommand(t, nil, "import", "--restart", file, "--to", d.URL, "--batch", "7"); status != 0 || len(d.stored) != 1004 || d.repeats != 1004 {
		t.Errorf("--restart: status %d, %d stored, %d repeats\n%s%s", status, len(d.stored), d.repeats, out, errOut)
	}
}

func TestImportResumes(t *testing.T) {
	d := startDoor(t)
	d.before = func(w http.ResponseWriter, request int, _ []byte) bool {
		if request > 5 {
			w.WriteHeader(403)
		}
		return request > 5
	}
	file := writeFile(t, "in.ndjson", strings.Replace(importLines(1000), `"e"`, `"bad"`, 1))
	status, out, errOut := runCommand(t, nil, "import", file, "--to", d.URL, "--batch", "10", "--requests", "1")
	if status != 1 || !strings.Contains(errOut, "the same command goes on") {
		t.Fatalf("status %d, want 1\n%s%s", status, out, errOut)
	}
	stored := len(d.stored)
	if stored != 49 {
		t.Fatalf("%d stored by 5 requests of 10 with one bad event, want 49", stored)
	}
	d.mu.Lock()
	d.before = nil
	d.mu.Unlock()
	status, out, errOut = runCommand(t, nil, "import", file, "--to", d.URL, "--batch", "10", "--requests", "3")
	if status != 3 || len(d.stored) != 999 || !strings.Contains(out, "going on after line") {
		t.Fatalf("status %d, want 3; %d stored, want 999\n%s%s", status, len(d.stored), out, errOut)
	}
	if d.repeats != 0 {
		t.Errorf("%d acknowledged events were sent again", d.repeats)
	}
	rejected, err := os.ReadFile(file + ".rejected.ndjson")
	if err != nil || bytes.Count(rejected, []byte("\n")) != 1 || !strings.HasPrefix(string(rejected), `{"line":1,"field":"event_name","reason":"is bad","event":{"event_id":`) {
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
	if status, out, _ = runCommand(t, nil, "import", file, "--to", d.URL); status != 3 || len(d.stored) != 1000 || d.requests != requests+1 {
		t.Errorf("after growth: status %d, %d stored, %d requests\n%s", status, len(d.stored), d.requests-requests, out)
	}
	// Another file under the same name is not taken for it.
	if err := os.WriteFile(file, []byte(importLines(2000)), 0o600); err != nil {
		t.Fatal(err)
	}
	if status, _, errOut = runCommand(t, nil, "import", file, "--to", d.URL); status != 1 || !strings.Contains(errOut, "--restart") {
		t.Errorf("another file: status %d\n%s", status, errOut)
	}
}

// An interrupted import has saved what was acknowledged.
func TestImportInterrupted(t *testing.T) {
	d := startDoor(t)
	ctx, cancel := context.WithCancel(context.Background())
	d.before = func(_ http.ResponseWriter, request int, _ []byte) bool {
		if request == 4 {
			cancel()
		}
		return false
	}
	file := writeFile(t, "in.ndjson", importLines(1000))
	var out, errOut bytes.Buffer
	status := program.Dispatch(ctx, []string{"import", file, "--to", d.URL, "--batch=10", "--requests=1"}, cli.Env{Stdout: &out, Stderr: &errOut})
	var c checkpoint
	text, err := os.ReadFile(file + ".import")
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	if status != 1 || err != nil || c.Line < 30 || c.Line > 40 || !strings.Contains(errOut.String(), "interrupted") {
		t.Fatalf("status %d, checkpoint at line %d, %v\n%s%s", status, c.Line, err, out.String(), errOut.String())
	}
}

func TestImportHonoursRetryAfter(t *testing.T) {
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
	status, out, errOut := runCommand(t, nil, "import", writeFile(t, "in.ndjson", importLines(5)), "--to", d.URL)
	if status != 0 || len(d.stored) != 5 || d.repeats != 0 || len(came) != 1 {
		t.Fatalf("status %d, %d stored\n%s%s", status, len(d.stored), out, errOut)
	}
	if came[0] < time.Second {
		t.Errorf("came back after %s; Retry-After was 1 s", came[0])
	}
	d.before = func(w http.ResponseWriter, _ int, _ []byte) bool { w.WriteHeader(503); return true }
	status, _, errOut = runCommand(t, nil, "import", writeFile(t, "in.ndjson", importLines(5)), "--to", d.URL, "--retry-for=50ms")
	if status != 1 || !strings.Contains(errOut, "gave up after 50ms") {
		t.Errorf("status %d\n%s", status, errOut)
	}
}

func TestImportRejects(t *testing.T) {
	d := startDoor(t)
	long := `{"event_name":"` + strings.Repeat("x", maxImportLine) + `"}`
	file := writeFile(t, "in.ndjson", strings.Join([]string{
		`{"event_name":"good"}`, `not JSON`, `["an array"]`, `{"event_name":"bad"}`, `{"event_id":null,"event_name":"good"}`,
		`{"event_name":"unreadable"}`, long, `{}`, `{ "event_id" : "" , "event_name":"good"}`, "\xff\xfe",
	}, "\n"))
	rejectedFile := filepath.Join(t.TempDir(), "r.ndjson")
	status, out, errOut := runCommand(t, nil, "import", file, "--to", d.URL, "--rejected", rejectedFile)
	if status != 3 || len(d.stored) != 4 {
		t.Errorf("status %d, want 3; %d stored, want 4\n%s%s", status, len(d.stored), out, errOut)
	}
	text, err := os.ReadFile(rejectedFile)
	if err != nil {
		t.Fatal(err)
	}
	got := map[int64]string{}
	for line := range bytes.Lines(text) {
		var r rejectedLine
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		got[r.Line] = r.Reason
	}
	for line, want := range map[int64]string{2: "not a JSON object", 3: "not a JSON object", 4: "is bad", 6: "can't be read", 7: "bytes long", 10: "not a JSON object"} {
		if !strings.Contains(got[line], want) {
			t.Errorf("line %d rejected with %q, want %q", line, got[line], want)
		}
	}
	if len(got) != 6 {
		t.Errorf("rejected %v, want six lines", got)
	}
}

func TestImportStandardInput(t *testing.T) {
	d := startDoor(t)
	for range 2 {
		var out bytes.Buffer
		status := program.Dispatch(context.Background(), []string{"import", "-", "--to", d.URL}, cli.Env{Stdin: strings.NewReader(importLines(20)), Stdout: &out, Stderr: &out})
		if status != 0 || len(d.stored) != 20 {
			t.Fatalf("status %d, %d stored\n%s", status, len(d.stored), out.String())
		}
	}
	if d.repeats != 20 {
		t.Errorf("the same input again: %d repeats, want 20", d.repeats)
	}
}
