package copyin

import (
	"context"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline"
)

// lockCounter is a Recorder that counts, inside the transaction, the locks on partitions and their indexes.
type lockCounter struct {
	t    *testing.T
	most int
}

func (r *lockCounter) Record(ctx context.Context, tx pgx.Tx, _ []bool) error {
	const locksSQL = `select count(*) from pg_locks
		where pid = pg_backend_pid() and relation::regclass::text ~ '^events_[0-9]'`
	var n int
	if err := tx.QueryRow(ctx, locksSQL).Scan(&n); err != nil {
		return err
	}
	r.most = max(r.most, n)
	return nil
}

func (r *lockCounter) Committed() {}

// A look-up locks the days that it asks for, however many there are and however often it ran on its connection.
func TestLookUpsLockTheirDaysAlone(t *testing.T) {
	t.Parallel()
	const days = 200
	pool := pgtest.New(t)
	exec(t, pool, `select create_events_partition((now() at time zone 'UTC')::date - i)
		from generate_series(3, $1::int) i`, days)
	cfg := pool.Config()
	cfg.MaxConns = 1 // plans belong to a connection
	single, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(single.Close)

	for name, timeless := range map[string]bool{"with a time": false, "without a time": true} {
		locks := &lockCounter{t: t}
		w := newWriter(t, single)
		w.lookupFirst = 0
		w.decide = func([]pipeline.Event) Recorder { return locks }
		for range 10 {
			batch := events(3)
			for i := range batch {
				batch[i].TimeUnknown = timeless
			}
			checkOutcomes(t, mustWrite(t, w, batch), "sss")
			again := append(slices.Clone(batch), events(1)...) // so that something is recorded
			again[3].TimeUnknown = timeless
			checkOutcomes(t, mustWrite(t, w, again), "ddds")
		}
		// A week at most, with an index each; 2 more for the day that is written to.
		if locks.most == 0 || locks.most > 16 {
			t.Errorf("%s: %d locks on partitions and indexes in a transaction; want those of a few days of %d",
				name, locks.most, days)
		}
	}
}
