package copyin

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline"
)

// shopEvents are rows of about 450 bytes, like those of a shop's clickstream.
func shopEvents(n int) []pipeline.Event {
	es := make([]pipeline.Event, n)
	now := today()
	for i := range es {
		es[i] = pipeline.Event{
			ID: pipeline.NewUUIDv7(now), Tenant: 1, Name: "product_viewed", OccurredAt: now, ReceivedAt: now,
			AnonymousID: "0190163d-8694-739b-aea5-966c26f8ad91",
			UserID:      fmt.Sprintf("user-%d", i%5000), SessionID: fmt.Sprintf("session-%d", i%900),
			PageURL: fmt.Sprintf("https://shop.example/products/%d?ref=home", i), Referrer: "https://shop.example/",
			UserAgent: "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0",
			Properties: fmt.Appendf(nil,
				`{"product_id": %d, "price_cents": 1999, "currency": "EUR", "category": "shoes", "position": 4}`, i),
		}
	}
	return es
}

// BenchmarkEncode compares our encoding of rows with pgx's CopyFromSlice, both into the same table. Client CPU is
// that of this process, by getrusage.
func BenchmarkEncode(b *testing.B) {
	const size = 2000
	es := shopEvents(size)
	b.Run("rows only", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			newBatch(es).release()
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/size, "ns/event")
	})
	for _, own := range []bool{true, false} {
		name := "CopyFromSlice"
		if own {
			name = "own"
		}
		b.Run(name, func(b *testing.B) {
			pool := pgtest.New(b)
			exec(b, pool, `create unlogged table target (like events)`)
			b.ReportAllocs()
			cpu := startCPU(b, pool)
			for b.Loop() {
				conn, err := pool.Acquire(b.Context())
				if err != nil {
					b.Fatal(err)
				}
				if own {
					batch := newBatch(es)
					sql := strings.Replace(copySQL, "events", "target", 1)
					_, err = conn.Conn().PgConn().CopyFrom(b.Context(), batch.rows(batch.remaining()), sql)
					batch.release()
				} else {
					rows := pgx.CopyFromSlice(len(es), func(i int) ([]any, error) {
						e := &es[i]
						return []any{
							[16]byte(e.ID), e.Tenant, e.Name, e.OccurredAt, null(e.AnonymousID), null(e.UserID),
							null(e.SessionID), null(e.PageURL), null(e.Referrer), null(e.UserAgent), e.Properties,
							e.ReceivedAt, null(e.ClientID),
						}, nil
					})
					_, err = conn.CopyFrom(b.Context(), pgx.Identifier{"target"}, columns, rows)
				}
				if err != nil {
					b.Fatal(err)
				}
				conn.Release()
			}
			cpu.report(b, b.N*size)
			if got := scan[int](b, pool, `select count(*) from target`); got != b.N*size {
				b.Fatalf("%d rows, want %d", got, b.N*size)
			}
		})
	}
}

