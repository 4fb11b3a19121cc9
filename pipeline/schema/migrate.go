package schema

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Migrate applies what is missing and returns how many migrations that were. It refuses, and changes nothing, where
// the database is newer than the program or where a migration was edited after it had been applied.
//
// It waits, as long as ctx lasts, while another program migrates the same database. A role that may not create tables
// can call it on a database that is up to date.
func Migrate(ctx context.Context, conn *pgx.Conn) (applied int, err error) {
	all, err := load(files)
	if err != nil {
		return 0, fmt.Errorf("schema: embedded migrations: %w", err)
	}
	applied, err = migrate(ctx, conn, all)
	if err != nil {
		return applied, fmt.Errorf("schema: %w", err)
	}
	return applied, nil
}

func migrate(ctx context.Context, conn *pgx.Conn, all []migration) (applied int, err error) {
	for {
		did, err := step(ctx, conn, all)
		switch {
		case errors.Is(err, errLocked):
			// Polling, not waiting in the database: a session that waits for a lock holds a snapshot, for which
			// "create index concurrently" of the session that has the lock would wait in turn.
			select {
			case <-ctx.Done():
				return applied, fmt.Errorf("another program is migrating this database: %w", ctx.Err())
			case <-time.After(100 * time.Millisecond):
			}
		case err != nil:
			return applied, err
		case !did:
			return applied, nil
		default:
			applied++
		}
	}
}

// errLocked: another session is migrating.
var errLocked = errors.New("locked")

// step applies the next migration, or reports that there is none. All reading and writing happens under the lock, which
// belongs to the transaction, so that a pooler between us and the server does no harm.
func step(ctx context.Context, conn *pgx.Conn, all []migration) (bool, error) {
	var next *migration
	err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		var locked bool
		if err := tx.QueryRow(ctx, tryLockSQL).Scan(&locked); err != nil {
			return err
		} else if !locked {
			return errLocked
		}
		var err error
		if next, err = pending(ctx, tx, all); err != nil || next == nil || next.noTransaction {
			return err
		}
		return apply(ctx, tx, next)
	})
	if err != nil || next == nil || !next.noTransaction {
		return err == nil && next != nil, err
	}
	return stepWithoutTransaction(ctx, conn, all)
}

const (
	lockKey             = `hashtextextended('sluice:schema', 0)`
	tryLockSQL          = `select pg_try_advisory_xact_lock(` + lockKey + `)`
	trySessionLockSQL   = `select pg_try_advisory_lock(` + lockKey + `)`
	sessionUnlockSQL    = `select pg_advisory_unlock(` + lockKey + `)`
	sessionUnlockMaxAge = 5 * time.Second
)

// stepWithoutTransaction holds the lock by the session, since there is no transaction to hold it. This kind of
// migration needs a direct connection to the server.
func stepWithoutTransaction(ctx context.Context, conn *pgx.Conn, all []migration) (did bool, err error) {
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
	next, err := pending(ctx, conn, all) // again: the lock was not held since the last look
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

const (
	versionTableExistsSQL = `select to_regclass('schema_version') is not null`
	createVersionTableSQL = `
create table schema_version (
    version    integer     primary key,
    name       text        not null,
    applied_at timestamptz not null default now(),
    checksum   text        not null
)`
	versionsSQL = `select version, name, checksum from schema_version order by version`
)

// pending compares the database with the program and returns the next migration to apply, nil where there is none.
func pending(ctx context.Context, db querier, all []migration) (*migration, error) {
	var exists bool
	if err := db.QueryRow(ctx, versionTableExistsSQL).Scan(&exists); err != nil {
		return nil, err
	}
	if !exists {
		if _, err := db.Exec(ctx, createVersionTableSQL); err != nil {
			return nil, fmt.Errorf("create table schema_version: %w", err)
		}
	}
	rows, err := db.Query(ctx, versionsSQL)
	if err != nil {
		return nil, err
	}
	have, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (m migration, err error) {
		return m, row.Scan(&m.version, &m.name, &m.checksum)
	})
	if err != nil {
		return nil, err
	}
	if n := len(have); n > 0 && have[n-1].version > len(all) {
		return nil, fmt.Errorf("the database is at version %d (%s), this program knows versions up to %d: run a newer "+
			"program",
			have[n-1].version, have[n-1].name, len(all))
	}
	var faults []error
	for i, m := range have {
		if m.version != i+1 {
			return nil, fmt.Errorf("schema_version has no row for version %d but one for %d: the table was edited by hand",
				i+1, m.version)
		}
		if m.checksum != all[i].checksum {
			faults = append(faults, fmt.Errorf("%s was edited after it had been applied (as %s): restore the file and put "+
				"the change into a new migration",
				all[i].file(), m.file()))
		}
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	if len(have) == len(all) {
		return nil, nil
	}
	return &all[len(have)], nil
}

const recordSQL = `insert into schema_version (version, name, checksum) values ($1, $2, $3)`

func apply(ctx context.Context, db querier, m *migration) error {
	// Without arguments pgx sends the text as it is, so that a file may hold any number of statements.
	if _, err := db.Exec(ctx, m.sql); err != nil {
		var refused *pgconn.PgError
		if errors.As(err, &refused) && refused.Position > 0 {
			return fmt.Errorf("%s, line %d: %w", m.file(), line(m.sql, int(refused.Position)), err)
		}
		return fmt.Errorf("%s: %w", m.file(), err)
	}
	if _, err := db.Exec(ctx, recordSQL, m.version, m.name, m.checksum); err != nil {
		return fmt.Errorf("%s: record: %w", m.file(), err)
	}
	return nil
}

// line returns the line of a position as PostgreSQL counts it: in characters, from 1.
func line(text string, position int) int {
	runes := []rune(text)
	return 1 + strings.Count(string(runes[:min(position-1, len(runes))]), "\n")
}
