package deliver_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline/claim"
	"sluice.example/sluice/pipeline/deliver"
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

// stage runs claim and deliver on a database until the benchmark ends.
func stage(b *testing.B, pool *pgxpool.Pool, text string) *deliver.Dispatcher {
	ds, err := deliver.Parse("d", []byte("destinations:\n"+text),
		func(string) (string, bool) { return "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", true })
	if err != nil {
		b.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	q, err := claim.New(claim.DefaultConfig(), pool, claim.NewMetrics(prometheus.NewRegistry()), log)
	if err != nil {
		b.Fatal(err)
	}
	d, err := deliver.New(deliver.DefaultConfig(), ds, q, claim.DefaultConfig().Lease,
		deliver.NewMetrics(prometheus.NewRegistry()), log)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { d.Run(ctx) })
	b.Cleanup(func() { cancel(); wg.Wait() })
	return d
}

// timed is a receiver that takes the time at which each message came, by its payload's number.
func timed(b *testing.B) (url string, came chan arrival) {
	came = make(chan arrival, 100_000)
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var m struct{ Data struct{ I int } }
		json.NewDecoder(r.Body).Decode(&m)
		came <- arrival{m.Data.I, time.Now()}
	}))
	b.Cleanup(s.Close)
	return s.URL, came
}

type arrival struct {
	message int
	at      time.Time
}

func percentiles(b *testing.B, name string, all []time.Duration) {
	slices.Sort(all)
	for _, p := range []int{50, 99} {
		b.ReportMetric(all[len(all)*p/100].Seconds()*1000, fmt.Sprintf("%sp%d-ms", name, p))
	}
}

const oneMessageSQL = `insert into outbox (tenant_id, type, dedupe_key, destination, payload)
    values (1, 't', gen_random_uuid()::text, $1, jsonb_build_object('i', $2::int))`

// BenchmarkIdleLatency measures how long a single message takes from its COMMIT to its receiver, when nothing else goes
// on.
func BenchmarkIdleLatency(b *testing.B) {
	pool := pgtest.New(b)
	url, came := timed(b)
	d := stage(b, pool, fmt.Sprintf("  - {name: crm, url: '%s', secret_env: S, allow_private: true}\n", url))
	var all []time.Duration
	for i := 0; b.Loop(); i++ {
		if _, err := pool.Exec(context.Background(), oneMessageSQL, "crm", i); err != nil {
			b.Fatal(err)
		}
		committed := time.Now()
		d.Nudge()
		if a := <-came; a.message != i {
			b.Fatalf("message %d came; want %d", a.message, i)
		} else {
			all = append(all, a.at.Sub(committed))
		}
	}
	percentiles(b, "", all)
}

// BenchmarkFairness measures the same for a steady trickle to one destination, in turns alone and while another
// destination, with a backlog of thousands, takes every request and never answers: the medians of the rounds' 99th
// percentiles, and the median of their ratios. Give it rounds: -benchtime 9x.
func BenchmarkFairness(b *testing.B) {
	const trickle, backlog = 500, 5000
	pool := pgtest.New(b)
	url, came := timed(b)
	var held atomic.Int64
	hang := make(chan struct{})
	hanging := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		held.Add(1)
		defer held.Add(-1)
		select {
		case <-hang:
		case <-r.Context().Done():
		}
	}))
	b.Cleanup(hanging.Close)
	b.Cleanup(func() { close(hang) })
	d := stage(b, pool, fmt.Sprintf("  - {name: crm, url: '%s', secret_env: S, allow_private: true}\n"+
		"  - {name: hanging, url: '%s', secret_env: S, allow_private: true}\n", url, hanging.URL))
	exec := func(sql string, args ...any) {
		if _, err := pool.Exec(context.Background(), sql, args...); err != nil {
			b.Fatal(err)
		}
	}
	p99 := func() float64 {
		committed, all := make([]time.Time, trickle), []time.Duration(nil)
		for i := range trickle {
			exec(oneMessageSQL, "crm", i)
			committed[i] = time.Now()
			d.Nudge()
			time.Sleep(4 * time.Millisecond)
		}
		for range trickle {
			a := <-came
			all = append(all, a.at.Sub(committed[a.message]))
		}
		slices.Sort(all)
		return all[trickle*99/100].Seconds() * 1000
	}
	var alone, beside, ratio []float64
	p99() // connections open, statements are prepared
	for b.Loop() {
		alone = append(alone, p99())
		exec(`insert into outbox (tenant_id, type, dedupe_key, destination, payload)
			select 1, 't', gen_random_uuid()::text, 'hanging', '{}' from generate_series(1, $1::int)`, backlog)
		d.Nudge()
		pgtest.Eventually(b, "requests hang", func() bool { return held.Load() > 0 })
		beside = append(beside, p99())
		ratio = append(ratio, beside[len(beside)-1]/alone[len(alone)-1])
		exec(`update outbox set status = 'sent', lease_token = null where destination = 'hanging' and status <> 'sent'`)
		pgtest.Eventually(b, "nothing hangs any more", func() bool { return held.Load() == 0 })
	}
	for name, values := range map[string][]float64{"alone-p99-ms": alone, "beside-p99-ms": beside,
		"beside-of-alone": ratio} {
		slices.Sort(values)
		b.ReportMetric(values[len(values)/2], name)
	}
	b.ReportMetric(0, "ns/op")
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
	ds, err := deliver.Parse("d", fmt.Appendf(nil,
		"destinations: [{name: crm, url: '%s', secret_env: S, allow_private: true}]", url),
		func(string) (string, bool) { return "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", true })
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		b.StopTimer()
		if _, err := pool.Exec(ctx, `truncate outbox`); err != nil {
			b.Fatal(err)
		}
		_, err := pool.Exec(ctx, `insert into outbox (tenant_id, type, subject_key, dedupe_key, destination, payload,
			rule_id)
			select 1, 'welcome', 'user-' || i, gen_random_uuid()::text, 'crm', jsonb_build_object('user_id',
			    'user-' || i, 'plan', 'pro', 'amount', i), 'welcome'
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
		d, err := deliver.New(deliver.DefaultConfig(), ds, q, claim.DefaultConfig().Lease,
			deliver.NewMetrics(prometheus.NewRegistry()), log)
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
