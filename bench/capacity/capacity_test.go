package capacity

import (
	"strings"
	"testing"
	"time"

	"sluice.example/sluice/bench"
)

func ingestSweep() *bench.Sweep {
	point := func(writers, batch string, rate, p99 float64) bench.Point {
		return bench.Point{
			Settings: map[string]string{"writers": writers, "batch": batch, "max-wait": "5ms"},
			Rate:     bench.Spread{Median: rate, Low: rate, High: rate},
			Latency:  &bench.Latency{P99: p99}, LatencyRate: rate / 2, CPU: bench.CPU{Program: 4, PostgreSQL: 16, Generator: 2},
			WALBytes: 500, DiskBytes: 450, MessageBytes: 1000, MemoryBytes: 100e6,
			Stages: map[string]float64{"transaction_us_per_event": 20, "commit_ms": 4, "transaction_ms": 25},
		}
	}
	return &bench.Sweep{Kind: "ingest",
		Machine: bench.Machine{Cores: 2, Shared: true, Settings: map[string]string{"max_connections": "100",
			"superuser_reserved_connections": "3"}},
		Base: bench.Base{Shape: bench.Shape{PerRequest: 100, Matching: 0.05}, Connections: 64},
		Points: []bench.Point{point("1", "2000", 50_000, 30), point("2", "2000", 88_000, 40),
			point("4", "2000", 90_000, 120)},
	}
}

func deliverSweep(rates map[string]float64) *bench.Sweep {
	s := &bench.Sweep{Kind: "deliver", Base: bench.Base{ReceiverLatency: 80 * time.Millisecond}}
	for concurrency, rate := range rates {
		s.Points = append(s.Points, bench.Point{Settings: map[string]string{"concurrency": concurrency, "batch": "500",
			"lease": "1m"},
			Rate: bench.Spread{Median: rate}, CPU: bench.CPU{Program: 40, PostgreSQL: 60}})
	}
	return s
}

func target(rate float64) Target {
	return Target{Rate: rate, Matching: 0.05, Receiver: 80 * time.Millisecond, P99: 100 * time.Millisecond, Headroom: 0.3,
		Retention: 30}
}

