package bench

import (
	"net"
	"sync"
	"time"

	"github.com/tidwall/gjson"
	"github.com/valyala/fasthttp"

	"sluice.example/sluice/pipeline"
)

// receiver is a webhook sink in this process: it takes everything after a fixed latency, and knows which messages it
// got.
type receiver struct {
	url     string
	latency time.Duration
	server  *fasthttp.Server
	done    chan error

	mu      sync.Mutex
	times   map[string]int // requests by idempotency key
	total   int64
	arrived func(event pipeline.UUID, at time.Time)
}

func startReceiver(latency time.Duration) (*receiver, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &receiver{url: "http://" + l.Addr().String(), latency: latency, done: make(chan error, 1),
		times: map[string]int{}}
	r.server = &fasthttp.Server{Handler: r.receive, Concurrency: 1 << 16}
	go func() { r.done <- r.server.Serve(l) }()
	return r, nil
}

func (r *receiver) receive(ctx *fasthttp.RequestCtx) {
	at := time.Now()
	if r.latency > 0 {
		time.Sleep(r.latency)
	}
	var id pipeline.UUID
	if r.arrived != nil {
		id, _ = pipeline.ParseUUID(gjson.GetBytes(ctx.PostBody(), "data.event_id").Str)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.total++
	r.times[string(ctx.Request.Header.Peek("Idempotency-Key"))]++
	if r.arrived != nil {
		r.arrived(id, at)
	}
}

// counts returns the requests, and the different messages among them.
func (r *receiver) counts() (requests, messages int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.total, int64(len(r.times))
}

func (r *receiver) reset(arrived func(event pipeline.UUID, at time.Time)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.times)
	r.total, r.arrived = 0, arrived
}

func (r *receiver) stop() error {
	if err := r.server.Shutdown(); err != nil {
		return err
	}
	return <-r.done
}
