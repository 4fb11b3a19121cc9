package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"sluice.example/sluice/bench"
	"sluice.example/sluice/internal/cli"
)

const sweepAbout = `Measures one path at every combination of the settings in --sweep, in a database of its own that
it creates and drops, and finds the knee: the smallest setting within 5 % of the best rate. Results go to --out after
each point; the same command goes on where it was interrupted. Every event is accounted for; exit status 1 means that
some were lost or doubled.

A --sweep names axes and values: batch=500,2000,writers=1,2. ` + "\"lab plan\" reads the file."

// benchSweep is "lab bench ingest" and "lab bench deliver".
func benchSweep(ctx context.Context, kind string, args []string, env cli.Env) error {
	base := bench.Base{}
	example := "lab bench ingest --sweep batch=500,1000,2000,writers=1,2,4,max-wait=0,5ms --out sweep.json"
	if kind == "deliver" {
		example = "lab bench deliver --sweep batch=500,1000,concurrency=64,256,lease=1m --receiver-latency 80ms --out " +
			"deliver.json"
	}
	fs := cli.NewFlags(env, "bench "+kind, sweepAbout, example)
	text := fs.String("sweep", "", "`axes` and their values; empty: one point, the program's defaults")
	pipeline := pipelineFlag(fs)
	database := fs.String("database-url", "", "`server` to measure, as a URL or key=value string; empty: a private one")
	out := fs.String("out", "", "`file` (JSON) to keep results in, and to go on from")
	cli.Duration(fs, &base.Duration, "duration", 3*time.Second, "how `long` a round takes")
	fs.IntVar(&base.Rounds, "rounds", 3, "`rounds` for each point; their median counts")
	matching := "5%"
	var p99 time.Duration
	if kind == "ingest" {
		fs.IntVar(&base.Shape.PerRequest, "request", 100, "`events` in a request; a divisor of 2000")
		fs.StringVar(&matching, "matching", matching, "`share` of events that match a rule, of 20; 0 runs without rules")
		fs.IntVar(&base.Connections, "connections", 64, "`clients` that post at the same time")
		fs.Float64Var(&base.Rate, "rate", 0, "`events` a second at which latency is measured; 0: half of what each point "+
			"reaches")
		cli.Duration(fs, &p99, "p99", 50*time.Millisecond, "how `long` p99 may take for a setting to count; 0: no bound")
	} else {
		cli.Duration(fs, &base.ReceiverLatency, "receiver-latency", 80*time.Millisecond,
			"how `long` the receiver takes for an answer")
		fs.IntVar(&base.Messages, "messages", 20_000, "most `messages` in a round")
	}
	if _, err := cli.Parse(fs, args, 0); err != nil {
		return err
	}
	base.BoundMS = float64(p99) / float64(time.Millisecond)
	points, err := bench.ParseSweep(kind, *text)
	if err != nil {
		return cli.Usagef("--sweep: %w", err)
	}
	if kind == "ingest" {
		if base.Shape.Matching, err = parseShare(matching); err != nil {
			return cli.Usagef("--matching: %w", err)
		}
		if base.Shape.Matching > 0 {
			base.Rules = 20
		}
	}
	if base.Rounds < 1 || base.Duration <= 0 || kind == "ingest" && base.Connections < 1 || kind == "deliver" &&
		base.Messages < 1 {
		return cli.Usage(errors.New("--rounds, --duration, --connections and --messages have to be positive"))
	}
	programs, err := findPrograms(*pipeline)
	if err != nil {
		return err
	}
	progress := newBenchProgress(env)
	sweep, err := bench.RunSweep(ctx, bench.Options{Programs: programs, DatabaseURL: *database, Progress: progress.show},
		kind, base, points, *out)
	progress.finish()
	if err != nil {
		if *out != "" {
			return fmt.Errorf("%w\nthe same command goes on from %s", err, *out)
		}
		return err
	}
	if err := printSweep(env.Stdout, sweep); err != nil {
		return err
	}
	if *out != "" {
		fmt.Fprintf(env.Stdout, "Next: lab plan --from %s\n", *out)
	}
	if err := sweep.Err(); err != nil {
		return fmt.Errorf("the books do not balance: %w", err)
	}
	return nil
}

func printSweep(w io.Writer, s *bench.Sweep) error {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "settings\tper second\tlow\thigh\tprogram us\tPostgreSQL us\tp50 ms\tp99 ms\tat rate\tcommit "+
		"ms\tlost\tdoubled\t\n")
	for _, p := range s.Points {
		p50, p99, at := "", "", ""
		if p.Latency != nil {
			p50, p99, at = fmt.Sprintf("%.1f", p.Latency.P50), fmt.Sprintf("%.1f", p.Latency.P99),
				fmt.Sprintf("%.0f", p.LatencyRate)
		}
		commit := ""
		if p.Stages != nil {
			commit = fmt.Sprintf("%.1f", p.Stages["commit_ms"])
		}
		fmt.Fprintf(t, "%s\t%.0f\t%.0f\t%.0f\t%.1f\t%.1f\t%s\t%s\t%s\t%s\t%d\t%d\t\n", bench.Label(s.Kind, p.Settings),
			p.Rate.Median, p.Rate.Low, p.Rate.High,
			p.CPU.Program, p.CPU.PostgreSQL, p50, p99, at, commit, p.Books.Lost, p.Books.Doubled)
	}
	t.Flush()
	if s.Knee != nil {
		fmt.Fprintf(&b, "\nKnee: %s, %.0f a second: %s.\n", bench.Label(s.Kind, s.Knee.Settings), s.Knee.Rate, s.Knee.Why)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// parseShare reads 5% or 0.05.
func parseShare(text string) (float64, error) {
	number, percent := strings.CutSuffix(strings.TrimSpace(text), "%")
	v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if percent {
		v /= 100
	}
	if err != nil || !(v >= 0 && v <= 1) {
		return 0, fmt.Errorf("%q is not a share such as 5%% or 0.05", text)
	}
	return v, nil
}
