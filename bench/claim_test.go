package bench

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"sluice.example/sluice/pipeline"
	"sluice.example/sluice/pipeline/claim"
)

const (
	finishedRows = 5_000_000
	claimBatch   = 200
	claimRounds  = 250 // claims of one measurement: 50,000 messages
)

// BenchmarkClaim measures the time of one claim of 200 messages, while each is finished and as many new ones come:
// beside nothing; beside 10,000 due rows of a paused destination; with a transaction that someone holds open all along,
// so that no dead row version can be removed; and beside five million finished rows.
func BenchmarkClaim(b *testing.B) {
	ctx := context.Background()
	pg, err := OpenDatabase(ctx, "")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := pg.Close(); err != nil {
			b.Error(err)
		}
	})
	q, err := claim.New(claim.DefaultConfig(), pg.Pool, claim.NewMetrics(prometheus.NewRegistry()),
		slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	exec := func(sql string, args ...any) {
		b.Helper()
		if _, err := pg.Pool.Exec(ctx, sql, args...); err != nil {
			b.Fatalf("%s: %v", sql, err)
		}
	}
	reset := func() {
		b.Helper()
		if err := pg.reset(ctx); err != nil {
			b.Fatal(err)
		}
	}
	var clean []time.Duration
	for b.Loop() {
		reset()
		clean = claims(b, pg, q)
		report(b, "clean", clean, clean)

		reset()
		exec(insertDueSQL, "paused", 10_000)
		report(b, "paused", claims(b, pg, q), clean)

		reset()
		exec(`vacuum analyze outbox`)
		held, err := pg.Pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := held.Exec(ctx, `select count(*) from outbox`); err != nil {
			b.Fatal(err)
		}
		report(b, "held", claims(b, pg, q), clean)
		if err := held.Rollback(ctx); err != nil {
			b.Fatal(err)
		}

		reset()
		for range 10 {
			exec(`insert into outbox (tenant_id, type, subject_key, dedupe_key, destination, payload, status,
					attempts, finished_at)
				select 1, 'welcome', 'user-' || i, 'key-' || i, 'crm', '{"plan":"pro"}', 'sent', 1, now()
				from generate_series(1, $1::int) i`, finishedRows/10)
		}
		exec(`vacuum analyze outbox`)
		exec(`checkpoint`)
		report(b, "finished-5M", claims(b, pg, q), clean)
	}
	b.ReportMetric(0, "ns/op")
}

const insertDueSQL = `
insert into outbox (tenant_id, type, subject_key, dedupe_key, destination, payload)
select 1, 'welcome', 'user-' || i, gen_random_uuid()::text, $1, '{"plan":"pro"}' from generate_series(1, $2::int) i`

// claims claims and finishes a batch at a time, of a backlog that stays the same, and gives the time of each claim.
func claims(b *testing.B, pg *Database, q *claim.Queue) (took []time.Duration) {
	b.Helper()
	ctx := context.Background()
	if _, err := pg.Pool.Exec(ctx, insertDueSQL, "crm", 5*claimBatch); err != nil {
		b.Fatal(err)
	}
	for range claimRounds {
		start := time.Now()
		leases, err := q.Claim(ctx, []pipeline.Want{{Destination: "crm", Room: claimBatch}})
		took = append(took, time.Since(start))
		if err != nil || len(leases) != claimBatch {
			b.Fatalf("claimed %d of %d: %v", len(leases), claimBatch, err)
		}
		results := make([]pipeline.Result, len(leases))
		for i, l := range leases {
			results[i] = pipeline.Result{MessageID: l.ID, Token: l.Token, Status: pipeline.Sent}
		}
		if late, err := q.Finish(ctx, results); err != nil || late != 0 {
			b.Fatalf("finish: %d late, %v", late, err)
		}
		if _, err := pg.Pool.Exec(ctx, insertDueSQL, "crm", claimBatch); err != nil {
			b.Fatal(err)
		}
	}
	return took
}

func report(b *testing.B, name string, took, clean []time.Duration) {
	ms := func(d []time.Duration, from int) float64 {
		var all []float64
		for _, t := range d[from:] {
			all = append(all, t.Seconds()*1000)
		}
		return spread(all).Median
	}
	b.ReportMetric(ms(took, 0), name+"-ms/claim")
	// The last fifth tells whether it gets slower as it goes on.
	b.ReportMetric(ms(took, claimRounds*4/5)/ms(clean, 0), name+"-of-clean")
	if testing.Verbose() {
		fmt.Printf("%s: first %v last %v\n", name, took[:3], took[claimRounds-3:])
	}
}
