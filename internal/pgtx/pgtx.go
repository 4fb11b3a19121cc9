// Package pgtx begins the program's transactions, each with bounds that PostgreSQL enforces: a process that stops in
// the middle holds up others for so long and no longer.
package pgtx

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Bounds are what one transaction may take, whatever the role or the database sets. PostgreSQL enforces them, so they
// also hold where the process that began the transaction is stopped, or its machine is gone.
type Bounds struct {
	// Idle bounds each wait for the client's next statement; then the session ends, and its locks are free. It has to be
	// positive.
	Idle time.Duration
	// Statement bounds each statement; 0 does not.
	Statement time.Duration
	// Lock bounds each wait for a lock; 0 does not.
	Lock time.Duration
}

// Idle is how long a transaction waits for a client that is only busy between two statements. A guess: a busy machine
// pauses a process for a second, and who waits for the locks of one that is stopped waits this long.
const Idle = 10 * time.Second

// Beginner is a pool or a connection.
type Beginner interface {
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

// Begin begins a transaction with bounds. It sends them together with BEGIN, so they cost no round trip, and they end
// with the transaction, so a transaction pooler does not pass them on.
func Begin(ctx context.Context, db Beginner, options pgx.TxOptions, bounds Bounds) (pgx.Tx, error) {
	if bounds.Idle <= 0 {
		return nil, fmt.Errorf("pgtx: a transaction may idle for %s; that has to be positive", bounds.Idle)
	}
	var begin strings.Builder
	begin.WriteString("begin")
	if options.IsoLevel != "" {
		fmt.Fprintf(&begin, " isolation level %s", options.IsoLevel)
	}
	if options.AccessMode != "" {
		fmt.Fprintf(&begin, " %s", options.AccessMode)
	}
	for _, b := range []struct {
		setting string
		bound   time.Duration
	}{
		{"idle_in_transaction_session_timeout", bounds.Idle},
		{"statement_timeout", bounds.Statement},
		{"lock_timeout", bounds.Lock},
	} {
		fmt.Fprintf(&begin, "; set local %s = %d", b.setting, b.bound.Milliseconds())
	}
	options.BeginQuery = begin.String()
	return db.BeginTx(ctx, options)
}

// InTx calls f in a transaction with bounds, and commits it unless f returns an error, which it returns.
func InTx(ctx context.Context, db Beginner, options pgx.TxOptions, bounds Bounds, f func(pgx.Tx) error) error {
	tx, err := Begin(ctx, db, options, bounds)
	if err != nil {
		return err
	}
	// After COMMIT it does nothing. A context that has ended closes the connection, which rolls back as well.
	defer tx.Rollback(ctx)
	if err := f(tx); err != nil {
		return err
	}
	return tx.Commit(ctx)
}
