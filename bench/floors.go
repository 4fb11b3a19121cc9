package bench

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/sourcegraph/conc/pool"
	"github.com/tidwall/gjson"
	"github.com/valyala/fasthttp"

	"sluice.example/sluice/internal/cli"
	"sluice.example/sluice/pipeline"
)

// rawWriters is how many connections the floor of ingest copies over: as many as the program has writers by default.
const rawWriters = 2

// rawCopy is the floor of ingest: ready-made binary COPY streams of the same rows into the same table, 2,000 rows a
// transaction, over two connections, for d.
func rawCopy(ctx context.Context, db *Database, e *Events, d time.Duration) (rows int64, wall time.Duration,
	err error) {
	return copyBlocks(ctx, db, e, d, "raw COPY", func() blockCopier {
		var stream []byte
		return func(ctx context.Context, conn *pgx.Conn, block int64) error {
			stream = e.stream(stream[:0], block)
			_, err := conn.PgConn().CopyFrom(ctx, bytes.NewReader(stream), copyEventsSQL)
			return err
		}
	})
}

// pgxCopy is what a Go program without anything else pays for raw COPY: the same rows as rawCopy, in Go's types from
// memory, encoded by pgx's own CopyFrom.
func pgxCopy(ctx context.Context, db *Database, e *Events, d time.Duration) (rows int64, wall time.Duration,
	err error) {
	return copyBlocks(ctx, db, e, d, "COPY by pgx", func() blockCopier {
		row := make([]any, len(copyEventsColumns))
		return func(ctx context.Context, conn *pgx.Conn, block int64) error {
			_, err := conn.CopyFrom(ctx, pgx.Identifier{"events"}, copyEventsColumns,
				pgx.CopyFromSlice(slots, func(i int) ([]any, error) {
					copy(row, e.values[i])
					row[0] = pgtype.UUID{Bytes: e.id(block*slots + int64(i)), Valid: true}
					return row, nil
				}))
			return err
		}
	})
}

// blockCopier stores one block of events, of slots rows, in a transaction.
type blockCopier func(ctx context.Context, conn *pgx.Conn, block int64) error

// copyBlocks stores one block after the other over each of rawWriters connections, which have a copier each, for d.
func copyBlocks(ctx context.Context, db *Database, e *Events, d time.Duration, what string,
	copier func() blockCopier) (rows int64, wall time.Duration, err error) {
	start := time.Now()
	first := e.take(slots / int64(e.shape.PerRequest) * 20_000) // more than any round plays
	var block, played atomic.Int64
	p := pool.New().WithContext(ctx).WithCancelOnError().WithFirstError()
	for range rawWriters {
		p.Go(func(ctx context.Context) error {
			conn, err := db.Pool.Acquire(ctx)
			if err != nil {
				return err
			}
			defer conn.Release()
			for store := copier(); time.Since(start) < d; played.Add(slots) {
				if err := store(ctx, conn.Conn(), first*int64(e.shape.PerRequest)/slots+1+block.Add(1)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err = p.Wait(); err != nil {
		err = fmt.Errorf("bench: %s: %w", what, err)
	}
	return played.Load(), time.Since(start), err
}

// ServeFloor is the floor of small requests: a fasthttp server that parses the events of a request, all fields of
// each, and answers. It writes its address into the file ready, as the program does, and serves until ctx ends.
func ServeFloor(ctx context.Context, ready string) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &fasthttp.Server{Concurrency: 1 << 16, Handler: func(ctx *fasthttp.RequestCtx) {
		body := ctx.PostBody()
		if !gjson.ValidBytes(body) {
			ctx.SetStatusCode(fasthttp.StatusBadRequest)
			return
		}
		stored := 0
		gjson.ParseBytes(body).ForEach(func(_, event gjson.Result) bool {
			fields := 0
			event.ForEach(func(_, value gjson.Result) bool { fields++; return true })
			if fields > 0 {
				stored++
			}
			return true
		})
		ctx.SetContentType("application/json")
		ctx.Response.SetBodyRaw(append(strconv.AppendInt([]byte(`{"stored":`), int64(stored), 10),
			`,"duplicate":0,"rejected":0,"events":[]}`...))
	}}
	if err := (cli.Ready{URL: "http://" + l.Addr().String(), Pid: os.Getpid()}).Write(ready); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Shutdown() })
	defer stop()
	return server.Serve(l)
}

// SendFloor is the floor of delivery: it posts ready-made messages, signed in both forms as the program does, from
// memory, over so many connections, and nothing is recorded. bench/river has the same one.
func SendFloor(ctx context.Context, url string, messages, connections int, out io.Writer) error {
	key, err := base64.StdEncoding.DecodeString(secret[len("whsec_"):])
	if err != nil {
		return err
	}
	client := &fasthttp.Client{MaxConnsPerHost: connections, ReadTimeout: time.Minute, WriteTimeout: time.Minute}
	defer client.CloseIdleConnections()
	body := []byte(
		`{"rule":"rule-0","data":{"user_id":"u-012345",` +
			`"event_id":"018f3f5e-7c1a-7d40-9a51-0123456789ab","price_cents":12345}}`)
	var next atomic.Int64
	start := time.Now()
	p := pool.New().WithContext(ctx).WithCancelOnError().WithFirstError()
	for range connections {
		p.Go(func(ctx context.Context) error {
			req, resp := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
			defer fasthttp.ReleaseRequest(req)
			defer fasthttp.ReleaseResponse(resp)
			standard, plain := hmac.New(sha256.New, key), hmac.New(sha256.New, []byte(secret))
			req.SetRequestURI(url)
			req.Header.SetMethod(fasthttp.MethodPost)
			req.Header.SetContentType("application/json")
			id := pipeline.NewUUIDv4()
			var b []byte
			for n := next.Add(1); n <= int64(messages) && ctx.Err() == nil; n = next.Add(1) {
				binary.BigEndian.PutUint64(id[8:], uint64(n))
				b = append(append(b[:0], id.String()...), '.')
				b = append(strconv.AppendInt(b, time.Now().Unix(), 10), '.')
				signed := b
				req.Header.SetBytesV("Idempotency-Key", signed[:36])
				req.Header.SetBytesV("webhook-id", signed[:36])
				req.Header.SetBytesV("webhook-timestamp", signed[37:len(signed)-1])
				standard.Reset()
				standard.Write(signed)
				standard.Write(body)
				b = base64.StdEncoding.AppendEncode(append(b, "v1,"...), standard.Sum(nil))
				req.Header.SetBytesV("webhook-signature", b[len(signed):])
				plain.Reset()
				plain.Write(body)
				b = hex.AppendEncode(b[:len(signed)], plain.Sum(nil))
				req.Header.SetBytesV("X-Signature", b[len(signed):])
				req.SetBodyRaw(body)
				if err := client.Do(req, resp); err != nil {
					return err
				}
				if resp.StatusCode() != fasthttp.StatusOK {
					return errors.New(resp.String())
				}
			}
			return nil
		})
	}
	if err := p.Wait(); err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(map[string]any{"msg": "sent", "seconds": time.Since(start).Seconds(),
		"cpu_seconds": selfCPU().Seconds()})
}
