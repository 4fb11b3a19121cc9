package schema

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"sluice.example/sluice/internal/pgtx"
	"sluice.example/sluice/internal/wait"
)

// Migrate applies what is missing and returns how many migrations that were. It changes nothing, and returns an error
// that names the remedy, where a migration was edited after it had been applied, where the database is newer than the
// program and does not take programs of its age any more, where tables that are not ours have the names of ours, and
// where the database does not hold UTF-8.
//
// It waits, as long as ctx lasts, while another program migrates the same database, and for locks that others hold on
// its tables; log gets a line for each such wait. It waits for a lock in short turns, since everybody who needs the
// table queues behind it. A role that may not create tables can call it on a database that is up to date.
func Migrate(ctx context.Context, conn *pgx.Conn, log *slog.Logger) (applied int, err error) {
	all, err := load(files)
	if err != nil {
		return 0, fmt.Errorf("schema: embedded migrations: %w", err)
	}
	applied, err = migrate(ctx, conn, all, log)
	if err != nil {
		return applied, fmt.Errorf("schema: %w", err)
	}
	return applied, nil
}

const (
	// lockTimeout is how long a statement of a migration waits for a lock, and how long everybody who needs the same
	// table waits behind it. A guess: less than clients notice as an outage.
	lockTimeout = time.Second
	// lockPause is how long those who queued have the table before the next turn. A guess.
	lockPause = 2 * time.Second
)

func migrate(ctx context.Context, conn *pgx.Conn, all []migration, log *slog.Logger) (applied int, err error) {
	if err := checkEncoding(ctx, conn); err != nil {
		return 0, err
	}
	if err := checkSearchPath(ctx, conn); err != nil {
		return 0, err
	}
	var holders string // of the locks that a migration waits for
	gaveUp := func(err error) error {
		return fmt.Errorf("%w; locks are held by %s: end them or wait for them, then start again", err, holders)
	}
	for {
		did, err := step(ctx, conn, all, log)
		switch {
		case errors.Is(err, errLocked):
			// Polling, not waiting in the database: a session that waits for a lock holds a snapshot, for which
			// "create index concurrently" of the session that has the lock would wait in turn.
			if !wait.For(ctx, 100*time.Millisecond) {
				return applied, fmt.Errorf("another program is migrating this database: %w", ctx.Err())
			}
		case isLockTimeout(err):
			var lookErr error
			if holders, lookErr = lockHolders(ctx, conn); lookErr != nil {
				return applied, errors.Join(err, lookErr)
			}
			log.WarnContext(ctx, "schema: a migration waits for a lock and will try again",
				"error", err, "holders", holders, "in", lockPause)
			if !wait.For(ctx, lockPause) {
				return applied, gaveUp(err)
			}
		case err != nil && ctx.Err() != nil && holders != "":
			return applied, gaveUp(err)
		case err != nil:
			return applied, err
		case !did:
			return applied, nil
		default:
			applied++
		}
	}
}

// isLockTimeout reports whether a statement gave up waiting for a lock.
func isLockTimeout(err error) bool {
	var refused *pgconn.PgError
	return errors.As(err, &refused) && refused.Code == "55P03" // lock_not_available
}

// lockHoldersSQL names the oldest transactions that hold locks on our tables. Whoever has just taken one is not among
// those that a migration waits for in turn after turn.
const lockHoldersSQL = `
select coalesce(string_agg(
    format('process %s (%s as %s, %s in its transaction)', pid, program, usename, age), ', '), '')
from (
    select a.pid, coalesce(nullif(a.application_name, ''), a.backend_type) as program, a.usename,
        date_trunc('second', now() - a.xact_start) as age
    from pg_stat_activity a
    where a.pid <> pg_backend_pid() and a.pid in (
        select l.pid from pg_locks l join pg_class c on c.oid = l.relation
        where l.granted and l.database = (select oid from pg_database where datname = current_database())
            and c.relnamespace = (select oid from pg_namespace where nspname = current_schema()))
    order by a.xact_start limit 3) oldest`