func plan(t *testing.T, ingest, deliver *bench.Sweep, target Target) *Plan {
	t.Helper()
	p, err := Make(ingest, deliver, target)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// value finds a line among settings and needs.
func (p *Plan) value(name string) Line {
	for _, l := range append(p.Settings, p.Needs...) {
		if l.Name == name {
			return l
		}
	}
	return Line{}
}

func (p *Plan) asks(text string) bool {
	for _, q := range p.Questions {
		if strings.Contains(q.What, text) && q.Measure != "" {
			return true
		}
	}
	return false
}

func TestSettings(t *testing.T) {
	p := plan(t, ingestSweep(), deliverSweep(map[string]float64{"64": 700, "256": 3000, "512": 5500}), target(30_000))
	for name, want := range map[string]string{
		"buffer.writers":                   "2", // four are 2 % faster, but over the bound on p99
		"buffer.max-events":                "2000",
		"concurrency (of the destination)": "256", // 1,500 messages/s with 30 % free: 2,143
		"deliver.claim-batch":              "500",
		"claim.lease":                      "60s",
		"p99 of the answer":                "40 ms or less", // 30,000 is below the 44,000 at which it was measured
		"disk for events":                  "1.17 TB a day", // 30,000 x 450 bytes x 86,400 s
		"disk for messages":                "129.6 GB a day",
		"WAL":                              "15 MB/s, 1.30 TB a day",
		"memory for each node":             "100 MB in use, 712.4 MB at most",
		"retain.events":                    "30d",
	} {
		if got := p.value(name); got.Value != want || got.Because == "" {
			t.Errorf("%s: %q (%s), want %q", name, got.Value, got.Because, want)
		}
	}
	if !p.Fits || p.Nodes != 1 || p.Predicted != 88_000 {
		t.Errorf("fits %v, %d nodes, predicted %g; want one machine, 88,000", p.Fits, p.Nodes, p.Predicted)
	}
	// CPU of 2 cores: 20 us an event and 5 % of 100 us a message.
	first := p.Limits[0]
	if first.What != "CPU of one machine, delivery included" || first.Rate != 80_000 {
		t.Errorf("the first limit is %+v, want CPU at 80,000", first)
	}
	for i := 1; i < len(p.Limits); i++ {
		if p.Limits[i].Rate < p.Limits[i-1].Rate {
			t.Errorf("limits are not sorted: %+v", p.Limits)
		}
	}
}

func TestWhatHeldTheRate(t *testing.T) {
	s := ingestSweep()
	p := plan(t, s, nil, target(10_000))
	if got := p.Limits[0].What; got != "CPU of one machine with everything on it" { // 88,000 x 22 us of 2 s
		t.Errorf("first limit %q, want CPU", got)
	}
	for i := range s.Points {
		s.Points[i].CPU = bench.CPU{Program: 1, PostgreSQL: 4, Generator: 1}
		s.Points[i].Stages["transaction_us_per_event"] = 22 // two writers are always at it
	}
	if got := plan(t, s, nil, target(10_000)).Limits[0].What; !strings.HasPrefix(got, "WAL and fsync") {
		t.Errorf("first limit %q, want WAL and fsync", got)
	}
	for i := range s.Points {
		s.Points[i].Stages["transaction_us_per_event"] = 5
	}
	if p := plan(t, s, nil, target(10_000)); !p.asks("clients may have been too few") {
		t.Errorf("neither CPU nor writers were used up, and nothing is asked: %+v", p.Questions)
	}
}

func TestMoreThanOneMachine(t *testing.T) {
	target := target(300_000)
	target.NodeCores = 4
	p := plan(t, ingestSweep(), deliverSweep(map[string]float64{"2000": 22_000}), target)
	// 4 us an event and 5 % of 40 us: 6 us, so a node of 4 cores takes 666,667/s, of which 30 % stay free.
	if p.Fits || p.Nodes != 1 {
		t.Errorf("fits %v with %d nodes; want one node beside PostgreSQL", p.Fits, p.Nodes)
	}
	if got := p.value("cores for PostgreSQL"); got.Value != "9" { // 300,000 x 19 us = 5.7, / 0.7
		t.Errorf("cores for PostgreSQL %q (%s), want 9", got.Value, got.Because)
	}
	if !p.asks("whether PostgreSQL scales to 9 cores") || !p.asks("whether the disk takes") || !p.asks("p99 at 300000") {
		t.Errorf("it does not say what it can't know: %+v", p.Questions)
	}
	target.Rate, target.NodeCores = 600_000, 2
	// 600,000 / (0.7 x 333,333)
	if p := plan(t, ingestSweep(), deliverSweep(map[string]float64{"4000": 44_000}), target); p.Nodes != 3 {
		t.Errorf("%d nodes, want 3", p.Nodes)
	}
}

func TestSaysWhatItDoesNotKnow(t *testing.T) {
	if p := plan(t, ingestSweep(), nil, target(30_000)); !p.asks("delivery was not measured") ||
		p.value("concurrency (of the destination)").Value != "172" {
		t.Errorf("without a delivery sweep: %+v, concurrency %+v; want a question, and 1,500 x 0.08 / 0.7", p.Questions,
			p.value("concurrency (of the destination)"))
	}
	other := deliverSweep(map[string]float64{"64": 700})
	other.Base.ReceiverLatency = time.Millisecond
	if p := plan(t, ingestSweep(), other, target(30_000)); !p.asks("against a receiver of 1ms") {
		t.Errorf("another latency is taken for the target's: %+v", p.Questions)
	}
	// 700/s is nearly what 64 senders can do in 80 ms: the end of what was tried, not of the machine.
	p := plan(t, ingestSweep(), deliverSweep(map[string]float64{"64": 700}), target(30_000))
	if !p.asks("sweep ends at 700") || !p.Fits || !p.Limits[0].Tried {
		t.Errorf("fits %v, limits %+v, questions %+v; want the end of what was tried to be no machine's limit", p.Fits,
			p.Limits, p.Questions)
	}
	many := target(30_000)
	many.Matching = 0.5
	if p := plan(t, ingestSweep(), nil, many); !p.asks("the target has 50 %") {
		t.Errorf("50 %% matching by a sweep with 5 %%: %+v", p.Questions)
	}
	strict := target(30_000)
	strict.P99 = 10 * time.Millisecond
	if p := plan(t, ingestSweep(), nil, strict); !p.asks("over the 10ms asked for") {
		t.Errorf("a bound that no point keeps: %+v", p.Questions)
	}
	broken := ingestSweep()
	for i := range broken.Points {
		broken.Points[i].Books.Lost = 1
	}
	if _, err := Make(broken, nil, target(1000)); err == nil {
		t.Error("a plan from a sweep that lost events")
	}
}
