package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"

	"sluice.example/sluice/bench"
	"sluice.example/sluice/internal/cli"
	"sluice.example/sluice/internal/spell"
)

const benchAbout = `Measures this machine: ingest, evaluation, claims, delivery and the whole way, each beside its
floor in the same run, with every event accounted for. It works in a database that it creates and drops, on a private
PostgreSQL or on the server of --database-url, whose other databases it does not touch; after a crash drop
sluice_bench_* by hand.

  lab bench            everything, about 10 minutes; --quick about 2
  lab bench ingest     one path over a range of settings (--sweep), for "lab plan"
  lab bench deliver    the same for delivery, against a receiver of a given latency

Exit status 1 means that events were lost or doubled. A missed floor is printed and fails nothing, since
machines are busy with other things.`

func benchCommand(ctx context.Context, args []string, env cli.Env) error {
	if len(args) > 0 {
		switch args[0] {
		case "ingest", "deliver":
			return benchSweep(ctx, args[0], args[1:], env)
		}
	}
	fs := cli.NewFlags(env, "bench", benchAbout, "lab bench --quick\nlab bench ingest --sweep "+
		"batch=500,2000,writers=1,2,4,max-wait=0,5ms")
	quick := fs.Bool("quick", false, "shorter and fewer rounds: for a first look")
	pipeline := pipelineFlag(fs)
	database := fs.String("database-url", "", "`server` to measure, as a URL or key=value string; empty: a private one")
	out := fs.String("out", filepath.Join("bench", "out"), "`folder` for report.json and figures.md")
	figures := fs.String("figures", "", "`file` whose part between <!-- figures --> and <!-- /figures --> is rewritten "+
		"with the tables")
	rest, err := cli.Parse(fs, args, math.MaxInt)
	if err != nil {
		return err
	}
	if len(rest) > 0 {
		return cli.Usagef("unexpected argument %q%s", rest[0], spell.DidYouMean(rest[0], []string{"ingest", "deliver"}))
	}
	programs, err := findPrograms(*pipeline)
	if err != nil {
		return err
	}
	progress := newBenchProgress(env)
	report, err := bench.Suite(ctx, bench.Options{Programs: programs, DatabaseURL: *database, Quick: *quick,
		Progress: progress.show})
	progress.finish()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(*out, 0o755); err != nil {
		return err
	}
	figuresFile := filepath.Join(*out, "figures.md")
	if err := writeFigures(figuresFile, report); err != nil {
		return err
	}
	if err := bench.WriteJSON(filepath.Join(*out, "report.json"), report); err != nil {
		return err
	}
	if *figures != "" && report.Err() == nil {
		if err := rewriteFigures(*figures, report); err != nil {
			return err
		}
	}
	if err := bench.WriteTable(env.Stdout, report); err != nil {
		return err
	}
	if missed := report.Missed(); len(missed) > 0 {
		fmt.Fprintf(env.Stdout, "\n%d of the bounds were missed. That fails nothing: on a busy machine (load average "+
			"above) take the figures again.\n", len(missed))
	}
	fmt.Fprintf(env.Stdout, "\nTables: %s. For machines: %s.\n", figuresFile, filepath.Join(*out, "report.json"))
	if err := report.Err(); err != nil {
		return fmt.Errorf("the books do not balance: %w", err)
	}
	return nil
}

func writeFigures(name string, report *bench.Report) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(bench.WriteMarkdown(f, report), f.Close())
}

func rewriteFigures(file string, report *bench.Report) error {
	const begin, end = "<!-- figures -->\n", "<!-- /figures -->"
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	head, rest, ok := strings.Cut(string(text), begin)
	_, tail, closed := strings.Cut(rest, end)
	if !ok || !closed {
		return fmt.Errorf("%s has no %s ... %s", file, strings.TrimSpace(begin), end)
	}
	var b strings.Builder
	if err := bench.WriteMarkdown(&b, report); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(head+begin+b.String()+end+tail), 0o644)
}

// floorServerCommand is the floor of small requests; see bench.ServeFloor.
func floorServerCommand(ctx context.Context, args []string, env cli.Env) error {
	fs := cli.NewFlags(env, "floor-server", "Parses events and answers, and does nothing else.", "lab floor-server")
	ready := readyFlag(fs)
	if _, err := cli.Parse(fs, args, 0); err != nil {
		return err
	}
	return bench.ServeFloor(ctx, *ready)
}

// floorSenderCommand is the floor of delivery; see bench.SendFloor.
func floorSenderCommand(ctx context.Context, args []string, env cli.Env) error {
	fs := cli.NewFlags(env, "floor-sender", "Posts signed messages from memory.",
		"lab floor-sender --url http://127.0.0.1:9000")
	url := fs.String("url", "", "where to post")
	messages := fs.Int("messages", 10_000, "how many")
	connections := fs.Int("connections", 64, "over how many connections")
	if _, err := cli.Parse(fs, args, 0); err != nil {
		return err
	}
	return bench.SendFloor(ctx, *url, *messages, *connections, env.Stdout)
}
