package pgtest

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
)

func TestDatabasesArePrivateAndMigrated(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	const insertSQL = `
insert into events (event_id, tenant_id, event_name, occurred_at, received_at)
select gen_random_uuid(), 1, 'x', now() + i * interval '1 day', now() from generate_series(-2, 2) as i`
	for range 2 {
		pool := New(t)
		if _, err := pool.Exec(ctx, insertSQL); err != nil {
			t.Fatalf("insert into the partitions around today: %v", err)
		}
		var n int
		if err := pool.QueryRow(ctx, `select count(*) from events`).Scan(&n); err != nil || n != 5 {
			t.Fatalf("events in a database of its own = %d, %v; want 5", n, err)
		}
	}
}

func TestDatabaseIsDroppedAtTheEnd(t *testing.T) {
	t.Parallel()
	var url string
	t.Run("user", func(t *testing.T) {
		url = URL(t)
		conn, err := pgx.Connect(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close(context.Background()) })
	})
	if conn, err := pgx.Connect(t.Context(), url); err == nil {
		conn.Close(t.Context())
		t.Fatalf("%s is still there after its test", url)
	}
}

func BenchmarkNew(b *testing.B) {
	New(b)
	for b.Loop() {
		New(b)
	}
}
