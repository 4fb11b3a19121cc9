package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/schollz/progressbar/v3"

	"sluice.example/sluice/internal/cli"
	"sluice.example/sluice/internal/duration"
	"sluice.example/sluice/operate/backtest"
	"sluice.example/sluice/pipeline/rules"
)

// backtestFlags are the flags of "rules backtest".
type backtestFlags struct {
	from, to, against string
	maxLate           time.Duration
	samples           int
	asJSON            bool
}

func (b *backtestFlags) add(fs *flag.FlagSet) {
	fs.StringVar(&b.from, "from", "",
		"backtest: `time` of arrival of the first event, or how long ago, like 7d (default 1d)")
	fs.StringVar(&b.to, "to", "", "backtest: `time` of the end (default now)")
	fs.StringVar(&b.against, "against", "",
		"backtest and check: rules `file` to compare with (backtest: default the configured one, if that is another)")
	fs.IntVar(&b.samples, "samples", 3, "backtest: sample `messages` to print of each rule")
	cli.Duration(fs, &b.maxLate, "max-late", 0,
		"backtest: leave events out that arrived more than this `long` after they happened, like 2d; fewer days are "+
			"read (default: none is left out)")
	fs.BoolVar(&b.asJSON, "json", false, "backtest and list: print the answer as JSON")
}

// period reads --from and --to, as times or as how long before now.
func (b *backtestFlags) period(now time.Time) (from, to time.Time, err error) {
	var errs []error
	read := func(name, text string, fallback time.Time) time.Time {
		if text == "" {
			return fallback
		}
		for _, layout := range []string{time.RFC3339, "2006-01-02T15:04", time.DateOnly} {
			if at, err := time.ParseInLocation(layout, text, time.UTC); err == nil {
				return at.UTC()
			}
		}
		if ago, err := duration.Parse(text); err == nil {
			return now.Add(-ago)
		}
		errs = append(errs, fmt.Errorf(
			"--%s: %q is not a time: use 2026-11-30, 2026-11-30T12:00:00Z, or how long ago, like 7d", name, text))
		return fallback
	}
	from = read("from", b.from, now.Add(-24*time.Hour))
	to = read("to", b.to, now)
	if len(errs) == 0 && !from.Before(to) {
		errs = append(errs, fmt.Errorf("--from (%s) is not before --to (%s)", from.Format(time.RFC3339),
			to.Format(time.RFC3339)))
	}
	return from, to, errors.Join(errs...)
}

func backtestRules(ctx context.Context, cfg *config, b backtestFlags, file string, known rules.Options,
	env cli.Env) error {
	o := backtest.Options{Samples: b.samples, MaxLate: b.maxLate}
	var err error
	if o.From, o.To, err = b.period(time.Now().UTC()); err != nil {
		return cli.Usage(err)
	}
	if b.maxLate < 0 {
		return cli.Usagef("--max-late: %s; has to be positive", duration.Format(b.maxLate))
	}
	if o.Set, err = rules.Load(file, known); err != nil {
		return fmt.Errorf("the rules have errors; see \"pipeline rules check %s\"", file)
	}
	if b.against == "" && cfg.evaluate.Rules != file {
		b.against = cfg.evaluate.Rules
	}
	if b.against != "" {
		if o.Other, err = rules.Load(b.against, known); err != nil {
			return fmt.Errorf("the rules to compare with have errors; see \"pipeline rules check %s\"", b.against)
		}
	}
	if env.Terminal {
		bar := progressbar.NewOptions64(-1, progressbar.OptionSetWriter(env.Stderr),
			progressbar.OptionSetDescription("backtest"), progressbar.OptionShowCount(),
			progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish())
		defer bar.Finish()
		o.Progress = func(done, total int64) {
			bar.ChangeMax64(total)
			_ = bar.Set64(done) // drawing is not worth failing for
		}
	}
	return withDatabase(ctx, cfg, func(conn *pgx.Conn) error {
		report, err := backtest.Run(ctx, conn, o)
		if err != nil {
			return err
		}
		return cli.Print(env.Stdout, b.asJSON, report)
	})
}
