// Package deliver sends leased messages to their destinations, and gives back how each attempt went.
//
// The Dispatcher asks its queue for as many leases as each destination has room for, sends them concurrently, and
// records the results in bulk. No transaction is open meanwhile. A message is sent only while its lease lasts for the
// attempt's whole timeout; otherwise it is released. What is sent may be sent again, with the same Idempotency-Key: when
// the answer was lost, or when the process died before the result was recorded. Destinations come from configuration
// alone, and addresses are checked when they are dialled.
package deliver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/sourcegraph/conc"

	"sluice/pipeline"
)

// Queue gives leases out and takes results back. Both calls must end by themselves when the database does not answer.
type Queue interface {
	// Claim leases at most room[d] messages for each destination d.
	Claim(ctx context.Context, room map[string]int) ([]pipeline.Lease, error)
	// Finish records results. late counts those refused, since the lease had run out and the message changed hands.
	// After an error it is called again with the same results.
	Finish(ctx context.Context, results []pipeline.Result) (late int, err error)
	// Lease is how long a claim lasts.
	Lease() time.Duration
}

// Dispatcher delivers. Run it once.
type Dispatcher struct {
	cfg     Config
	queue   Queue
	metrics *Metrics
	log     *slog.Logger

	lanes map[string]*lane
	order []*lane

	nudge, freed chan struct{}
	results      chan done
	senders      conc.WaitGroup
	held, bytes  atomic.Int64
	aborted      atomic.Bool
}

// done is a result on its way to the database, with what it frees.
type done struct {
	pipeline.Result
	lane  *lane
	bytes int
}

// New refuses a configuration with all its faults, among them destinations for which the queue's lease is too short.
func New(cfg Config, ds Destinations, queue Queue, metrics *Metrics, log *slog.Logger) (*Dispatcher, error) {
	g := guard{}
	errs := []error{cfg.validate(), checkLease(ds, queue.Lease())}
	for _, s := range cfg.AllowNetworks {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			errs = append(errs, fmt.Errorf("deliver.allow-networks: %q is no network such as 10.1.0.0/16", s))
			continue
		}
		g.allowed = append(g.allowed, p)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	d := &Dispatcher{cfg: cfg, queue: queue, metrics: metrics, log: log, lanes: map[string]*lane{},
		nudge: make(chan struct{}, 1), freed: make(chan struct{}, 1),
		results: make(chan done, cfg.MaxHeld)} // a sender never waits for the database
	for _, dest := range ds.list {
		l := newLane(dest, newSink(dest, g), metrics)
		d.lanes[dest.Name] = l
		d.order = append(d.order, l)
	}
	return d, nil
}

// Nudge says that something may have become due. It never blocks.
func (d *Dispatcher) Nudge() { poke(d.nudge) }

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run delivers until ctx ends. Then it claims nothing more, gives back at once what was not sent, lets the sends under
// way end within DrainTimeout (and ends them after it), records every result, and returns nil. No failure of the
// database or of a destination ends it before.
func (d *Dispatcher) Run(ctx context.Context) error {
	working, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	finished := make(chan struct{})
	var recorder, watcher conc.WaitGroup
	recorder.Go(func() { d.record(working) })
	watcher.Go(func() { d.watchDrain(ctx, finished, giveUp) })

	d.claim(ctx, working)
	for _, l := range d.order {
		for _, lease := range l.empty() {
			d.done(l, &lease, pipeline.Result{Status: pipeline.Released})
		}
	}
	d.senders.Wait()
	close(d.results)
	recorder.Wait()
	close(finished)
	watcher.Wait()
	for _, l := range d.order {
		l.sink.close()
	}
	return nil
}

// recordGrace is how long results may still be recorded after DrainTimeout.
const recordGrace = 2 * time.Second

// watchDrain ends the sends that are under way when ctx ended DrainTimeout ago, and everything a moment later.
func (d *Dispatcher) watchDrain(ctx context.Context, finished <-chan struct{}, giveUp func()) {
	select {
	case <-ctx.Done():
	case <-finished:
		return
	}
	drained := time.NewTimer(d.cfg.DrainTimeout)
	defer drained.Stop()
	select {
	case <-drained.C:
	case <-finished:
		return
	}
	d.aborted.Store(true)
	for _, l := range d.order {
		l.sink.abort()
	}
	grace := time.NewTimer(recordGrace)
	defer grace.Stop()
	select {
	case <-grace.C:
		giveUp()
	case <-finished:
	}
}

// Waits between tries after the database failed: doubled from the first to the last. Guesses.
const firstBackoff, lastBackoff = 50 * time.Millisecond, 2 * time.Second

