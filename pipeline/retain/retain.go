// Package retain keeps the tables fit: event partitions exist ahead of time, and what is past its time goes.
//
// Events go a day at a time, by dropping the day's partition without holding up those who write or read the others.
// Rows of other tables go in small transactions that wait for nobody: a row that somebody holds is left for the next
// pass. Any number of nodes may run; one at a time deletes.
//
// Nothing goes before its time, by the database's clock. A pass that is cut off anywhere, also by a crash, is finished
// by the next one.
package retain

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"sluice.example/sluice/internal/pgtx"
	"sluice.example/sluice/internal/wait"
)

// Keeper does the housekeeping.
type Keeper struct {
	cfg     Config
	pool    *pgxpool.Pool
	metrics *Metrics
	log     *slog.Logger

	// The constants of the same names, and others in tests.
	interval, lockTimeout time.Duration
	batchRows             int

	owners []Owner
}

// Owner prunes tables that another stage owns: it decides what may go, and the Keeper when.
type Owner interface {
	// Tables lists what it prunes, in the order of a pass.
	Tables() []string
	// Prune deletes at most so many rows of a table and reports how many went, and whether it is worth going on at once.
	Prune(ctx context.Context, tx pgx.Tx, table string, rows int) (gone int64, more bool, err error)
}

// New checks the settings and reports everything that is wrong with them. The owners' tables are pruned beside its own.
func New(cfg Config, pool *pgxpool.Pool, metrics *Metrics, log *slog.Logger, owners ...Owner) (*Keeper, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Keeper{
		cfg: cfg, pool: pool, metrics: metrics, log: log, owners: owners,
		interval: interval, lockTimeout: lockTimeout, batchRows: batchRows,
	}, nil
}

// retryInterval is how soon a pass with a failure is repeated: a database that was away is back long before the next
// regular pass.
const retryInterval = 15 * time.Second

// Run makes a pass at once and then one every 10 minutes, until ctx ends. A failure is logged and counted, and the pass
// goes on with the next thing; Run itself does not fail.
func (k *Keeper) Run(ctx context.Context) error {
	k.metrics.begin(k.tables())
	for {
		next := k.interval
		if !k.pass(ctx) {
			next = min(next, retryInterval)
		}
		if !wait.For(ctx, next) {
			return nil
		}
	}
}

// pass does everything once and reports whether all of it went well. Partitions come first: without them events
// cannot be stored, while what is too old does no harm for a while.
func (k *Keeper) pass(ctx context.Context) bool {
	ok := k.try(ctx, "partitions-ahead", k.makePartitions) && k.try(ctx, "events", k.dropPartitions)
	if k.cfg.Outbox > 0 || k.cfg.Dead > 0 {
		ok = k.try(ctx, "outbox", k.pruneOutbox) && ok
	}
	for _, t := range k.prunable() {
		ok = k.try(ctx, t.name, func(ctx context.Context) error { return k.prune(ctx, t) }) && ok
	}
	for _, o := range k.owners {
		for _, table := range o.Tables() {
			ok = k.try(ctx, table, func(ctx context.Context) error { return k.pruneOwned(ctx, o, table) }) && ok
		}
	}
	if ok {
		k.metrics.lastPass.SetToCurrentTime()
	}
	return ok
}

// try runs one task. The end of ctx is not a failure.
func (k *Keeper) try(ctx context.Context, task string, f func(context.Context) error) bool {
	if ctx.Err() != nil {
		return false
	}
	err := f(ctx)
	if err == nil {
		return true
	}
	if ctx.Err() == nil {
		k.metrics.failures.WithLabelValues(task).Inc()
		k.log.WarnContext(ctx, "retain: will try again",
			"task", task, "error", err, "in", min(k.interval, retryInterval))
	}
	return false
}

const aloneSQL = `select pg_try_advisory_xact_lock(hashtextextended('sluice:retain', 0))`

// alone runs f in a transaction while no other node deletes, and reports whether it did. It spares the work of deleting
// the same rows from two sides; to do so would be harmless.
func (k *Keeper) alone(ctx context.Context, f func(context.Context, pgx.Tx) error) (ran bool, err error) {
	err = k.transaction(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, aloneSQL).Scan(&ran); err != nil || !ran {
			return err
		}
		return f(ctx, tx)
	})
	return ran, err
}

// transaction bounds how long f takes, and how long it waits for each lock, whatever the role or the database sets.
func (k *Keeper) transaction(ctx context.Context, f func(context.Context, pgx.Tx) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	options := pgx.TxOptions{IsoLevel: pgx.ReadCommitted}
	// Waiting behind a long report would make everybody else wait behind us. The transaction that drops a day is idle
	// while another one detaches it.
	bounds := pgtx.Bounds{Idle: timeout, Statement: timeout, Lock: k.lockTimeout}
	return pgtx.InTx(ctx, k.pool, options, bounds, func(tx pgx.Tx) error { return f(ctx, tx) })
}
