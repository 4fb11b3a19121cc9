package schema_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline/schema"
)

// syncBuffer is a log that can be read while it is written.
type syncBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// A dump holds a lock on all tables for as long as it takes. A migration that waited behind it would have everybody
// who uses the table wait as well; so it waits in short turns, says for whom, and is done when the dump is.
func TestMigrationBehindADump(t *testing.T) {
	t.Parallel()
	connect := empty(t)
	f := files("0001_a.sql", "create table a (x integer);")
	mustMigrate(t, connect(), f, 1)
	dump := connect()
	mustExec(t, dump, "set application_name = 'nightly dump'; begin; lock table a in access share mode")

	f["0002_a.sql"] = files("x", "alter table a add column y integer;")["x"]
	log := &syncBuffer{}
	migrating := connect()
	done := make(chan error, 1)
	go func() {
		n, err := schema.MigrateFiles(t.Context(), migrating, f, slog.New(slog.NewTextHandler(log, nil)))
		if err == nil && n != 1 {
			err = fmt.Errorf("%d migrations applied; want 1", n)
		}
		done <- err
	}()
	reader := connect()
	mustExec(t, reader, "set statement_timeout = 60000") // a failure, in place of a test that hangs
	const waitsSQL = `select exists (select from pg_locks where relation = 'a'::regclass and not granted)`
	pgtest.Until(t, reader, waitsSQL)
	mustExec(t, reader, "select count(*) from a") // queues behind the migration, and is through long before the dump ends
	who := fmt.Sprintf("process %d (nightly dump as", dump.PgConn().PID())
	pgtest.Eventually(t, "the log has "+who, func() bool { return strings.Contains(log.String(), who) },
		func() any { return log.String() })
	if !exists(t, reader, "a") {
		t.Fatal("the table is gone")
	}
	mustExec(t, dump, "commit")
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	mustExec(t, reader, "select y from a")
}

// A start that gives up says whom the migration waited for.
func TestMigrationGivesUpBehindADump(t *testing.T) {
	t.Parallel()
	connect := empty(t)
	f := files("0001_a.sql", "create table a (x integer);")
	mustMigrate(t, connect(), f, 1)
	dump := connect()
	mustExec(t, dump, "set application_name = 'nightly dump'; begin; lock table a in access share mode")

	f["0002_a.sql"] = files("x", "alter table a add column y integer;")["x"]
	log := &syncBuffer{}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	migrating := connect()
	done := make(chan error, 1)
	go func() {
		_, err := schema.MigrateFiles(ctx, migrating, f, slog.New(slog.NewTextHandler(log, nil)))
		done <- err
	}()
	pgtest.Eventually(t, "a turn is over", func() bool { return strings.Contains(log.String(), "waits for a lock") })
	cancel()
	if err := <-done; err == nil || !strings.Contains(err.Error(), "nightly dump") {
		t.Errorf("error = %v; want one with who holds the lock", err)
	}
}

// Settings of a role or a database that would break a migration, or show it an old state, have no effect on it.
func TestMigrationUnderSettingsOfTheDatabase(t *testing.T) {
	t.Parallel()
	connect := empty(t)
	mustExec(t, connect(), `do $$ begin
		execute format('alter database %I set statement_timeout = 200', current_database());
		execute format('alter database %I set default_transaction_isolation = serializable', current_database());
		end $$`)
	conn := connect()
	mustMigrate(t, conn, files("0001_a.sql", "create table a as select current_setting('transaction_isolation') as level,"+
		" pg_sleep(0.5)::text as slept;"), 1)
	var level string
	if err := conn.QueryRow(t.Context(), "select level from a").Scan(&level); err != nil || level != "read committed" {
		t.Errorf("isolation of a migration = %q, %v; want read committed", level, err)
	}
}
