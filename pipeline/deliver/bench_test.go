package deliver_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"

	"sluice/internal/pgtest"
	"sluice/pipeline/claim"
	"sluice/pipeline/deliver"
)

// sink is a receiver that answers 200 to everything and counts. It runs in this process.
func sink(b *testing.B) (url string, received *atomic.Int64) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	received = &atomic.Int64{}
	s := &fasthttp.Server{Handler: func(*fasthttp.RequestCtx) { received.Add(1) }}
	go s.Serve(l)
	b.Cleanup(func() { s.Shutdown() })
	return "http://" + l.Addr().String(), received
}

func cpu() time.Duration {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkDeliver delivers due rows until all are recorded as sent.
func BenchmarkDeliver(b *testing.B) {
	const messages = 20_000
	pool := pgtest.New(b)
	ctx := context.Background()
	url, received := sink(b)
	ds, err := deliver.Parse("d", fmt.Appendf(nil, "destinations: [{name: crm, url: '%s', secret_env: S, allow_private: true}]", url),
		func(string) (string, bool) { return "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", true })
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		b.StopTimer()
		if _, err := pool.Exec(ctx, `truncate outbox`); err != nil {
			b.Fatal(err)
		}
		_, err := pool.Exec(ctx, `insert into outbox (tenant_id, type, subject_key, dedupe_key, destination, payload, rule_id)
			select 1, 'welcome', 'user-' || i, gen_random_uuid()::text, 'crm', jsonb_build_object('user_id', 'user-' || i, 'plan', 'pro', 'amount', i), 'welcome'
			from generate_series(1, $1) i`, messages)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := pool.Exec(ctx, `vacuum analyze outbox`); err != nil {
			b.Fatal(err)
		}
		received.Store(0)
		log := slog.New(slog.DiscardHandler)
		q, err := claim.New(claim.DefaultConfig(), pool, claim.NewMetrics(prometheus.NewRegistry()), log)
		if err != nil {
			b.Fatal(err)
		}
		d, err := deliver.New(deliver.DefaultConfig(), ds, q, deliver.NewMetrics(prometheus.NewRegistry()), log)
		if err != nil {
			b.Fatal(err)
		}
		run, cancel := context.WithCancel(ctx)
		var wg sync.WaitGroup
		c0 := cpu()
		start := time.Now()
		b.StartTimer()
		wg.Go(func() { d.Run(run) })
		for left := 1; left > 0; time.Sleep(20 * time.Millisecond) {
			if received.Load() < messages {
				continue
			}
			if err := pool.QueryRow(ctx, `select count(*) from outbox where status <> 'sent'`).Scan(&left); err != nil {
				b.Fatal(err)
			}
		}
		b.StopTimer()
		b.ReportMetric(messages/time.Since(start).Seconds(), "deliveries/s")
		b.ReportMetric(float64((cpu()-c0).Nanoseconds())/1000/messages, "cpu-us/delivery")
		cancel()
		wg.Wait()
		if n := received.Load(); n != messages {
			b.Fatalf("received %d; want %d", n, messages)
		}
		b.StartTimer()
	}
}
