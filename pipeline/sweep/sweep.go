// Package sweep makes the decisions that no event triggers: timers of absence rules that have run out, digests of
// what cooldown and cap held back, and rate rules.
//
// Any number of nodes may sweep at once: each takes rows under SKIP LOCKED, and a decision commits together with the
// mark that it is made, so a crash between leaves a row due, and none is decided twice. A tick costs what is due, not
// what is stored. What was due while nothing swept is decided at the next tick. Event data is only read.
package sweep

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/sourcegraph/conc/pool"

	"sluice.example/sluice/pipeline"
)

// Rules is what sweep asks of the rules in force; evaluate.Engine is it. The functions that they give back count what
// was decided, and are called after COMMIT.
type Rules interface {
	Absences() []pipeline.Absence
	Fire(ctx context.Context, tx pgx.Tx, timer string, due []pipeline.Due) (committed func(), err error)
	Seed(ctx context.Context, tx pgx.Tx, timer string, events []pipeline.Event) error
	Digest(ctx context.Context, tx pgx.Tx, held []pipeline.Held) (committed func(), err error)
	Rates() []pipeline.Rate
	Judge(ctx context.Context, tx pgx.Tx, metric string, tenant int32, end time.Time, cur pipeline.Sample, before []pipeline.Sample,
		state []byte, inhibited bool) (next []byte, firing bool, committed func(), err error)
	Count(metric string, events []pipeline.Event, sums map[pipeline.Minute]pipeline.Counts) error
	AddCounts(ctx context.Context, tx pgx.Tx, metric string, sums map[pipeline.Minute]pipeline.Counts) error
}

// Config of the stage.
type Config struct {
	// Every is the time between two looks at what is due. Default 5s: it adds to the wait of every absence rule, and an
	// idle look costs well under a millisecond for each rule.
	Every time.Duration
	// Batch is how many timers or digests one transaction takes. Default 500, as large as an ordinary ingest batch.
	Batch int
	// Timeout bounds one transaction. Default 30s, a guess.
	Timeout time.Duration
	// CleanEvery is the time between two removals of timers that can't fire any more. Default 5m, a guess.
	CleanEvery time.Duration
	// ReseedAfter is for how long no node may have had a rule in force before its timers or counts are brought up to
	// the stored events, and after which that is repeated for batches that did not know the rule yet. Default 2m:
	// longer than a reload of all nodes takes.
	ReseedAfter time.Duration
}

// DefaultConfig is complete.
func DefaultConfig() Config {
	return Config{Every: 5 * time.Second, Batch: 500, Timeout: 30 * time.Second, CleanEvery: 5 * time.Minute, ReseedAfter: 2 * time.Minute}
}

func (c Config) validate() error {
	var errs []error
	for name, d := range map[string]time.Duration{"sweep.every": c.Every, "sweep.timeout": c.Timeout, "sweep.clean-every": c.CleanEvery, "sweep.reseed-after": c.ReseedAfter} {
		if d < time.Millisecond {
			errs = append(errs, fmt.Errorf("%s is %s; set it to a positive length of time", name, d))
		}
	}
	if c.Batch < 1 || c.Batch > 10_000 {
		errs = append(errs, fmt.Errorf("sweep.batch is %d; set it from 1 to 10000", c.Batch))
	}
	if c.ReseedAfter < 2*c.Every {
		errs = append(errs, fmt.Errorf("sweep.reseed-after is %s; set it to at least twice sweep.every (%s), or every look would seed", c.ReseedAfter, c.Every))
	}
	return errors.Join(errs...)
}

// Sweeper looks at what is due, again and again.
type Sweeper struct {
	cfg     Config
	db      *pgxpool.Pool
	rules   Rules
	metrics *Metrics
	log     *slog.Logger
	cleaned time.Time
}

// New checks the configuration.
func New(cfg Config, db *pgxpool.Pool, rules Rules, metrics *Metrics, log *slog.Logger) (*Sweeper, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if db == nil || rules == nil || metrics == nil || log == nil {
		return nil, errors.New("sweep: a pool, rules, metrics and a log are needed")
	}
	return &Sweeper{cfg: cfg, db: db, rules: rules, metrics: metrics, log: log}, nil
}

// Run sweeps, and fills beside it, until ctx ends. A failure is logged and counted, and tried again at the next look.
func (s *Sweeper) Run(ctx context.Context) error {
	loops := pool.New().WithErrors()
	loops.Go(func() error { return s.repeat(ctx, s.Sweep) })
	loops.Go(func() error { return s.repeat(ctx, s.Fill) })
	return loops.Wait()
}

func (s *Sweeper) repeat(ctx context.Context, look func(context.Context) error) error {
	tick := time.NewTicker(s.cfg.Every)
	defer tick.Stop()
	for {
		if err := look(ctx); err != nil && ctx.Err() == nil {
			s.log.Error("sweep failed; it is tried again", "error", err, "in", s.cfg.Every)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// Sweep decides about everything that is due now. One rule's failure does not keep the others from their turn; the
// error joins all failures.
func (s *Sweeper) Sweep(ctx context.Context) error {
	start := time.Now()
	defer func() { s.metrics.seconds.Observe(time.Since(start).Seconds()) }()
	absences := s.rules.Absences()
	var errs []error
	try := func(task string, err error) {
		if err != nil && ctx.Err() == nil {
			s.metrics.errors.WithLabelValues(task).Inc()
			errs = append(errs, err)
		}
	}
	try("seed", s.seed(ctx, absences))
	for _, a := range absences {
		try("absence", s.absence(ctx, a))
	}
	try("digest", s.digests(ctx))
	rates := s.rules.Rates()
	judged, err := s.noteRates(ctx, rates)
	try("rate", err)
	for _, r := range judged {
		try("rate", s.rate(ctx, r))
	}
	if time.Since(s.cleaned) >= s.cfg.CleanEvery {
		s.cleaned = time.Now()
		for _, a := range absences {
			try("clean", s.clean(ctx, a))
		}
		for _, r := range rates {
			try("clean", s.cleanRate(ctx, r))
		}
	}
	return errors.Join(errs...)
}

// untilFew repeats a transaction as long as it takes a full batch.
func (s *Sweeper) untilFew(ctx context.Context, take func(ctx context.Context, tx pgx.Tx) (n int, committed func(), err error)) error {
	for ctx.Err() == nil {
		n := 0
		err := s.inTx(ctx, func(ctx context.Context, tx pgx.Tx) (committed func(), err error) {
			n, committed, err = take(ctx, tx)
			return committed, err
		})
		if err != nil || n < s.cfg.Batch {
			return err
		}
	}
	return ctx.Err()
}

// inTx runs one transaction and then tells that it is committed.
func (s *Sweeper) inTx(ctx context.Context, f func(ctx context.Context, tx pgx.Tx) (committed func(), err error)) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	tx, err := s.db.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	committed, err := f(ctx, tx)
	if err != nil {
		return err
	}
	if err := tx.Commit(ctx); err != nil {
		return err
	}
	if committed != nil {
		committed()
	}
	return nil
}
