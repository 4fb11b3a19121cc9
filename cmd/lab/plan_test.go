package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sluice.example/sluice/bench"
	"sluice.example/sluice/bench/capacity"
)

// sweepFile writes an ingest sweep of one point.
func sweepFile(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "ingest.json")
	err := bench.WriteJSON(file, bench.Sweep{
		Kind: "ingest",
		Machine: bench.Machine{Cores: 2, Settings: map[string]string{"max_connections": "100",
			"superuser_reserved_connections": "3"}},
		Base: bench.Base{Shape: bench.Shape{PerRequest: 100, Matching: 0.05}, Connections: 64},
		Points: []bench.Point{{Settings: map[string]string{"writers": "2", "batch": "2000", "max-wait": "5ms"},
			Rate:    bench.Spread{Median: 80_000},
			Latency: &bench.Latency{P99: 30}, LatencyRate: 40_000, CPU: bench.CPU{Program: 4, PostgreSQL: 16, Generator: 2},
			WALBytes: 500, DiskBytes: 450}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return file
}

func TestPlanCommand(t *testing.T) {
	t.Parallel()
	file := sweepFile(t)
	status, out, errs := runCommand(t, nil, "plan", "--from", file, "--rate", "30000", "--matching", "5%", "--receiver",
		"80ms", "--p99", "100ms")
	if status != 0 {
		t.Fatalf("status %d: %s", status, errs)
	}
	for _, want := range []string{"Target: 30000 events/s, 5 % matching", "One machine like the measured one is enough",
		"buffer.writers                   2",
		"What limits, the first one first", "disk for events                  1.17 TB a day", "I don't know, measure this",
		"lab bench deliver --receiver-latency 80ms"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	status, out, _ = runCommand(t, nil, "plan", "--from", file, "--rate", "30000", "--json")
	var plan capacity.Plan
	if err := json.Unmarshal([]byte(out), &plan); status != 0 || err != nil || !plan.Fits {
		t.Errorf("as JSON: status %d, %v, %+v", status, err, plan)
	}
	for _, args := range [][]string{{}, {"--rate", "1"}, {"--from", file},
		{"--from", file, "--rate", "1", "--matching", "105%"},
		{"--from", file, "--from", file, "--rate", "1"}, {"--from", file, "--rate", "1", "--headroom", "95%"}} {
		if status, _, errs := runCommand(t, nil, append([]string{"plan"}, args...)...); status != 2 {
			t.Errorf("plan %q: status %d (%s), want 2", args, status, errs)
		}
	}
}

func TestBenchRefusesWrongCalls(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"inget"}, {"ingest", "--sweep", "leash=1m"}, {"ingest", "--sweep", "batch=many"},
		{"deliver", "--messages", "0"},
		{"ingest", "--matching", "lots"}, {"ingest", "more"}, {"--quik"}} {
		if status, _, errs := runCommand(t, nil, append([]string{"bench"}, args...)...); status != 2 {
			t.Errorf("bench %q: status %d (%s), want 2", args, status, errs)
		}
	}
	if _, _, errs := runCommand(t, nil, "bench", "inget"); !strings.Contains(errs, `did you mean "ingest"?`) {
		t.Errorf("no hint for a mistyped word: %s", errs)
	}
}

func TestRewriteFigures(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "performance.md")
	if err := os.WriteFile(file, []byte("before\n<!-- figures -->\nold\n<!-- /figures -->\nafter\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := rewriteFigures(file, &bench.Report{Command: "make bench", Results: []bench.Result{{Name: "ingest",
		Title: "all of it"}}}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if s := string(text); !strings.HasPrefix(s, "before\n<!-- figures -->\n`make bench`") ||
		!strings.Contains(s, "| ingest: all of it |") || strings.Contains(s, "old") ||
		!strings.HasSuffix(s, "<!-- /figures -->\nafter\n") {
		t.Errorf("rewritten to\n%s", s)
	}
}
