package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/sourcegraph/conc/pool"
	"github.com/valyala/fasthttp"

	"sluice/pipeline"
)

const (
	ingestEvents  = 200_000 // in each of the two halves of one iteration: seconds, so that clock ticks do not show
	requestEvents = 100
	copyRows      = 2_000 // rows per COPY transaction of the floor, as in docs/design.md
	copyWriters   = 2
	connections   = 64
)

// BenchmarkIngest compares the pipeline's whole way from HTTP to COMMIT with its floor: PostgreSQL taking the same rows
// into the same table as ready-made binary COPY streams, 2,000 rows a transaction over two connections. Generator,
// program and PostgreSQL share the machine. It reports the ratio of the two rates (median over the iterations; both
// halves of a pair run right after each other) and the CPU per event of each process.
func BenchmarkIngest(b *testing.B) {
	ctx := context.Background()
	pg := startPostgres(b)
	bodies, streams := ingestInput(b, pg)

	var ratio, rawRate, ownRate, rawPG, ownPG, ownProgram, ownGenerator []float64
	program := startPipeline(b, pg)
	for b.Loop() {
		pg.truncate(b)
		raw := measure(b, pg, program, func() { copyStreams(b, ctx, pg.pool, streams) })
		pg.expectEvents(b, ingestEvents)

		pg.truncate(b)
		own := measure(b, pg, program, func() { postBodies(b, program.url+"/v1/events", bodies) })
		pg.expectEvents(b, ingestEvents)

		ratio = append(ratio, raw.wall.Seconds()/own.wall.Seconds())
		rawRate = append(rawRate, ingestEvents/raw.wall.Seconds())
		ownRate = append(ownRate, ingestEvents/own.wall.Seconds())
		rawPG = append(rawPG, perEvent(raw.postgres))
		ownPG = append(ownPG, perEvent(own.postgres))
		ownProgram = append(ownProgram, perEvent(own.program))
		ownGenerator = append(ownGenerator, perEvent(own.generator))
	}
	b.ReportMetric(0, "ns/op") // two runs and their checks: says nothing
	b.ReportMetric(median(ratio), "of-raw-COPY")
	b.ReportMetric(median(rawRate), "raw-events/s")
	b.ReportMetric(median(ownRate), "events/s")
	b.ReportMetric(median(rawPG), "raw-postgres-us/event")
	b.ReportMetric(median(ownPG), "postgres-us/event")
	b.ReportMetric(median(ownProgram), "program-us/event")
	b.ReportMetric(median(ownGenerator), "generator-us/event")
}

// ingestInput makes the requests, and the binary COPY streams of the rows that they become. It gets the latter from
// PostgreSQL itself, so that the floor costs no encoding at all.
func ingestInput(b *testing.B, pg *postgres) (bodies, streams [][]byte) {
	rng := rand.New(rand.NewPCG(1, 2))
	now := time.Now().UTC().Truncate(time.Second)
	var body bytes.Buffer
	for i := range ingestEvents {
		if i%requestEvents == 0 {
			body.WriteByte('[')
		}
		writeEvent(&body, rng, i, now)
		if i%requestEvents == requestEvents-1 {
			body.WriteByte(']')
			bodies = append(bodies, bytes.Clone(body.Bytes()))
			body.Reset()
		} else {
			body.WriteByte(',')
		}
	}
	ctx := context.Background()
	seed, err := pg.pool.Acquire(ctx)
	if err != nil {
		b.Fatal(err)
	}
	defer seed.Release()
	if _, err := seed.Exec(ctx, `create temporary table request (n int, body jsonb)`); err != nil {
		b.Fatal(err)
	}
	_, err = seed.CopyFrom(ctx, pgx.Identifier{"request"}, []string{"n", "body"}, pgx.CopyFromSlice(len(bodies), func(i int) ([]any, error) {
		return []any{i, string(bodies[i])}, nil
	}))
	if err != nil {
		b.Fatal(err)
	}
	const rows = `copy (
		select e.event_id, 1, e.event_name, e.occurred_at, e.anonymous_id, e.user_id, e.session_id, e.page_url, e.referrer,
			e.user_agent, e.properties, now(), null::text
		from request, jsonb_to_recordset(body) as e (event_id uuid, event_name text, occurred_at timestamptz, anonymous_id text,
			user_id text, session_id text, page_url text, referrer text, user_agent text, properties jsonb)
		where n >= %d and n < %d) to stdout (format binary)`
	step := copyRows / requestEvents
	for i := 0; i < len(bodies); i += step {
		var stream bytes.Buffer
		if _, err := seed.Conn().PgConn().CopyTo(ctx, &stream, fmt.Sprintf(rows, i, i+step)); err != nil {
			b.Fatal(err)
		}
		streams = append(streams, stream.Bytes())
	}
	return bodies, streams
}

