package bench

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"sluice.example/sluice/internal/localpg"
	"sluice.example/sluice/pipeline/schema"
)

// Database is a migrated database of a run's own, on a given server or on a private one.
type Database struct {
	URL  string
	Pool *pgxpool.Pool

	name       string
	server     string // the URL that it was created through
	local      *localpg.Server
	dir        string
	postmaster int // 0 where the server is on another machine
}

// days before today have their partition, as many as the spread-out input of ingest-days has.
const days = 20

// OpenDatabase creates the database. Without a url it starts a private PostgreSQL with the program's own settings,
// fsync and synchronous_commit on. With one it creates a database beside the one that url names, which it does not
// touch.
func OpenDatabase(ctx context.Context, url string) (_ *Database, err error) {
	db := &Database{server: url}
	defer func() {
		if err != nil {
			err = errors.Join(err, db.Close())
		}
	}()
	if url == "" {
		if err := db.startLocal(ctx); err != nil {
			return nil, err
		}
	}
	random := make([]byte, 6)
	rand.Read(random) // never fails, see crypto/rand
	name := "sluice_bench_" + hex.EncodeToString(random)
	if err := db.onServer(ctx, `create database `+name); err != nil {
		return nil, fmt.Errorf("bench: make a database of its own (the user needs CREATEDB): %w", err)
	}
	db.name = name
	if db.URL, err = withDatabase(db.server, name); err != nil {
		return nil, err
	}
	conn, err := pgx.Connect(ctx, db.URL)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	defer conn.Close(ctx)
	if _, err := schema.Migrate(ctx, conn, slog.New(slog.DiscardHandler)); err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	if _, err := conn.Exec(ctx,
		`select create_events_partition((now() at time zone 'UTC')::date + n) from generate_series(-$1::int, 2) n`,
		days); err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	if db.Pool, err = pgxpool.New(ctx, db.URL); err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	db.postmaster = postmasterOf(int(conn.PgConn().PID()), name)
	return db, nil
}

func (db *Database) startLocal(ctx context.Context) (err error) {
	if db.dir, err = os.MkdirTemp("", "pipeline-bench-"); err != nil {
		return err
	}
	if err := os.Chmod(db.dir, 0o755); err != nil { // PostgreSQL may run as another user
		return err
	}
	cfg := localpg.DefaultConfig()
	cfg.DataDir, cfg.Logger = filepath.Join(db.dir, "data"), slog.New(slog.DiscardHandler)
	if db.local, err = localpg.Start(ctx, cfg); err != nil {
		return err
	}
	db.server = db.local.URL()
	return nil
}

func (db *Database) onServer(ctx context.Context, sql string) error {
	conn, err := pgx.Connect(ctx, db.server)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, sql)
	return err
}

// Close drops the database, and stops the private PostgreSQL where there is one.
func (db *Database) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if db.Pool != nil {
		db.Pool.Close()
	}
	var errs []error
	if db.local != nil {
		errs = append(errs, db.local.Stop(ctx), os.RemoveAll(db.dir))
	} else if db.name != "" {
		if err := db.onServer(ctx, `drop database `+db.name+` with (force)`); err != nil {
			errs = append(errs, fmt.Errorf("bench: drop %s by hand: %w", db.name, err))
		}
	}
	return errors.Join(errs...)
}

// withDatabase is the same server with another database.
func withDatabase(server, name string) (string, error) {
	if !strings.Contains(server, "://") {
		return server + " dbname=" + name, nil // of two the last counts
	}
	u, err := url.Parse(server)
	if err != nil {
		return "", errors.New("bench: database-url is not a URL") // it may hold a password
	}
	u.Path = "/" + name
	return u.String(), nil
}

// postmasterOf returns the parent of a backend of ours, or 0 where no such process is on this machine.
func postmasterOf(backend int, database string) int {
	title, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", backend))
	if err != nil || !strings.Contains(string(title), database) {
		return 0
	}
	f, err := procStat(backend)
	if err != nil {
		return 0
	}
	pid, _ := strconv.Atoi(f[1])
	return pid
}

// reset empties what a run fills, and ends the checkpoint that this may have started before anything is measured.
func (db *Database) reset(ctx context.Context) error {
	const resetSQL = `truncate events, outbox, outbox_attempts, dedupe_keys, rule_subjects, quarantine`
	if _, err := db.Pool.Exec(ctx, resetSQL); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	var refused *pgconn.PgError
	// it takes a right that a user may lack
	if _, err := db.Pool.Exec(ctx, `checkpoint`); err != nil && !errors.As(err, &refused) {
		return fmt.Errorf("bench: %w", err)
	}
	return nil
}

// stored counts the rows and the different ids among them.
func (db *Database) stored(ctx context.Context) (rows, ids int64, err error) {
	err = db.Pool.QueryRow(ctx, `select count(*), count(distinct (tenant_id, event_id)) from events`).Scan(&rows, &ids)
	return rows, ids, err
}

// volume is how much PostgreSQL has written: the position in the WAL, and what the tables take on disk.
type volume struct{ wal, events, outbox int64 }

func (db *Database) volume(ctx context.Context) (v volume, err error) {
	const volumeSQL = `
select pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint,
    (select coalesce(sum(pg_total_relation_size(inhrelid)), 0)::bigint
        from pg_inherits where inhparent = 'events'::regclass),
    pg_total_relation_size('outbox') + pg_total_relation_size('outbox_attempts')
        + pg_total_relation_size('dedupe_keys')`
	err = db.Pool.QueryRow(ctx, volumeSQL).Scan(&v.wal, &v.events, &v.outbox)
	return v, err
}
