package evaluate

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"sluice.example/sluice/internal/pgtx"
	"sluice.example/sluice/pipeline/rules"
)

// Sweeper makes the decisions that no event triggers: timers of absence rules that have run out, digests of what
// cooldown and cap held back, and windows of rate rules.
//
// Any number of nodes may sweep at once: each takes rows under SKIP LOCKED, and a decision commits together with the
// mark that it is made, so a crash between leaves a row due, and none is decided twice. A look costs what is due, not
// what is stored. What was due while nothing swept is decided at the next look. Event data is only read.
type Sweeper struct {
	engine  *Engine
	db      *pgxpool.Pool
	metrics *SweepMetrics
	cleaned time.Time
	// last are the rules by which the last look decided.
	last *rules.Set

	// The constants of the same names, and others in tests.
	sweepBatch  int
	reseedAfter time.Duration
}

const (
	// sweepBatch is how many timers or digests one transaction takes: as many as an ordinary ingest batch has events.
	sweepBatch = 500
	// sweepTimeout bounds one transaction of a sweep. A guess.
	sweepTimeout = 30 * time.Second
	// cleanEvery is the time between two removals of timers that can't fire any more. A guess.
	cleanEvery = 5 * time.Minute
	// reseedAfter is how long no node may have had a rule in force before its timers or counts are brought up to the
	// stored events, and after which that is repeated for batches that did not know the rule yet. Longer than a reload of
	// all nodes takes.
	reseedAfter = 2 * time.Minute
)

// NewSweeper makes a sweeper of the rules that the engine has in force.
func NewSweeper(engine *Engine, db *pgxpool.Pool, metrics *SweepMetrics) *Sweeper {
	return &Sweeper{engine: engine, db: db, metrics: metrics, sweepBatch: sweepBatch, reseedAfter: reseedAfter}
}

// Run sweeps, and fills beside it, until ctx ends. A failure is logged and counted, and tried again at the next look.
func (s *Sweeper) Run(ctx context.Context) error {
	var loops sync.WaitGroup
	loops.Go(func() { s.repeat(ctx, s.Sweep) })
	loops.Go(func() { s.repeat(ctx, s.Fill) })
	loops.Wait()
	return nil
}

func (s *Sweeper) repeat(ctx context.Context, look func(context.Context) error) {
	every := s.engine.cfg.SweepEvery
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if err := look(ctx); err != nil && ctx.Err() == nil {
			s.engine.log.Error("sweep failed; it is tried again", "error", err, "in", every)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Sweep decides about everything that is due now, by the rules that are in force when it begins. One rule's failure
// does not keep the others from their turn; the error joins all failures.
func (s *Sweeper) Sweep(ctx context.Context) error {
	start := time.Now()
	defer func() { s.metrics.duration.Observe(time.Since(start).Seconds()) }()
	set := s.engine.inForce()
	if set != s.last {
		s.last = set
		s.metrics.inForce(set)
	}
	s.metrics.late.only(set.Absences())
	var errs []error
	try := func(task string, err error) {
		if err != nil && ctx.Err() == nil {
			s.metrics.errors.WithLabelValues(task).Inc()
			errs = append(errs, err)
		}
	}
	try("seed", s.engine.markGaps(ctx, s.db))
	current, err := s.seed(ctx, set)
	try("seed", err)
	for _, r := range current {
		try("absence", s.absence(ctx, set, r))
	}
	try("digest", s.digests(ctx, set))
	try("digest", s.limitDigests(ctx, set))
	judged, err := s.noteRates(ctx, set.Rates())
	try("rate", err)
	try("rate", s.rates(ctx, set, judged))
	if time.Since(s.cleaned) >= cleanEvery {
		s.cleaned = time.Now()
		for _, r := range set.Absences() {
			try("clean", s.cleanTimers(ctx, r))
		}
		for _, r := range set.Rates() {
			try("clean", s.cleanRate(ctx, r))
		}
	}
	return errors.Join(errs...)
}

// untilFew repeats a transaction as long as it takes a full batch.
func (s *Sweeper) untilFew(ctx context.Context,
	take func(context.Context, pgx.Tx) (n int, committed func(), err error)) error {
	for ctx.Err() == nil {
		n := 0
		err := s.inTx(ctx, func(ctx context.Context, tx pgx.Tx) (committed func(), err error) {
			n, committed, err = take(ctx, tx)
			return committed, err
		})
		if err != nil || n < s.sweepBatch {
			return err
		}
	}
	return ctx.Err()
}

// readCommitted is what every transaction here is written for, whatever the role or the database sets: a row that moved
// since the statement began is locked as it is now.
var readCommitted = pgx.TxOptions{IsoLevel: pgx.ReadCommitted}

// inTx runs one transaction, and then what has to be counted once it is committed.
func (s *Sweeper) inTx(ctx context.Context, f func(context.Context, pgx.Tx) (committed func(), err error)) error {
	ctx, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()
	tx, err := pgtx.Begin(ctx, s.db, readCommitted, pgtx.Bounds{Idle: s.engine.cfg.IdleTimeout,
		Statement: sweepTimeout, Lock: sweepTimeout})
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
