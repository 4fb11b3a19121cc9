package main

import (
	"strings"
	"testing"

	"sluice.example/sluice/bench"
	"sluice.example/sluice/bench/capacity"
)

// What the plan tells people to set exists, and what it calls the default is the default.
func TestPlanKnowsTheSettings(t *testing.T) {
	t.Parallel()
	sweep := bench.Sweep{
		Kind:    "ingest",
		Machine: bench.Machine{Cores: 2},
		Points: []bench.Point{{
			Settings: map[string]string{"writers": "2", "batch": "2000", "max-wait": "5ms"},
			Rate:     bench.Spread{Median: 80_000},
			CPU:      bench.CPU{Program: 4, PostgreSQL: 16, Generator: 2},
		}},
	}
	plan, err := capacity.Make(&sweep, nil, capacity.Target{Rate: 1000, Matching: 0.05, P99: 1e9, Receiver: 1e6})
	if err != nil {
		t.Fatal(err)
	}
	settings := map[string]*setting{}
	for _, s := range defaultConfig().settings() {
		settings[s.key] = s
	}
	for _, line := range plan.Settings {
		if line.Name == "concurrency (of the destination)" {
			continue
		}
		s := settings[line.Name]
		if s == nil {
			t.Errorf("the plan names %s, which is no setting", line.Name)
			continue
		}
		if strings.Contains(line.Because, "the default;") && s.text() != line.Value {
			t.Errorf("%s: the plan calls %s the default, it is %s", line.Name, line.Value, s.text())
		}
	}
}
