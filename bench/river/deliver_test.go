// Package river compares delivery with the River library doing the same work, and with a sender without a database, in
// one run on one machine. It is a module of its own, so that River is not a dependency of the product.
package river

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"hash"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/valyala/fasthttp"

	"sluice.example/sluice/internal/localpg"
	"sluice.example/sluice/pipeline/claim"
	"sluice.example/sluice/pipeline/deliver"
	"sluice.example/sluice/pipeline/schema"
)

const (
	secret  = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	payload = `{"user_id": "user-123456", "plan": "pro", "amount": 5000}`
)

var messages = func() int {
	if n, err := strconv.Atoi(os.Getenv("SLUICE_BENCH_MESSAGES")); err == nil {
		return n
	}
	return 50_000
}()

// machine is the database, the receiver, and what they cost.
type machine struct {
	pool       *pgxpool.Pool
	postmaster int
	receiver   *receiver
}

func startMachine(b *testing.B) *machine {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "sluice-bench-")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil { // PostgreSQL may run as another user
		b.Fatal(err)
	}
	cfg := localpg.DefaultConfig()
	cfg.DataDir, cfg.Logger = filepath.Join(dir, "data"), slog.New(slog.DiscardHandler)
	server, err := localpg.Start(ctx, cfg)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { server.Stop(ctx) })
	conn, err := pgx.Connect(ctx, server.URL())
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close(ctx)
	if _, err := schema.Migrate(ctx, conn, slog.New(slog.DiscardHandler)); err != nil {
		b.Fatal(err)
	}
	m := &machine{receiver: startReceiver(b)}
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", conn.PgConn().PID()))
	if err != nil {
		b.Fatal(err)
	}
	var pid int
	var name, state string
	fmt.Sscan(string(raw), &pid, &name, &state, &m.postmaster)
	poolConfig, err := pgxpool.ParseConfig(server.URL())
	if err != nil {
		b.Fatal(err)
	}
	poolConfig.MaxConns = 8
	if m.pool, err = pgxpool.NewWithConfig(ctx, poolConfig); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(m.pool.Close)
	return m
}

func (m *machine) exec(b *testing.B, sql string, args ...any) {
	b.Helper()
	if _, err := m.pool.Exec(context.Background(), sql, args...); err != nil {
		b.Fatalf("%s: %v", sql, err)
	}
}

// run measures work that ends when all messages were received and done reports that all are recorded.
func (m *machine) run(b *testing.B, name string, work func(ctx context.Context), done func() bool) (rate float64) {
	b.Helper()
	m.exec(b, `checkpoint`)
	before := m.receiver.count(b)
	ctx, cancel := context.WithCancel(context.Background())
	self, pg, rc := cpuOf(b, 0, false), cpuOf(b, m.postmaster, true), cpuOf(b, m.receiver.pid, false)
	start := time.Now()
	var wg sync.WaitGroup
	wg.Go(func() { work(ctx) })
	for m.receiver.count(b)-before < messages || !done() {
		if time.Since(start) > 5*time.Minute {
			b.Fatalf("%s: %d of %d received after 5 minutes", name, m.receiver.count(b)-before, messages)
		}
		time.Sleep(10 * time.Millisecond)
	}
	wall := time.Since(start)
	per := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 / float64(messages) }
	rate = float64(messages) / wall.Seconds()
	b.ReportMetric(rate, name+"/s")
	b.ReportMetric(per(cpuOf(b, 0, false)-self), name+"-program-us")
	b.ReportMetric(per(cpuOf(b, m.postmaster, true)-pg), name+"-postgres-us")
	b.ReportMetric(per(cpuOf(b, m.receiver.pid, false)-rc), name+"-receiver-us")
	cancel()
	wg.Wait()
	if n := m.receiver.count(b) - before; n != messages {
		b.Fatalf("%s: received %d; want %d", name, n, messages)
	}
	return rate
}

func (m *machine) left(b *testing.B, sql string) int {
	var n int
	if err := m.pool.QueryRow(context.Background(), sql).Scan(&n); err != nil {
		b.Fatal(err)
	}
	return n
}

// BenchmarkDeliver sends the same signed POST for each message: by a bare sender, by claim and deliver from due rows to
// recorded results, and by River from available jobs to completed ones, at several numbers of workers.
func BenchmarkDeliver(b *testing.B) {
	m := startMachine(b)
	for b.Loop() {
		bare := m.run(b, "bare", m.bare, func() bool { return true })
		own := m.own(b)
		best := 0.0
		for _, workers := range []int{100, 300, 1000, 3000} {
			best = max(best, m.river(b, workers))
		}
		b.ReportMetric(own/bare, "of-bare")
		b.ReportMetric(own/best, "of-river")
	}
	b.ReportMetric(0, "ns/op")
}

// bare is the floor: fasthttp, 64 connections, a POST signed as ours are, no database.
func (m *machine) bare(context.Context) {
	client := &fasthttp.Client{MaxConnsPerHost: 64}
	var next atomic.Int64
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for n := next.Add(1); n <= int64(messages); n = next.Add(1) {
				post(client, m.receiver.url, n)
			}
		})
	}
	wg.Wait()
}

// call is what one POST is made with; calls are used again.
type call struct {
	req             *fasthttp.Request
	resp            *fasthttp.Response
	standard, plain hash.Hash
	text            []byte
}

