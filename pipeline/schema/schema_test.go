package schema_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/jackc/pgx/v5"
	"github.com/sourcegraph/conc/pool"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline/schema"
)

var discard = slog.New(slog.DiscardHandler)

// empty returns a function that opens connections to a fresh place without any table.
func empty(t *testing.T) (connect func() *pgx.Conn) {
	t.Helper()
	cfg, err := pgx.ParseConfig(pgtest.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	cfg.RuntimeParams["search_path"] = "fresh"
	connect = func() *pgx.Conn {
		t.Helper()
		conn, err := pgx.ConnectConfig(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close(context.Background()) })
		return conn
	}
	if _, err := connect().Exec(t.Context(), `create schema fresh`); err != nil {
		t.Fatal(err)
	}
	return connect
}

// files makes migrations out of pairs of name and text.
func files(pairs ...string) fstest.MapFS {
	m := fstest.MapFS{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = &fstest.MapFile{Data: []byte(pairs[i+1])}
	}
	return m
}

func mustMigrate(t *testing.T, conn *pgx.Conn, f fstest.MapFS, want int) {
	t.Helper()
	if n, err := schema.MigrateFiles(t.Context(), conn, f, discard); err != nil || n != want {
		t.Fatalf("migrate = %d, %v; want %d", n, err, want)
	}
}

// mustRefuse checks that migrating fails with an error that holds each of the parts.
func mustRefuse(t *testing.T, conn *pgx.Conn, f fstest.MapFS, parts ...string) {
	t.Helper()
	n, err := schema.MigrateFiles(t.Context(), conn, f, discard)
	if err == nil {
		t.Fatalf("migrate = %d; want an error with %q", n, parts)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error = %q; want it to hold %q", err, part)
		}
	}
}

func exists(t *testing.T, conn *pgx.Conn, name string) (yes bool) {
	t.Helper()
	if err := conn.QueryRow(t.Context(), `select to_regclass($1) is not null`, name).Scan(&yes); err != nil {
		t.Fatal(err)
	}
	return yes
}

func TestMigrateTwice(t *testing.T) {
	t.Parallel()
	conn := empty(t)()
	n, err := schema.Migrate(t.Context(), conn, discard)
	if err != nil || n < 2 {
		t.Fatalf("Migrate on nothing = %d, %v; want every migration", n, err)
	}
	if n, err := schema.Migrate(t.Context(), conn, discard); err != nil || n != 0 {
		t.Fatalf("Migrate again = %d, %v; want 0", n, err)
	}
}

func TestMigrateByTwoAtOnce(t *testing.T) {
	t.Parallel()
	connect := empty(t)
	total := 0
	p := pool.NewWithResults[int]().WithErrors()
	for range 4 {
		conn := connect()
		p.Go(func() (int, error) { return schema.Migrate(t.Context(), conn, discard) })
	}
	applied, err := p.Wait()
	if err != nil {
		t.Fatalf("one of those that migrate at once failed: %v", err)
	}
	for _, n := range applied {
		total += n
	}
	var rows int
	if err := connect().QueryRow(t.Context(), `select count(*) from schema_version`).Scan(&rows); err != nil ||
		total != rows {
		t.Fatalf("applied = %v, schema_version has %d rows, %v; want each migration done once", applied, rows, err)
	}
}

func TestMigrateGoesOnAfterAFailure(t *testing.T) {
	t.Parallel()
	conn := empty(t)()
	const good, bad = "create table a (x integer);\n", "create table b (x integer);\n\ncreate table c (x nonsense);\n"
	mustRefuse(t, conn, files("0001_a.sql", good, "0002_b.sql", bad), "0002_b.sql, line 3", "nonsense")
	if !exists(t, conn, "a") || exists(t, conn, "b") {
		t.Fatal("want the first migration kept and the failed one undone")
	}
	mustMigrate(t, conn, files("0001_a.sql", good, "0002_b.sql", "create table b (x integer);"), 1)
}

func TestMigrateRefusesWhatDoesNotFit(t *testing.T) {
	t.Parallel()
	conn := empty(t)()
	const one, two = "create table a ();\n", "create table b ();\n"
	mustMigrate(t, conn, files("0001_a.sql", one, "0002_b.sql", two), 2)
	mustMigrate(t, conn, files("0001_a.sql", strings.ReplaceAll(one, "\n", "\r\n"), "0002_b.sql", two), 0)
	mustRefuse(t, conn, files("0001_a.sql", one), "version 2 (b)", "that know version 2", "up to 1", "newer program")
	mustRefuse(t, conn, files("0001_a.sql", one+"create table z ();", "0002_b.sql", two, "0003_c.sql",
		"create table c ();"),
		"0001_a.sql was edited", "new migration")
	if exists(t, conn, "c") {
		t.Error("a refusal changed the database")
	}
	mustRefuse(t, conn, files("0001_a.sql", one, "0003_b.sql", two), "0003_b.sql", "0002 is missing")
	mustRefuse(t, conn, files("0001_a.sql", one, "0001_b.sql", two), "0001_b.sql", "0001 is taken")
	mustRefuse(t, conn, files("0001_a.sql", one, "two.sql", two), "two.sql", "0001_name.sql")
}

func TestMigrateWithoutTransaction(t *testing.T) {
	t.Parallel()
	connect := empty(t)
	const marked = "-- no transaction\ncreate index concurrently if not exists a_x on a (x);\n"
	f := files("0001_a.sql", "create table a (x integer);", "0002_index.sql", marked, "0003_b.sql", "create table b ();")
	// Several at once: those that wait must not hold up "concurrently", which waits for every snapshot.
	p := pool.New().WithErrors()
	for range 3 {
		conn := connect()
		p.Go(func() error {
			_, err := schema.MigrateFiles(t.Context(), conn, f, discard)
			return err
		})
	}
	if err := p.Wait(); err != nil {
		t.Fatal(err)
	}
	conn := connect()
	if !exists(t, conn, "a_x") || !exists(t, conn, "b") {
		t.Fatal("the index or what comes after it is missing")
	}
	mustMigrate(t, conn, f, 0)
	unmarked := strings.TrimPrefix(marked, "-- no transaction\n")
	mustRefuse(t, empty(t)(), files("0001_a.sql", "create table a (x integer);", "0002_index.sql", unmarked),
		"0002_index.sql", "transaction block")
}

func TestMigrateWithoutTheRightToCreate(t *testing.T) {
	t.Parallel()
	connect := empty(t)
	owner := connect()
	f := files("0001_a.sql", "create table a ();")
	mustMigrate(t, owner, f, 1)
	reader := connect()
	const setUpSQL = `
create role sluice_test_reader;
grant usage on schema fresh to sluice_test_reader;
grant select on fresh.schema_version to sluice_test_reader`
	if _, err := owner.Exec(t.Context(), setUpSQL); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		const tidySQL = `drop owned by sluice_test_reader; drop role sluice_test_reader`
		if _, err := owner.Exec(context.Background(), tidySQL); err != nil {
			t.Error(err)
		}
	})
	if _, err := reader.Exec(t.Context(), `set role sluice_test_reader`); err != nil {
		t.Fatal(err)
	}
	mustMigrate(t, reader, f, 0)
}