func null(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// BenchmarkWrite compares Write with raw COPY of the same rows into the same table by as many connections, in a
// transaction a batch, for several batch sizes. The server of the tests does not wait for the disk; for figures with
// a real COMMIT name one that does in PIPELINE_TEST_DATABASE_URL.
func BenchmarkWrite(b *testing.B) {
	for _, size := range []int{1, 100, 500, 2000, 5000} {
		for _, raw := range []bool{true, false} {
			for _, writers := range []int{1, 2, 3} {
				name := "Write"
				if raw {
					name = "raw"
				}
				b.Run(fmt.Sprintf("%s/events=%d/writers=%d", name, size, writers), func(b *testing.B) {
					pool := pgtest.New(b)
					w := newWriter(b, pool)
					write := func(es []pipeline.Event) error { _, err := w.Write(b.Context(), es); return err }
					if raw {
						write = func(es []pipeline.Event) error { return rawCopy(b.Context(), pool, es) }
					}
					run(b, pool, writers, size, 0, write)
				})
			}
		}
	}
}

// BenchmarkRepeats shows what repeats of stored events cost, for both orders of look-up and COPY.
func BenchmarkRepeats(b *testing.B) {
	const size, writers = 2000, 2
	for _, percent := range []float64{0, 0.05, 2} {
		for _, first := range []float64{0, 2, lookupFirst} {
			name := map[float64]string{0: "lookup first", 2: "copy first"}[first]
			if name == "" {
				name = "adaptive"
			}
			b.Run(fmt.Sprintf("%s/repeats=%v%%", name, percent), func(b *testing.B) {
				pool := pgtest.New(b)
				w := newWriter(b, pool)
				w.lookupFirst = first
				run(b, pool, writers, size, percent/100, func(es []pipeline.Event) error {
					_, err := w.Write(b.Context(), es)
					return err
				})
			})
		}
	}
}

// run writes b.N batches, with a share of events of the batch before among them, and reports.
func run(b *testing.B, pool *pgxpool.Pool, writers, size int, repeats float64, write func([]pipeline.Event) error) {
	before := scan[int](b, pool, `select count(*) from events`)
	again := 0
	batches := make([][]pipeline.Event, b.N)
	for i := range batches {
		batches[i] = shopEvents(size)
		if i < 2*writers {
			continue
		}
		n := int(repeats * float64(size))
		if repeats > 0 && repeats*float64(size) < 1 && i%2 == 0 {
			n++
		}
		for j := range n {
			batches[i][j*37%size] = batches[i-2*writers][size-1-j]
			again++
		}
	}
	cpu := startCPU(b, pool)
	b.ResetTimer()
	var next atomic.Int64
	var group sync.WaitGroup
	for range writers {
		group.Go(func() {
			for i := next.Add(1) - 1; i < int64(b.N); i = next.Add(1) - 1 {
				if err := write(batches[i]); err != nil {
					b.Error(err)
				}
			}
		})
	}
	group.Wait()
	b.StopTimer()
	cpu.report(b, b.N*size)
	if got, want := scan[int](b, pool, `select count(*) from events`)-before, b.N*size-again; got != want {
		b.Fatalf("%d rows stored, want %d", got, want)
	}
}

func rawCopy(ctx context.Context, pool *pgxpool.Pool, es []pipeline.Event) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		batch := newBatch(es)
		defer batch.release()
		_, err := copyRows(ctx, tx, batch, batch.remaining(), copySQL)
		return err
	})
}

// cpu measures this process by getrusage, and the backends of the database by /proc, where there is one.
type cpu struct {
	start    time.Time
	own, pg  time.Duration
	backends []int32
	pool     *pgxpool.Pool
}

func startCPU(b *testing.B, pool *pgxpool.Pool) *cpu {
	// Hold connections, so that the pool has them all and their backends can be named.
	var held []*pgxpool.Conn
	c := &cpu{pool: pool}
	for range 4 {
		conn, err := pool.Acquire(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		held = append(held, conn)
		c.backends = append(c.backends, int32(conn.Conn().PgConn().PID()))
	}
	for _, conn := range held {
		conn.Release()
	}
	c.start, c.own, c.pg = time.Now(), ownCPU(b), c.backendCPU()
	return c
}

func (c *cpu) report(b *testing.B, events int) {
	took := time.Since(c.start)
	perEvent := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 / float64(events) }
	b.ReportMetric(float64(events)/took.Seconds(), "events/s")
	b.ReportMetric(perEvent(ownCPU(b)-c.own), "client-us/event")
	b.ReportMetric(perEvent(c.backendCPU()-c.pg), "pg-us/event")
	b.ReportMetric(0, "ns/op")
}

func ownCPU(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func (c *cpu) backendCPU() (sum time.Duration) {
	for _, pid := range c.backends {
		schedstat, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
		if err != nil {
			continue
		}
		var running int64
		if _, err := fmt.Sscan(string(schedstat), &running); err == nil {
			sum += time.Duration(running)
		}
	}
	return sum
}
