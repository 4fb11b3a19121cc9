package retain

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/sourcegraph/conc/pool"

	"sluice.example/sluice/internal/pgtest"
)

// session returns a pool whose sessions begin with these parameters.
func session(t *testing.T, db *pgxpool.Pool, parameters map[string]string) *pgxpool.Pool {
	t.Helper()
	cfg := db.Config()
	for name, value := range parameters {
		cfg.ConnConfig.RuntimeParams[name] = value
	}
	p, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// A role or a database may have timeouts that are shorter than what a pass takes, and another isolation.
func TestPassDependsOnNoSettingOfRoleOrDatabase(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	oldDays(t, db, 40)
	mustExec(t, db, `
insert into quarantine (tenant_id, event_id, occurred_at, quarantined_at, event, sqlstate, reason)
values (1, gen_random_uuid(), now(), now() - interval '100 days', '', '22P05', '')`)
	mustExec(t, db, `
create function slow() returns trigger language plpgsql as $$ begin perform pg_sleep(0.5); return old; end $$;
create trigger slow before delete on quarantine for each row execute function slow()`)
	report, err := db.Begin(t.Context()) // holds up the detaching of the day, meanwhile another transaction is idle
	if err != nil {
		t.Fatal(err)
	}
	defer report.Rollback(context.Background())
	if _, err := report.Exec(t.Context(), `select count(*) from events`); err != nil {
		t.Fatal(err)
	}
	k := newKeeper(t, session(t, db, map[string]string{
		"idle_in_transaction_session_timeout": "200ms", "default_transaction_isolation": "serializable",
	}), func(c *Config) { c.Events = 30 * day })
	passes := pool.New().WithErrors()
	passes.Go(func() error {
		if !k.pass(t.Context()) {
			return errors.New("a pass failed")
		}
		return nil
	})
	pgtest.Eventually(t, "a transaction of the pass is idle for long", func() bool {
		return column(t, db, `
select 'idle' from pg_stat_activity where datname = current_database() and state = 'idle in transaction'
	and now() - state_change > interval '400 milliseconds' and query not like '%count%'`) != ""
	})
	if err := report.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := passes.Wait(); err != nil {
		t.Error(err)
	}
	if left := column(t, db, tablesLeftSQL); left != "" {
		t.Errorf("days left = %s, want none", left)
	}

	mustExec(t, db, `update quarantine set quarantined_at = now() - interval '100 days'`)
	mustExec(t, db, `
insert into quarantine (tenant_id, event_id, occurred_at, quarantined_at, event, sqlstate, reason)
values (1, gen_random_uuid(), now(), now() - interval '100 days', '', '22P05', '')`)
	mustPass(t, newKeeper(t, session(t, db, map[string]string{"statement_timeout": "300ms"}), nil))
	if left := column(t, db, `select reason from quarantine`); left != "" {
		t.Error("a row that takes longer to delete than the role's statement_timeout is still there")
	}
}

// A role that can make no partition still tells how many there are, before events need one.
func TestPartitionsAheadAreCountedByARoleThatCanMakeNone(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	role := db.Config().ConnConfig.Database + "_app"
	mustExec(t, db, `create role `+role)
	t.Cleanup(func() {
		for _, sql := range []string{`drop owned by `, `drop role `} {
			if _, err := db.Exec(context.Background(), sql+role); err != nil {
				t.Error(err)
			}
		}
	})
	mustExec(t, db, `grant select, insert, update, delete on all tables in schema public to `+role)
	k := newKeeper(t, session(t, db, map[string]string{"role": role}), nil)
	check := func(want float64) {
		t.Helper()
		if k.pass(t.Context()) {
			t.Error("a pass that can make no partition went well")
		}
		if got := testutil.ToFloat64(k.metrics.ahead); got != want {
			t.Errorf("partitions ahead = %v, want %v", got, want)
		}
	}
	check(2)
	var today string
	err := db.QueryRow(t.Context(), `select 'events_' || to_char(now() at time zone 'UTC', 'YYYYMMDD')`).Scan(&today)
	if err != nil {
		t.Fatal(err)
	}
	mustExec(t, db, fmt.Sprintf(`drop table %s`, pgx.Identifier{today}.Sanitize()))
	check(-1)
	if got := testutil.ToFloat64(k.metrics.failures.WithLabelValues("partitions-ahead")); got != 2 {
		t.Errorf("failures counted = %v, want 2", got)
	}
}

func TestCheckFailsWhereAPassWould(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	if err := newKeeper(t, db, nil).Check(t.Context()); err != nil {
		t.Errorf("Check = %v, want nil", err)
	}
	only := session(t, db, map[string]string{"default_transaction_read_only": "on"})
	if err := newKeeper(t, only, nil).Check(t.Context()); err == nil || !strings.Contains(err.Error(), "25006") {
		t.Errorf("Check on a read-only database = %v, want 25006", err)
	}
}
