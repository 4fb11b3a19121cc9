package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"sluice.example/sluice/bench"
	"sluice.example/sluice/bench/capacity"
	"sluice.example/sluice/internal/cli"
)

const planAbout = `Turns measurements into advice: the settings to use for a target, what limits first and at what
rate, and what the target takes in machines, cores, connections, memory and disk. Every number says where it comes
from; what the measurements do not reach is an open question with the command that answers it. docs/planning.md
explains the way.`

func planCommand(_ context.Context, args []string, env cli.Env) error {
	t := capacity.Target{}
	var from []string
	fs := cli.NewFlags(env, "plan", planAbout, `lab bench ingest --sweep batch=500,2000,writers=1,2,4 --out ingest.json
lab bench deliver --sweep concurrency=64,256 --receiver-latency 80ms --out deliver.json
lab plan --from ingest.json --from deliver.json --rate 30000 --matching 5% --receiver 80ms --p99 100ms`)
	fs.Func("from", "`file` of a sweep; give it twice for ingest and deliver",
		func(s string) error { from = append(from, s); return nil })
	fs.Float64Var(&t.Rate, "rate", 0, "`events` a second that the system has to take, at its peak")
	matching := fs.String("matching", "5%", "`share` of events that become a message")
	cli.Duration(fs, &t.Receiver, "receiver", 80*time.Millisecond, "how `long` the receiver of messages takes to answer")
	cli.Duration(fs, &t.P99, "p99", 100*time.Millisecond, "how `long` 99 of 100 clients may wait for their answer at most")
	headroom := fs.String("headroom", "30%", "`share` of every resource that stays free")
	fs.IntVar(&t.NodeCores, "node-cores", 0, "`cores` of a machine that runs the program; 0: as measured")
	fs.Float64Var(&t.Retention, "retention", 30, "`days` that events are kept")
	asJSON := fs.Bool("json", false, "print the plan as JSON")
	_, err := cli.Parse(fs, args, 0)
	if err != nil {
		return err
	}
	var errs []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	fault(len(from) == 0, "--from: give the file of an ingest sweep, made by: lab bench ingest --sweep "+
		"batch=500,2000,writers=1,2,4 --out ingest.json")
	fault(t.Rate <= 0, "--rate: give the events a second that the system has to take")
	fault(t.Receiver < 0 || t.P99 <= 0 || t.NodeCores < 0 || t.Retention < 0,
		"--receiver, --p99, --node-cores and --retention can't be negative, and --p99 has to be positive")
	if t.Matching, err = parseShare(*matching); err != nil {
		errs = append(errs, fmt.Errorf("--matching: %w", err))
	}
	if t.Headroom, err = parseShare(*headroom); err != nil || t.Headroom > 0.9 {
		errs = append(errs, fmt.Errorf("--headroom: %q has to be 0%% to 90%%", *headroom))
	}
	if len(errs) > 0 {
		return cli.Usage(errors.Join(errs...))
	}
	sweeps := map[string]*bench.Sweep{}
	for _, file := range from {
		s, err := bench.ReadSweep(file)
		if err != nil {
			return err
		}
		if sweeps[s.Kind] != nil {
			return cli.Usagef("--from: two sweeps of %s", s.Kind)
		}
		sweeps[s.Kind] = s
	}
	if sweeps["ingest"] == nil {
		return cli.Usage(errors.New("--from: no ingest sweep among the files"))
	}
	plan, err := capacity.Make(sweeps["ingest"], sweeps["deliver"], t)
	if err != nil {
		return err
	}
	if *asJSON {
		e := json.NewEncoder(env.Stdout)
		e.SetIndent("", "  ")
		return e.Encode(plan)
	}
	return printPlan(env.Stdout, plan, t)
}

func printPlan(w io.Writer, p *capacity.Plan, t capacity.Target) error {
	var b strings.Builder
	fmt.Fprintf(&b, "Target: %.0f events/s, %g %% matching, receiver %s, p99 under %s, %.0f %% headroom.\n", t.Rate,
		100*t.Matching, t.Receiver, t.P99, 100*t.Headroom)
	if p.Fits {
		fmt.Fprintf(&b, "One machine like the measured one is enough, with PostgreSQL on it.\n")
	} else {
		fmt.Fprintf(&b, "One machine like the measured one is not enough: see machines below.\n")
	}
	section := func(title string, lines []capacity.Line) {
		fmt.Fprintf(&b, "\n%s\n", title)
		for _, l := range lines {
			fmt.Fprintf(&b, "  %-32s %s\n      %s\n", l.Name, l.Value, l.Because)
		}
	}
	section("Settings", p.Settings)
	fmt.Fprintf(&b, "\nWhat limits, the first one first (one machine like the measured one)\n")
	for _, l := range p.Limits {
		fmt.Fprintf(&b, "  %.0f events/s: %s\n      %s\n", l.Rate, l.What, l.Because)
	}
	section("What it takes", p.Needs)
	if len(p.Questions) > 0 {
		fmt.Fprintf(&b, "\nI don't know, measure this\n")
		for _, q := range p.Questions {
			fmt.Fprintf(&b, "  %s\n      %s\n", q.What, q.Measure)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
