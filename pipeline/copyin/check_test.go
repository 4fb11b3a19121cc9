package copyin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"sluice.example/sluice/internal/pgsession"
	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline"
)

// asRole returns a pool of a role of its own that owns nothing and may read and insert, and one of the owner's.
func asRole(t *testing.T) (program, owner *pgxpool.Pool, role string) {
	t.Helper()
	owner = pgtest.New(t)
	role = owner.Config().ConnConfig.Database + "_app"
	exec(t, owner, `create role `+role)
	t.Cleanup(func() {
		exec(t, owner, `drop owned by `+role)
		exec(t, owner, `drop role `+role)
	})
	exec(t, owner, `grant select, insert, update, delete on all tables in schema public to `+role)
	cfg := owner.Config()
	cfg.ConnConfig.RuntimeParams["role"] = role
	pgsession.Configure(cfg.ConnConfig)
	program, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(program.Close)
	return program, owner, role
}

// An error that stays until somebody repairs its cause is not called an outage: the caller is told at once, with the
// true reason, readiness has it too, and all is well as soon as it is repaired.
func TestFaultIsNotAnOutage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, broken, repaired, sqlstate string
	}{
		{
			"row security", `alter table events enable row level security`,
			`alter table events disable row level security`, "0A000",
		},
		{"a privilege", `revoke insert on events from %s`, `grant insert on events to %s`, "42501"},
		{"no table", `alter table events rename to elsewhere`, `alter table elsewhere rename to events`, "42P01"},
		{
			"no column", `alter table events rename referrer to referer`,
			`alter table events rename referer to referrer`, "42703",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			program, owner, role := asRole(t)
			named := func(sql string) string { return strings.ReplaceAll(sql, "%s", role) }
			for way, w := range map[string]*Writer{"straight": newWriter(t, program), "with decisions": newWriter(t, program)} {
				if way != "straight" {
					w.decide = func([]pipeline.Event) Recorder { return &books{} }
				}
				mustWrite(t, w, events(3))
				exec(t, owner, named(c.broken))
				es := events(2)
				_, err := w.Write(t.Context(), es)
				if !errors.Is(err, pipeline.ErrFault) || errors.Is(err, pipeline.ErrUnavailable) ||
					!strings.Contains(err.Error(), c.sqlstate) {
					t.Errorf("%s: Write = %v, want ErrFault with %s", way, err, c.sqlstate)
				}
				if got := counterValue(t, w.m.failed.WithLabelValues("fault")); got != 1 {
					t.Errorf("%s: %v faults counted, want 1", way, got)
				}
				if err := Check(t.Context(), program); err == nil || !strings.Contains(err.Error(), c.sqlstate) {
					t.Errorf("%s: Check = %v, want %s", way, err, c.sqlstate)
				}
				exec(t, owner, named(c.repaired))
				checkOutcomes(t, mustWrite(t, w, es), "ss")
				if err := Check(t.Context(), program); err != nil {
					t.Errorf("%s: Check after the repair = %v", way, err)
				}
			}
		})
	}
}

// A database that was read-only for a while is written to as soon as it is not, whatever sessions the pool holds.
func TestReadOnlyForAWhile(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"straight", "with decisions"} {
		program, other := altered(t, `default_transaction_read_only = on`)
		w := newWriter(t, program, func(c *Config) { c.Deadline = 300 * time.Millisecond })
		if way != "straight" {
			w.decide = func([]pipeline.Event) Recorder { return &books{} }
		}
		es := events(3)
		_, err := w.Write(t.Context(), es)
		if !errors.Is(err, pipeline.ErrUnavailable) || !strings.Contains(err.Error(), "25006") {
			t.Errorf("%s: Write to a read-only database = %v, want ErrUnavailable with 25006", way, err)
		}
		if err := Check(t.Context(), program); err == nil || !strings.Contains(err.Error(), "25006") {
			t.Errorf("%s: Check = %v, want 25006", way, err)
		}
		// Sessions that began while it was read-only, idle in the pool.
		var idle []*pgxpool.Conn
		for range 4 {
			conn, err := program.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			idle = append(idle, conn)
		}
		for _, conn := range idle {
			conn.Release()
		}
		exec(t, other, fmt.Sprintf(`alter database %s reset default_transaction_read_only`,
			pgx.Identifier{other.Config().ConnConfig.Database}.Sanitize()))
		w.cfg.Deadline = time.Minute
		checkOutcomes(t, mustWrite(t, w, es), "sss")
		pgtest.Eventually(t, "Check succeeds", func() bool { return Check(t.Context(), program) == nil })
		checkRows(t, other, 3)
	}
}

// Readiness knows an hour before that a day has no partition and that this role can make none.
func TestCheckKnowsThatThePartitionIsMissing(t *testing.T) {
	t.Parallel()
	program, owner, role := asRole(t)
	if err := Check(t.Context(), program); err != nil {
		t.Fatalf("Check = %v, want nil while there is a partition", err)
	}
	exec(t, owner, `
do $$ begin
    execute 'drop table ' || 'events_' || to_char((now() + interval '1 hour') at time zone 'UTC', 'YYYYMMDD');
end $$`)
	err := Check(t.Context(), program)
	if err == nil || !strings.Contains(err.Error(), "events_") || !strings.Contains(err.Error(), role) {
		t.Errorf("Check = %v, want the partition and the role", err)
	}
	if err := Check(t.Context(), owner); err != nil {
		t.Errorf("Check as the owner = %v, want nil: it makes the partition when it needs it", err)
	}
}