// claim keeps the lanes filled until ctx ends. A claim that is under way then still ends, within working: what it leased
// has to be given back.
func (d *Dispatcher) claim(ctx, working context.Context) {
	backoff := firstBackoff
	d.wake()
	for turn := 0; ctx.Err() == nil; turn++ {
		if room := d.room(turn); len(room) > 0 {
			leases, err := d.queue.Claim(working, room)
			if err == nil {
				d.spread(leases, room)
				backoff = firstBackoff
				continue
			}
			d.metrics.claimErrors.Inc()
			d.log.Warn("deliver: claim failed, trying again", "in", backoff, "error", err)
			sleep(ctx, backoff)
			backoff = min(2*backoff, lastBackoff)
			continue
		}
		timer := time.NewTimer(d.cfg.PollInterval - time.Duration(rand.Float64()*float64(d.cfg.PollInterval)/4))
		select {
		case <-ctx.Done():
		case <-d.nudge:
			d.wake()
		case <-timer.C:
			d.wake()
		case <-d.freed:
		}
		timer.Stop()
	}
}

func (d *Dispatcher) wake() {
	for _, l := range d.order {
		l.wake()
	}
}

// room is what to claim for each destination. The claim as a whole is bounded, so the lanes take turns in being first.
func (d *Dispatcher) room(turn int) map[string]int {
	left := min(d.cfg.ClaimBatch, d.cfg.MaxHeld-int(d.held.Load()))
	if int(d.bytes.Load()) >= d.cfg.MaxBytes {
		return nil
	}
	var room map[string]int
	for i := range d.order {
		if left <= 0 {
			break
		}
		l := d.order[(turn+i)%len(d.order)]
		n := min(l.room(), left)
		if n <= 0 {
			continue
		}
		if room == nil {
			room = map[string]int{}
		}
		room[l.d.Name] = n
		left -= n
	}
	return room
}

// spread hands leases to their lanes.
func (d *Dispatcher) spread(leases []pipeline.Lease, room map[string]int) {
	byLane := map[string][]pipeline.Lease{}
	for _, lease := range leases {
		byLane[lease.Destination] = append(byLane[lease.Destination], lease)
		d.held.Add(1)
		d.bytes.Add(int64(len(lease.Payload)))
	}
	for name, n := range room {
		d.lanes[name].add(byLane[name], n, func(l *lane) { d.senders.Go(func() { d.send(l) }) })
	}
}

// send is one sender: it sends what its lane has until that is empty.
func (d *Dispatcher) send(l *lane) {
	for {
		lease, ok := l.next()
		if !ok {
			return
		}
		d.done(l, &lease, d.attempt(l, &lease))
	}
}

// attempt sends one message, if its lease still allows it, and says what came of it.
func (d *Dispatcher) attempt(l *lane, lease *pipeline.Lease) pipeline.Result {
	if lease.Attempt > l.d.attempts {
		return pipeline.Result{Status: pipeline.Dead, Error: fmt.Sprintf(
			"given up before attempt %d: only %d are allowed, and none of the last ones was recorded (its worker died, or its lease of %s ran out)",
			lease.Attempt, l.d.attempts, d.queue.Lease())}
	}
	now := time.Now()
	if lease.Until.Sub(now) < l.d.timeout+leaseMargin/2 {
		return pipeline.Result{Status: pipeline.Released}
	}
	a := l.sink.send(lease, now, now.Add(l.d.timeout))
	r := pipeline.Result{HTTPStatus: a.status, StartedAt: now, Latency: time.Since(now)}
	if a.err != nil && d.aborted.Load() {
		r.Status, r.Error = pipeline.Failed, "interrupted: the process stopped before the answer came"
		return r
	}
	r.Status, r.Error = classify(l.d, lease.Attempt, a)
	r.Error = clean(r.Error, l.d.web.secrets)
	if r.Status == pipeline.Failed {
		r.RetryIn = l.d.retry.wait(lease.Attempt)
	}
	l.seconds.Observe(r.Latency.Seconds())
	return r
}

// done sends a result on its way. It waits for nothing: there is a place for every lease held.
func (d *Dispatcher) done(l *lane, lease *pipeline.Lease, r pipeline.Result) {
	r.MessageID, r.Token = lease.ID, lease.Token
	l.attempts[r.Status].Inc()
	d.results <- done{Result: r, lane: l, bytes: len(lease.Payload)}
}

// sleep waits, and reports false when ctx ended first.
func sleep(ctx context.Context, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