var (
	body  = []byte(`{"rule":"welcome","data":` + payload + `}`)
	calls = sync.Pool{New: func() any {
		key, err := base64.StdEncoding.DecodeString(secret[len("whsec_"):])
		if err != nil {
			panic(err)
		}
		c := &call{req: fasthttp.AcquireRequest(), resp: fasthttp.AcquireResponse(), standard: hmac.New(sha256.New, key),
			plain: hmac.New(sha256.New, []byte(secret))}
		c.req.Header.SetMethod("POST")
		c.req.Header.SetContentType("application/json")
		c.req.SetBodyRaw(body)
		return c
	}}
)

// post sends what a webhook of ours is: the message's key, and both signatures.
func post(client *fasthttp.Client, url string, n int64) error {
	c := calls.Get().(*call)
	defer calls.Put(c)
	header := &c.req.Header
	c.text = fmt.Appendf(c.text[:0], "018f3f5e-7c1a-7d40-9a51-%012x.", n)
	c.text = append(strconv.AppendInt(c.text, time.Now().Unix(), 10), '.')
	signed := c.text
	header.SetBytesV("Idempotency-Key", signed[:36])
	header.SetBytesV("webhook-id", signed[:36])
	header.SetBytesV("webhook-timestamp", signed[37:len(signed)-1])
	c.standard.Reset()
	c.standard.Write(signed)
	c.standard.Write(body)
	c.text = base64.StdEncoding.AppendEncode(append(c.text, "v1,"...), c.standard.Sum(nil))
	header.SetBytesV("webhook-signature", c.text[len(signed):])
	c.plain.Reset()
	c.plain.Write(body)
	c.text = hex.AppendEncode(c.text[:len(signed)], c.plain.Sum(nil))
	header.SetBytesV("X-Signature", c.text[len(signed):])
	c.req.SetRequestURI(url)
	if err := client.DoTimeout(c.req, c.resp, 5*time.Second); err != nil {
		return err
	}
	if c.resp.StatusCode() != 200 {
		return fmt.Errorf("HTTP %d", c.resp.StatusCode())
	}
	return nil
}

func (m *machine) own(b *testing.B) float64 {
	m.exec(b, `truncate outbox, outbox_attempts`)
	m.exec(b, `insert into outbox (tenant_id, type, subject_key, dedupe_key, destination, payload, rule_id)
		select 1, 'welcome', 'user-' || i, gen_random_uuid()::text, 'crm', $1::jsonb, 'welcome'
		from generate_series(1, $2::int) i`, payload, messages)
	m.exec(b, `vacuum analyze outbox`)
	ds, err := deliver.Parse("destinations", fmt.Appendf(nil,
		"destinations: [{name: crm, url: '%s', secret_env: S, allow_private: true}]", m.receiver.url),
		func(string) (string, bool) { return secret, true })
	if err != nil {
		b.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	q, err := claim.New(claim.DefaultConfig(), m.pool, claim.NewMetrics(prometheus.NewRegistry()), log)
	if err != nil {
		b.Fatal(err)
	}
	d, err := deliver.New(deliver.DefaultConfig(), ds, q, claim.DefaultConfig().Lease,
		deliver.NewMetrics(prometheus.NewRegistry()), log)
	if err != nil {
		b.Fatal(err)
	}
	rate := m.run(b, "sluice", func(ctx context.Context) { d.Run(ctx) }, func() bool {
		return m.left(b, `select count(*) from outbox where status in ('pending', 'failed')`) == 0
	})
	if n := m.left(b, `select count(*) from outbox where status = 'sent'`); n != messages {
		b.Fatalf("%d recorded as sent; want %d", n, messages)
	}
	if n := m.left(b, `select count(*) from outbox_all_attempts`); n != messages {
		b.Fatalf("%d attempts on record; want %d", n, messages)
	}
	return rate
}

type hookArgs struct {
	Data string `json:"data"`
}

func (hookArgs) Kind() string { return "hook" }

type hookWorker struct {
	river.WorkerDefaults[hookArgs]
	client *fasthttp.Client
	url    string
}

func (w *hookWorker) Work(_ context.Context, job *river.Job[hookArgs]) error {
	return post(w.client, w.url, job.ID)
}

func (m *machine) river(b *testing.B, workers int) float64 {
	ctx := context.Background()
	driver := riverpgxv5.New(m.pool)
	migrator, err := rivermigrate.New(driver, nil)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		b.Fatal(err)
	}
	m.exec(b, `truncate river_job`)
	hooks := river.NewWorkers()
	river.AddWorker(hooks, &hookWorker{client: &fasthttp.Client{MaxConnsPerHost: workers}, url: m.receiver.url})
	// The fetch settings of River's own benchmark.
	client, err := river.NewClient(driver, &river.Config{Workers: hooks,
		Queues:        map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: workers}},
		FetchCooldown: 2 * time.Millisecond, FetchPollInterval: 20 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	for inserted := 0; inserted < messages; {
		jobs := make([]river.InsertManyParams, min(5000, messages-inserted))
		for i := range jobs {
			jobs[i].Args = hookArgs{payload}
		}
		n, err := client.InsertManyFast(ctx, jobs)
		if err != nil {
			b.Fatal(err)
		}
		inserted += n
	}
	m.exec(b, `vacuum analyze river_job`)
	return m.run(b, fmt.Sprintf("river-%d", workers), func(ctx context.Context) {
		if err := client.Start(context.WithoutCancel(ctx)); err != nil {
			b.Error(err)
			return
		}
		<-ctx.Done()
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		if err := client.Stop(stop); err != nil {
			b.Error(err)
		}
	}, func() bool { return m.left(b, `select count(*) from river_job where state <> 'completed'`) == 0 })
}
