package copyin

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"sluice.example/sluice/internal/localpg"
	"sluice.example/sluice/internal/pgsession"
	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline"
	"sluice.example/sluice/pipeline/schema"
)

// altered returns a pool as the program opens it, whose sessions begin with these settings of the database, and one
// whose sessions began before.
func altered(t *testing.T, settings ...string) (program, other *pgxpool.Pool) {
	t.Helper()
	other = pgtest.New(t)
	database := pgx.Identifier{other.Config().ConnConfig.Database}.Sanitize()
	for _, s := range settings {
		exec(t, other, fmt.Sprintf(`alter database %s set %s`, database, s))
	}
	cfg := other.Config()
	pgsession.Configure(cfg.ConnConfig)
	program, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(program.Close)
	return program, other
}

// What COMMIT does and what a statement sees does not depend on settings of the role or of the database, on neither
// path.
func TestTransactionDependsOnNoSettingOfRoleOrDatabase(t *testing.T) {
	t.Parallel()
	program, other := altered(t,
		`synchronous_commit = off`, `default_transaction_isolation = serializable`, `statement_timeout = '40ms'`,
		`lock_timeout = '1ms'`, `idle_in_transaction_session_timeout = '10ms'`, `timezone = 'Asia/Kathmandu'`,
		`datestyle = 'German, DMY'`, `client_encoding = 'LATIN1'`, `intervalstyle = 'sql_standard'`,
		`bytea_output = 'escape'`, `extra_float_digits = 0`)
	// It runs at COMMIT, whose manner is the one that counts, and takes longer than the database's timeouts.
	exec(t, other, `create table at_commit (setting text, value text)`)
	exec(t, other, `
create function note() returns trigger language plpgsql as $$
begin
    perform pg_sleep(0.1);
    insert into at_commit select name, current_setting(name)
    from unnest('{synchronous_commit,transaction_isolation,transaction_read_only}'::text[]) as name;
    return null;
end $$`)
	exec(t, other, `
create constraint trigger note after insert on events deferrable initially deferred
for each row execute function note()`)
	w := newWriter(t, program)
	look := newWriter(t, program)
	look.lookupFirst = 0
	decided := newWriter(t, program)
	decided.decide = func([]pipeline.Event) Recorder { return &books{} }
	for name, w := range map[string]*Writer{"straight": w, "looked up": look, "with decisions": decided} {
		exec(t, other, `truncate at_commit`)
		e := event("größe")
		e.OccurredAt = e.OccurredAt.AddDate(0, 0, 9) // makes a partition
		checkOutcomes(t, mustWrite(t, w, []pipeline.Event{e}), "s")
		const settingsSQL = `select string_agg(distinct setting || ' ' || value, ', ') from at_commit`
		const want = "synchronous_commit on, transaction_isolation read committed, transaction_read_only off"
		if got := scan[string](t, other, settingsSQL); got != want {
			t.Errorf("%s: COMMIT ran with %s, want %s", name, got, want)
		}
		const storedSQL = `select event_name || ' ' || properties::text from events where event_id = $1`
		if got := scan[string](t, other, storedSQL, e.ID); got != `größe {"n": 1}` {
			t.Errorf("%s: stored %s", name, got)
		}
		checkOutcomes(t, mustWrite(t, newWriter(t, program), []pipeline.Event{e}), "d")
	}
	const boundsSQL = `select pg_get_expr(c.relpartbound, c.oid) from pg_class c join pg_inherits on inhrelid = c.oid
where inhparent = 'events'::regclass order by relname desc limit 1`
	day := today().AddDate(0, 0, 9).Format("2006-01-02")
	if got := scan[string](t, other, boundsSQL); !strings.Contains(got, day+" 00:00:00+00") {
		t.Errorf("the partition made is %s, want the UTC day %s", got, day)
	}
}

// An operator who waits for more than the local disk, or chose not to wait for standbys, is not overruled.
func TestChosenWaitForStandbysIsKept(t *testing.T) {
	t.Parallel()
	for _, chosen := range []string{"local", "remote_write", "on", "remote_apply"} {
		program, _ := altered(t, `synchronous_commit = `+chosen)
		conn, err := program.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		tx, _, err := newWriter(t, program).begin(t.Context(), conn.Conn())
		if err != nil {
			t.Fatal(err)
		}
		var got string
		if err := tx.QueryRow(t.Context(), `show synchronous_commit`).Scan(&got); err != nil || got != chosen {
			t.Errorf("synchronous_commit is %s, %v; want %s as chosen", got, err, chosen)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Error(err)
		}
		conn.Release()
	}
}

// PostgreSQL is killed the moment that Write returns, with its WAL writer asleep and synchronous_commit off for the
// role.
func TestWrittenOutlivesPostgresWithSynchronousCommitOff(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "copyin-") // short, so that the socket fits in, and open to the server's user
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	cfg := localpg.DefaultConfig()
	cfg.DataDir, cfg.BinDir = dir, pgtest.BinDir()
	cfg.Logger = slog.New(slog.DiscardHandler)
	cfg.Settings = map[string]string{"fsync": "off", "wal_writer_delay": "10s", "shared_buffers": "16MB"}
	server, err := localpg.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Stop(context.Background()) })
	conn, err := pgx.Connect(t.Context(), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := schema.Migrate(t.Context(), conn, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), `alter role current_user set synchronous_commit = off`); err != nil {
		t.Fatal(err)
	}
	conn.Close(t.Context())
	pool, err := pgxpool.New(t.Context(), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	w := newWriter(t, pool)
	decided := newWriter(t, pool)
	decided.decide = func([]pipeline.Event) Recorder { return &books{} }
	mustWrite(t, w, events(1)) // makes the partition
	for round, w := range []*Writer{w, decided} {
		before, err := localpg.Find(dir)
		if err != nil {
			t.Fatal(err)
		}
		e := event("written")
		checkOutcomes(t, mustWrite(t, w, []pipeline.Event{e}), "s")
		if err := syscall.Kill(before.Pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		pgtest.Eventually(t, "PostgreSQL runs again", func() bool {
			now, err := localpg.Find(dir)
			return err == nil && now.Pid != before.Pid
		})
		pgtest.Eventually(t, "it answers", func() bool { return pool.Ping(t.Context()) == nil })
		if n := scan[int](t, pool, `select count(*) from events where event_id = $1`, e.ID); n != 1 {
			t.Errorf("round %d: the event that was written is there %d times, want 1", round, n)
		}
	}
}
