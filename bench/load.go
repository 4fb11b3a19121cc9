package bench

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sourcegraph/conc/pool"
	"github.com/tidwall/gjson"
	"github.com/valyala/fasthttp"
)

// load posts Events to a pipeline and adds up the answers.
type load struct {
	url         string
	events      *Events
	connections int
	// due is told when each request of an open loop is due, before any is sent.
	due func(firstRequest int64, start time.Time, interval time.Duration)
}

// tally is what the answers said.
type tally struct {
	requests, sent, repeats int64
	// In events: verdicts of the program, and events of requests that were answered with anything but 200.
	stored, duplicate, rejected, refused int64
	refusal                              string // one of those answers
	wall                                 time.Duration
	answers, lateness                    *histogram
}

func (t *tally) acknowledged() int64 { return t.stored + t.duplicate }

// max posts as fast as the answers come, each connection its next request after the answer to its last, for d.
func (l *load) max(ctx context.Context, d time.Duration) (*tally, error) {
	start := time.Now()
	return l.run(ctx, start, func() (int64, time.Time, bool) {
		now := time.Now()
		if now.Sub(start) >= d {
			return 0, now, false
		}
		return l.events.take(1), now, true
	})
}

// paced posts rate events a second for d, on a schedule that is fixed before the first request: no answer, however
// slow, changes when the next request is due, and latency counts from then. So the wait of requests that could not be
// sent in time since all connections were busy is in the figures (no coordinated omission).
func (l *load) paced(ctx context.Context, rate float64, d time.Duration) (*tally, error) {
	if rate <= 0 {
		return nil, fmt.Errorf("bench: a rate of %g events a second", rate)
	}
	interval := time.Duration(float64(l.events.shape.PerRequest) / rate * float64(time.Second))
	total := max(1, int64(d/max(1, interval)))
	first := l.events.take(total)
	start := time.Now().Add(10 * time.Millisecond)
	if l.due != nil {
		l.due(first, start, interval)
	}
	var next atomic.Int64
	return l.run(ctx, start, func() (int64, time.Time, bool) {
		n := next.Add(1) - 1
		at := start.Add(time.Duration(n) * interval)
		if n >= total {
			return 0, at, false
		}
		wait := time.NewTimer(time.Until(at))
		defer wait.Stop()
		select {
		case <-wait.C:
			return first + n, at, true
		case <-ctx.Done():
			return 0, at, false
		}
	})
}

// run lets every connection send what next hands out, until it hands out no more.
func (l *load) run(ctx context.Context, start time.Time, next func() (request int64, due time.Time, ok bool)) (*tally,
	error) {
	client := &fasthttp.Client{MaxConnsPerHost: l.connections, ReadTimeout: time.Minute, WriteTimeout: time.Minute,
		MaxIdemponentCallAttempts: 1}
	defer client.CloseIdleConnections()
	sum := &tally{answers: newHistogram(), lateness: newHistogram()}
	var mu sync.Mutex
	p := pool.New().WithContext(ctx).WithCancelOnError().WithFirstError()
	for range l.connections {
		p.Go(func(ctx context.Context) error {
			var own tally
			defer func() {
				mu.Lock()
				defer mu.Unlock()
				sum.add(&own)
			}()
			req, resp := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
			defer fasthttp.ReleaseRequest(req)
			defer fasthttp.ReleaseResponse(resp)
			req.SetRequestURI(l.url)
			req.Header.SetMethod(fasthttp.MethodPost)
			req.Header.SetContentType("application/json")
			var body []byte
			for ctx.Err() == nil {
				r, due, ok := next()
				if !ok {
					return nil
				}
				var repeats int64
				body, repeats = l.events.body(body[:0], r)
				req.SetBodyRaw(body)
				sum.lateness.add(time.Since(due))
				if err := client.Do(req, resp); err != nil {
					return fmt.Errorf("bench: post %d events: %w", l.events.shape.PerRequest, err)
				}
				sum.answers.add(time.Since(due))
				own.repeats += repeats
				own.answer(int64(l.events.shape.PerRequest), resp)
			}
			return ctx.Err()
		})
	}
	err := p.Wait()
	sum.wall = time.Since(start)
	return sum, err
}

func (t *tally) answer(events int64, resp *fasthttp.Response) {
	t.requests++
	t.sent += events
	if resp.StatusCode() != fasthttp.StatusOK {
		t.refused += events
		t.refusal = fmt.Sprintf("%d %.200s", resp.StatusCode(), resp.Body())
		return
	}
	counts := gjson.GetManyBytes(resp.Body(), "stored", "duplicate", "rejected")
	t.stored += counts[0].Int()
	t.duplicate += counts[1].Int()
	t.rejected += counts[2].Int()
}

func (t *tally) add(o *tally) {
	t.requests += o.requests
	t.sent += o.sent
	t.repeats += o.repeats
	t.stored += o.stored
	t.duplicate += o.duplicate
	t.rejected += o.rejected
	t.refused += o.refused
	if o.refusal != "" {
		t.refusal = o.refusal
	}
}
