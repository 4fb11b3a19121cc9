package explain

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline"
)

// An event is found by its id on whatever day it is, however many there are, in every mode of pgx, and no statement
// locks more than some days.
func TestFindAsksSomeDaysAtATime(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	const makeSQL = `select count(create_events_partition((now() at time zone 'UTC')::date - i))
		from generate_series(3, 300) i`
	if _, err := pool.Exec(t.Context(), makeSQL); err != nil {
		t.Fatal(err)
	}
	id := pipeline.NewUUIDv4()
	const insertSQL = `
insert into events (event_id, tenant_id, event_name, occurred_at, received_at)
select $1, 1, 'day ' || i, now() - i * interval '1 day', now() + i * interval '1 second'
from unnest(array[0, 40, 100, 299]) i`
	if _, err := pool.Exec(t.Context(), insertSQL, id); err != nil {
		t.Fatal(err)
	}
	for _, mode := range []string{"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"} {
		cfg := pool.Config().ConnConfig.Copy()
		if err := setMode(cfg, mode); err != nil {
			t.Fatal(err)
		}
		conn, err := pgx.ConnectConfig(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		// In a transaction, whose locks add up.
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var before, after int
		const locksSQL = `select count(*) from pg_locks
			where pid = pg_backend_pid() and relation::regclass::text ~ '^events_[0-9]'`
		if _, err := findBetween(t.Context(), conn, 1, id, "infinity", "infinity"); err != nil {
			t.Fatal(err)
		}
		if err := tx.QueryRow(t.Context(), locksSQL).Scan(&before); err != nil {
			t.Fatal(err)
		}
		for range 8 { // a prepared statement gets another plan after some executions
			if _, err := findBetween(t.Context(), conn, 1, id, "-infinity", "2020-01-01"); err != nil {
				t.Fatal(err)
			}
		}
		if err := tx.QueryRow(t.Context(), locksSQL).Scan(&after); err != nil || after != before || before > 2 {
			t.Errorf("%s: locks on days = %d, then %d, %v; want next to none", mode, before, after, err)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		all, err := find(t.Context(), conn, 1, id)
		if err != nil || len(all) != 4 || all[0].Name != "day 0" || all[3].Name != "day 299" || all[3].partition == "" {
			t.Errorf("%s: find = %+v, %v; want the four events in the order of arrival", mode, all, err)
		}
		if other, err := find(t.Context(), conn, 2, id); err != nil || len(other) != 0 {
			t.Errorf("%s: find for another tenant = %+v, %v; want nothing", mode, other, err)
		}
		conn.Close(t.Context())
	}
}

func setMode(cfg *pgx.ConnConfig, mode string) error {
	parsed, err := pgx.ParseConfig("default_query_exec_mode=" + mode)
	if err == nil {
		cfg.DefaultQueryExecMode = parsed.DefaultQueryExecMode
	}
	return err
}
