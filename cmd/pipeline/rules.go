package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/internal/cli"
	"sluice.example/sluice/internal/tenants"
	"sluice.example/sluice/internal/yamlfile"
	"sluice.example/sluice/operate/review"
	"sluice.example/sluice/operate/rulelist"
	"sluice.example/sluice/pipeline/deliver"
	"sluice.example/sluice/pipeline/evaluate"
	"sluice.example/sluice/pipeline/rules"
	"sluice.example/sluice/pipeline/rules/replay"
)

const rulesAbout = `Checks, tests, tries and lists rules.

  pipeline rules check FILE       every mistake, with its place and what was probably meant; exit status 1 if there
                                  is one
  pipeline rules test FILE        the tests that stand in the rules, on a virtual clock; no database is needed
  pipeline rules backtest FILE    what FILE would have decided about stored events, by day, and how that differs from
                                  other rules
  pipeline rules review RULE FILE --by NAME
                                  that NAME has read RULE as it is, which rules need that send to an irreversible
                                  destination; writes reviewed_by into FILE
  pipeline rules list             the rules in force, their owners, how they fare, and what they did in the last day

FILE may be a folder. Where a database is at hand, check also looks whether enough happens for rate rules. With
--against, check also reports rules that have another id than there, and what that does.
Names of destinations and tenants are checked against the files that the configuration names.`

func rulesCommand(ctx context.Context, args []string, env cli.Env) error {
	fs := cli.NewFlags(env, "rules", rulesAbout, "pipeline rules check rules/shop.yaml --destinations "+
		"destinations.yaml\npipeline rules backtest new.yaml --from 7d --against rules/shop.yaml\npipeline rules list")
	destinations := fs.String("destinations", "", "destinations `file` whose names send_to may use (default: the "+
		"configured one)")
	tenants := fs.String("tenants", "", "tenants `file` whose names rules may use (default: the configured one)")
	by := fs.String("by", "", "review: `name` of the person who has read the rule")
	var back backtestFlags
	back.add(fs)
	settings := databaseFlags(fs)
	action, rest, err := cli.ParseAction(fs, args,
		map[string]int{"check": 1, "test": 1, "backtest": 1, "review": 2, "list": 0})
	if err != nil {
		return err
	}
	cfg, err := settings(env.Environ)
	if err != nil {
		return err
	}
	if *destinations != "" {
		cfg.destinations = *destinations
	}
	if *tenants != "" {
		cfg.tenants = *tenants
	}
	if action == "list" {
		return withDatabase(ctx, cfg, func(conn *pgx.Conn) error {
			list, err := rulelist.Read(ctx, conn)
			if err != nil {
				return err
			}
			return cli.Print(env.Stdout, back.asJSON, list)
		})
	}
	rule := ""
	if action == "review" {
		if len(rest) == 0 || *by == "" {
			return cli.Usage(errors.New("which rule, and who has read it? pipeline rules review RULE [FILE] --by NAME"))
		}
		rule, rest = rest[0], rest[1:]
	}
	file := append(rest, cfg.evaluate.Rules)[0]
	if file == "" {
		return cli.Usage(errors.New("which rules? Name a file or a folder"))
	}
	known, err := knownNames(cfg)
	if err != nil {
		return err
	}
	switch action {
	case "check":
		return checkRules(ctx, cfg, file, back.against, known, env.Stdout)
	case "review":
		r, err := review.Write(file, known, rule, *by)
		if err == nil {
			fmt.Fprintf(env.Stdout, "%s is reviewed by %s as %s\n", r.Name, r.Review.By, r.Review.Digest)
		}
		return err
	case "test":
		return testRules(file, known, env.Stdout)
	}
	return backtestRules(ctx, cfg, back, file, known, env)
}

// knownNames reads the names that rules may use, from the files that are configured.
func knownNames(cfg *config) (known rules.Options, err error) {
	known.MaxPayloadBytes = cfg.evaluate.MaxPayloadBytes
	if cfg.destinations != "" {
		found, err := deliver.Load(cfg.destinations)
		if err != nil {
			return known, err
		}
		known.Destinations, known.Irreversible = found.Names(), found.Irreversible()
	}
	if cfg.tenants != "" {
		set, err := tenants.Load(cfg.tenants)
		if err != nil {
			return known, err
		}
		known.Tenants = set.IDs()
	}
	return known, nil
}

func checkRules(ctx context.Context, cfg *config, file, against string, known rules.Options, out io.Writer) error {
	set, err := replay.Load(file, known)
	if err != nil {
		var faults yamlfile.Faults
		if !errors.As(err, &faults) {
			return err
		}
		for _, f := range faults {
			fmt.Fprintln(out, f)
		}
		return fmt.Errorf("%s in %s; a running pipeline would keep the rules that it has", cli.Count(len(faults), "error"),
			file)
	}
	if against != "" {
		before, err := rules.Load(against, known)
		if err != nil {
			return fmt.Errorf("the rules to compare with have errors; see \"pipeline rules check %s\"", against)
		}
		for _, r := range set.Renames(before) {
			fmt.Fprintln(out, r.Message)
		}
	}
	warnings := append(slices.Clone(set.Warnings()), lintStored(ctx, cfg, set, out)...)
	for _, w := range warnings {
		fmt.Fprintf(out, "%s (warning)\n", w)
	}
	tests := 0
	for _, r := range set.Rules() {
		tests += len(r.Tests)
	}
	fmt.Fprintf(out, "ok: %s, %s passed, %s\n", cli.Count(len(set.Rules()), "rule"), cli.Count(tests, "test"),
		cli.Count(len(warnings), "warning"))
	return nil
}

// lintStored asks the database, where one is at hand, whether enough happens for the rate rules, and soon enough.
func lintStored(ctx context.Context, cfg *config, set *rules.Set, out io.Writer) yamlfile.Faults {
	if cfg.databaseURL == "" {
		if _, err := runningPostgres(cfg.dataDir); err != nil {
			return nil
		}
	}
	if len(set.Rates()) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	var found yamlfile.Faults
	err := withDatabase(ctx, cfg, func(conn *pgx.Conn) (err error) {
		found, err = evaluate.LintStored(ctx, conn, set)
		return err
	})
	if err != nil {
		fmt.Fprintf(out, "skipped the check of rate rules against stored events: %v\n", err)
	}
	return found
}

func testRules(file string, known rules.Options, out io.Writer) error {
	set, err := rules.Load(file, known)
	if err != nil {
		return fmt.Errorf("the rules have errors; see \"pipeline rules check %s\"", file)
	}
	failed, results := 0, replay.Test(set)
	for _, r := range results {
		if r.Failure == "" {
			fmt.Fprintf(out, "ok    %s: %s\n", r.Rule, r.Name)
			continue
		}
		failed++
		fmt.Fprintf(out, "FAIL  %s: %s\n      %s\n", r.Rule, r.Name, r.Failure)
	}
	if failed > 0 {
		return fmt.Errorf("%d of %s failed", failed, cli.Count(len(results), "test"))
	}
	fmt.Fprintf(out, "%s passed\n", cli.Count(len(results), "test"))
	return nil
}
