package schema_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/internal/pgtest"
)

// Two sessions that need the same day at the same moment: the one that waited finds it made.
func TestCreatePartitionConcurrently(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const createSQL = `select create_events_partition('2020-07-30')`
	create := func(tx pgx.Tx) (made bool, err error) {
		err = tx.QueryRow(ctx, createSQL).Scan(&made)
		return made, err
	}
	first, err := pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Rollback(context.WithoutCancel(ctx))
	if made, err := create(first); err != nil || !made {
		t.Fatalf("the first session: %v, %v; want true", made, err)
	}
	second, err := pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Rollback(context.WithoutCancel(ctx))
	type outcome struct {
		made bool
		err  error
	}
	done := make(chan outcome, 1)
	go func() {
		made, err := create(second)
		done <- outcome{made, err}
	}()
	const waitingSQL = `select exists (select from pg_locks where locktype = 'advisory' and not granted
		and database = (select oid from pg_database where datname = current_database()))`
	pgtest.Until(t, pool, waitingSQL)
	if err := first.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	if got := <-done; got.err != nil || got.made {
		t.Errorf("the second session: %v, %v; want false and no error", got.made, got.err)
	}
}
