package ingest

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"sluice.example/sluice/internal/tenants"
)

// BenchmarkServe is a request over loopback, its client included; bare is the same request to a server that reads the
// body and answers.
func BenchmarkServe(b *testing.B) {
	for _, n := range []int{1, 100} {
		body := []byte("[" + strings.Join(sampleEvents(n), ",") + "]")
		if n == 1 {
			body = body[1 : len(body)-1]
		}
		// The sample's times are fixed; they must be within the limits whenever this runs.
		within := func(c *Config) { c.MaxAge, c.MaxAhead = 200*365*24*time.Hour, 200*365*24*time.Hour }
		b.Run(fmt.Sprintf("events=%d/sluice", n), func(b *testing.B) {
			load(b, open(b, &memory{discard: true}, tenants.Set{}, within).addr, body, n)
		})
		b.Run(fmt.Sprintf("events=%d/bare", n), func(b *testing.B) {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			srv := &fasthttp.Server{Handler: func(ctx *fasthttp.RequestCtx) {
				ctx.SetBodyString(fmt.Sprintf(`{"stored":%d}`, len(ctx.PostBody())))
			}}
			go srv.Serve(ln)
			b.Cleanup(func() { srv.Shutdown() })
			load(b, ln.Addr().String(), body, n)
		})
	}
}

func load(b *testing.B, addr string, body []byte, n int) {
	client := &fasthttp.HostClient{Addr: addr, MaxConns: 256}
	b.ReportAllocs()
	start := cpu()
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		req, resp := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
		req.Header.SetMethod("POST")
		req.Header.SetContentType("application/json")
		req.SetRequestURI("http://" + addr + "/v1/events")
		for pb.Next() {
			req.SetBodyRaw(body)
			if err := client.Do(req, resp); err != nil || resp.StatusCode() != 200 {
				b.Errorf("%v, %d %s", err, resp.StatusCode(), resp.Body())
				return
			}
		}
	})
	events := float64(b.N) * float64(n)
	b.ReportMetric(events/b.Elapsed().Seconds(), "events/s")
	b.ReportMetric(float64((cpu()-start).Nanoseconds())/events, "cpu-ns/event")
}