// lockHolders returns text for people. It looks after the transaction that waited has ended.
func lockHolders(ctx context.Context, conn *pgx.Conn) (holders string, err error) {
	err = conn.QueryRow(ctx, lockHoldersSQL).Scan(&holders)
	if holders == "" {
		holders = "sessions that are gone by now"
	}
	return holders, err
}

// errLocked: another session is migrating.
var errLocked = errors.New("locked")

// step applies the next migration, or reports that there is none. All reading and writing happens under the lock, which
// belongs to the transaction, so that a pooler between us and the server does no harm.
func step(ctx context.Context, conn *pgx.Conn, all []migration, log *slog.Logger) (bool, error) {
	var next *migration
	// Read committed, whatever the default: a stricter level would show the database of before the lock.
	err := pgtx.InTx(ctx, conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, bounds, func(tx pgx.Tx) error {
		var locked bool
		if err := tx.QueryRow(ctx, tryLockSQL).Scan(&locked); err != nil {
			return err
		} else if !locked {
			return errLocked
		}
		var err error
		if next, err = pending(ctx, tx, all, log); err != nil || next == nil || next.noTransaction {
			return err
		}
		return apply(ctx, tx, next)
	})
	if err != nil || next == nil || !next.noTransaction {
		return err == nil && next != nil, err
	}
	return stepWithoutTransaction(ctx, conn, all, log)
}

// bounds are on waiting, and not on the work: a role's statement_timeout is for its everyday statements.
var bounds = pgtx.Bounds{Idle: time.Minute, Lock: lockTimeout}

const (
	lockKey             = `hashtextextended('sluice:schema', 0)`
	tryLockSQL          = `select pg_try_advisory_xact_lock(` + lockKey + `)`
	trySessionLockSQL   = `select pg_try_advisory_lock(` + lockKey + `)`
	sessionUnlockSQL    = `select pg_advisory_unlock(` + lockKey + `)`
	sessionUnlockMaxAge = 5 * time.Second
)

// stepWithoutTransaction holds the lock by the session, since there is no transaction to hold it. This kind of
// migration needs a direct connection to the server.
func stepWithoutTransaction(
	ctx context.Context, conn *pgx.Conn, all []migration, log *slog.Logger,
) (did bool, err error) {
	var locked bool
	if err := conn.QueryRow(ctx, trySessionLockSQL).Scan(&locked); err != nil {
		return false, err
	} else if !locked {
		return false, errLocked
	}
	defer func() {
		if conn.IsClosed() {
			return // and so the lock is gone
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sessionUnlockMaxAge)
		defer cancel()
		_, unlockErr := conn.Exec(ctx, sessionUnlockSQL)
		err = errors.Join(err, unlockErr)
	}()
	next, err := pending(ctx, conn, all, log) // again: the lock was not held since the last look
	if err != nil || next == nil || !next.noTransaction {
		return false, err
	}
	return true, apply(ctx, conn, next)
}

// querier is a transaction, or a connection without one.
type querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func apply(ctx context.Context, db querier, m *migration) error {
	// Without arguments pgx sends the text as it is, so that a file may hold any number of statements.
	if _, err := db.Exec(ctx, m.sql); err != nil {
		var refused *pgconn.PgError
		if errors.As(err, &refused) && refused.Position > 0 {
			return fmt.Errorf("%s, line %d: %w", m.file(), line(m.sql, int(refused.Position)), err)
		}
		return fmt.Errorf("%s: %w", m.file(), err)
	}
	return record(ctx, db, m)
}

// line returns the line of a position as PostgreSQL counts it: in characters, from 1.
func line(text string, position int) int {
	runes := []rune(text)
	return 1 + strings.Count(string(runes[:min(position-1, len(runes))]), "\n")
}