// writeEvent writes a page view of about 450 bytes as a browser's collector would send it. One in 20 is a checkout.
func writeEvent(w *bytes.Buffer, rng *rand.Rand, i int, now time.Time) {
	name := "page_viewed"
	if i%20 == 0 {
		name = "checkout_started"
	}
	visitor := rng.IntN(20_000)
	fmt.Fprintf(w, `{"event_id":"%s","event_name":"%s","occurred_at":"%s","anonymous_id":"a-%06d","user_id":"u-%06d","session_id":"s-%08d",`+
		`"page_url":"https://shop.example/products/%d","referrer":"https://search.example/","user_agent":"Mozilla/5.0 (X11; Linux x86_64)",`+
		`"properties":{"sku":"SKU-%05d","price_cents":%d,"currency":"EUR","position":%d,"variant":"blue/large","in_stock":true}}`,
		pipeline.NewUUIDv7(now.Add(time.Duration(i)*time.Microsecond)), name, now.Add(time.Duration(i)*time.Microsecond).Format(time.RFC3339Nano),
		visitor, visitor, visitor*7+i%3, rng.IntN(5000), rng.IntN(5000), rng.IntN(90_000), rng.IntN(40))
}

// copyStreams plays ready-made COPY streams, a transaction each, over copyWriters connections.
func copyStreams(b *testing.B, ctx context.Context, db *pgxpool.Pool, streams [][]byte) {
	work := make(chan []byte, len(streams))
	for _, s := range streams {
		work <- s
	}
	close(work)
	p := pool.New().WithContext(ctx).WithCancelOnError()
	for range copyWriters {
		p.Go(func(ctx context.Context) error {
			conn, err := db.Acquire(ctx)
			if err != nil {
				return err
			}
			defer conn.Release()
			for s := range work {
				_, err := conn.Conn().PgConn().CopyFrom(ctx, bytes.NewReader(s), `copy events (event_id, tenant_id, event_name, occurred_at,
					anonymous_id, user_id, session_id, page_url, referrer, user_agent, properties, received_at, client_id) from stdin (format binary)`)
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := p.Wait(); err != nil {
		b.Fatal(err)
	}
}

// postBodies posts every body over `connections` connections and checks each answer.
func postBodies(b *testing.B, url string, bodies [][]byte) {
	client := &fasthttp.Client{MaxConnsPerHost: connections, ReadTimeout: time.Minute, WriteTimeout: time.Minute}
	defer client.CloseIdleConnections()
	want := fmt.Sprintf(`"stored":%d,"duplicate":0,"rejected":0`, requestEvents)
	work := make(chan []byte, len(bodies))
	for _, body := range bodies {
		work <- body
	}
	close(work)
	p := pool.New().WithErrors()
	for range connections {
		p.Go(func() error {
			req, resp := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
			defer fasthttp.ReleaseRequest(req)
			defer fasthttp.ReleaseResponse(resp)
			req.SetRequestURI(url)
			req.Header.SetMethod(fasthttp.MethodPost)
			req.Header.SetContentType("application/json")
			for body := range work {
				req.SetBodyRaw(body)
				if err := client.Do(req, resp); err != nil {
					return err
				}
				if resp.StatusCode() != fasthttp.StatusOK || !strings.Contains(string(resp.Body()), want) {
					return errors.New(resp.String())
				}
			}
			return nil
		})
	}
	if err := p.Wait(); err != nil {
		b.Fatal(err)
	}
}

func perEvent(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 / ingestEvents }

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}
