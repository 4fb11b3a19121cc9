package outbox_test

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/outbox"
)

// BenchmarkEnqueue is one caller that commits n messages with keys a transaction.
func BenchmarkEnqueue(b *testing.B) {
	for _, n := range []int{1, 10, 100, 1000} {
		b.Run(fmt.Sprint("messages=", n), func(b *testing.B) {
			pool := pgtest.New(b)
			if err := outbox.SyncTopics(b.Context(), pool, []string{"billing"}, nil); err != nil {
				b.Fatal(err)
			}
			messages := make([]outbox.Message, n)
			sent := 0
			b.ReportAllocs()
			for b.Loop() {
				for i := range messages {
					messages[i] = placed(fmt.Sprint("order.placed:", sent))
					sent++
				}
				err := pgx.BeginFunc(b.Context(), pool, func(tx pgx.Tx) error {
					_, err := outbox.Enqueue(b.Context(), tx, messages...)
					return err
				})
				if err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(sent)/b.Elapsed().Seconds(), "messages/s")
			var stored int
			if err := pool.QueryRow(b.Context(), `select count(*) from outbox`).Scan(&stored); err != nil || stored != sent {
				b.Fatalf("%d rows are stored, %v; want %d", stored, err, sent)
			}
		})
	}
}
