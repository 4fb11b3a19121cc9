package backtest

import (
	"testing"
	"time"

	"sluice.example/sluice/internal/pgtest"
)

// With a bound on how late events are, a backtest locks the days of its period and no others.
func TestMaxLateLocksTheDaysOfThePeriod(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	const makeSQL = `select count(create_events_partition((now() at time zone 'UTC')::date - i))
		from generate_series(3, 100) i`
	if _, err := pool.Exec(t.Context(), makeSQL); err != nil {
		t.Fatal(err)
	}
	const insertSQL = `
insert into events (event_id, tenant_id, event_name, occurred_at, received_at)
select gen_random_uuid(), 1, 'x', now() - i * interval '1 day', now() from unnest(array[0, 1, 3, 50]) i`
	if _, err := pool.Exec(t.Context(), insertSQL); err != nil {
		t.Fatal(err)
	}
	locksAndEvents := func(b backtest) (locks, events int) {
		t.Helper()
		tx, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(t.Context())
		b.start, b.To = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
		err = tx.QueryRow(t.Context(), countSQL, b.arguments()...).Scan(&events)
		if err != nil {
			t.Fatal(err)
		}
		const locksSQL = `select count(*) from pg_locks
			where pid = pg_backend_pid() and relation::regclass::text ~ '^events_[0-9]'`
		if err := tx.QueryRow(t.Context(), locksSQL).Scan(&locks); err != nil {
			t.Fatal(err)
		}
		return locks, events
	}
	if locks, events := locksAndEvents(backtest{Options: Options{MaxLate: 48 * time.Hour}}); events != 2 || locks > 20 {
		t.Errorf("with --max-late 2d: %d events, %d locks; want 2 events, and locks on a week of days", events, locks)
	}
	if _, events := locksAndEvents(backtest{}); events != 4 {
		t.Errorf("without --max-late: %d events; want 4", events)
	}
}
