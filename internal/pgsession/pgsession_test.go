package pgsession_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"sluice.example/sluice/internal/pgsession"
	"sluice.example/sluice/internal/pgtest"
)

// open makes a pool of one session that is set up as the program's, and one for other work.
func open(t *testing.T) (session, other *pgxpool.Pool) {
	t.Helper()
	other = pgtest.New(t)
	cfg, err := pgxpool.ParseConfig(other.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns = 1
	pgsession.Configure(cfg.ConnConfig)
	if session, err = pgxpool.NewWithConfig(context.Background(), cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(session.Close)
	return session, other
}

func mustExec(t *testing.T, db *pgxpool.Pool, sql string) {
	t.Helper()
	if _, err := db.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// alter sets something for the database of the test.
func alter(t *testing.T, db *pgxpool.Pool, change string) {
	t.Helper()
	name := pgx.Identifier{db.Config().ConnConfig.Database}.Sanitize()
	mustExec(t, db, fmt.Sprintf(`alter database %s %s`, name, change))
}

// An error that the session keeps is gone once its cause is, since the session is closed and not returned.
func TestSessionThatKeepsItsErrorIsClosed(t *testing.T) {
	t.Parallel()
	const insertSQL = `insert into quarantine values (1, gen_random_uuid(), now(), now(), '', '', '')`
	for _, c := range []struct {
		name, wrong, right, sql, sqlstate string
	}{
		{"read-only", `set default_transaction_read_only = on`, `reset default_transaction_read_only`, insertSQL, "25006"},
		{"another search_path", `set search_path = pg_temp`, `reset search_path`, insertSQL, "42P01"},
		{"a role that may not", `set role = pg_monitor`, `reset role`, insertSQL, "42501"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			session, other := open(t)
			alter(t, other, c.wrong)
			_, err := session.Exec(t.Context(), c.sql)
			if pgErr, ok := errors.AsType[*pgconn.PgError](err); !ok || pgErr.Code != c.sqlstate {
				t.Fatalf("%s = %v, want %s", c.sql, err, c.sqlstate)
			}
			if _, err := session.Exec(t.Context(), c.sql); err == nil {
				t.Fatal("a new session is well while the cause stands: the test tests nothing")
			}
			alter(t, other, c.right)
			if _, err := session.Exec(t.Context(), c.sql); err != nil {
				t.Errorf("after the cause is gone: %v", err)
			}
		})
	}
	t.Run("prepared statements that are gone", func(t *testing.T) {
		t.Parallel()
		session, _ := open(t)
		const sql = `select $1::int`
		for range 2 {
			mustExec(t, session, `select 1`)
			if _, err := session.Exec(t.Context(), sql, 1); err != nil {
				t.Fatal(err)
			}
		}
		mustExec(t, session, `deallocate all`)
		if _, err := session.Exec(t.Context(), sql, 1); err == nil {
			t.Fatal("pgx prepared it anew: the test tests nothing")
		}
		if _, err := session.Exec(t.Context(), sql, 1); err != nil {
			t.Errorf("the second time: %v", err)
		}
	})
}

// Errors of data and of concurrency say nothing about the session, which stays.
func TestSessionOutlivesErrorsOfItsStatements(t *testing.T) {
	t.Parallel()
	session, _ := open(t)
	pid := func() (pid int) {
		t.Helper()
		if err := session.QueryRow(t.Context(), `select pg_backend_pid()`).Scan(&pid); err != nil {
			t.Fatal(err)
		}
		return pid
	}
	before := pid()
	for _, sqlstate := range []string{"22P02", "23505", "23514", "40001", "40P01", "55P03", "57014", "P0001", "54000"} {
		sql := fmt.Sprintf(`do $$ begin raise exception 'x' using errcode = '%s'; end $$`, sqlstate)
		if _, err := session.Exec(t.Context(), sql); err == nil {
			t.Fatalf("no error for %s", sqlstate)
		}
		if after := pid(); after != before {
			t.Errorf("%s ended the session", sqlstate)
			before = after
		}
	}
}

// What the role or the database sets does not reach the program, and what the address names does.
func TestSessionParameters(t *testing.T) {
	t.Parallel()
	session, other := open(t)
	for _, change := range []string{
		`set client_encoding = 'LATIN1'`, `set datestyle = 'German, DMY'`, `set timezone = 'Asia/Kathmandu'`,
	} {
		alter(t, other, change)
	}
	check := func(db *pgxpool.Pool, name, want string) {
		t.Helper()
		var got string
		if err := db.QueryRow(t.Context(), `select current_setting($1)`, name).Scan(&got); err != nil || got != want {
			t.Errorf("%s = %q, %v; want %q", name, got, err, want)
		}
	}
	check(session, "client_encoding", "UTF8")
	check(session, "datestyle", "ISO, MDY")
	check(session, "timezone", "UTC")

	cfg, err := pgxpool.ParseConfig(other.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	cfg.ConnConfig.RuntimeParams["TimeZone"] = "Europe/Prague"
	pgsession.Configure(cfg.ConnConfig)
	named, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer named.Close()
	check(named, "timezone", "Europe/Prague")
}

func TestShortTimeoutsAreNamed(t *testing.T) {
	t.Parallel()
	session, other := open(t)
	short, err := pgsession.Short(t.Context(), other)
	if err != nil || len(short) > 0 {
		t.Errorf("Short = %q, %v; want none", short, err)
	}
	for _, change := range []string{
		`set statement_timeout = '3s'`, `set lock_timeout = '1min'`, `set idle_in_transaction_session_timeout = '50ms'`,
	} {
		alter(t, other, change)
	}
	short, err = pgsession.Short(t.Context(), session)
	want := []string{"idle_in_transaction_session_timeout is 50ms", "statement_timeout is 3000ms"}
	if err != nil || !slices.Equal(short, want) {
		t.Errorf("Short = %q, %v; want %q", short, err, want)
	}
}

// TestKeepalives asks where the settings come from, since they are 0 on a Unix socket.
func TestKeepalives(t *testing.T) {
	t.Parallel()
	db, _ := open(t)
	var n int
	const sql = `select count(*) from pg_settings where source = 'session' and name in ('tcp_keepalives_idle',
		'tcp_keepalives_interval', 'tcp_keepalives_count', 'tcp_user_timeout')`
	if err := db.QueryRow(t.Context(), sql).Scan(&n); err != nil || n != 4 {
		t.Errorf("%d of the 4 settings of keepalives are set, %v", n, err)
	}
}
