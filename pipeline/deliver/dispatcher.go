// Package deliver sends leased messages to their destinations, and reports how each attempt went.
//
// The Dispatcher asks its queue for as many leases as each destination has room for, sends them concurrently, and
// records the results in bulk. No transaction is open meanwhile. A message is sent only while its lease lasts for the
// attempt's whole timeout; otherwise it is released. What is sent may be sent again, with the same Idempotency-Key:
// when the answer was lost, or when the process died before the result was recorded. Destinations come from
// configuration alone, and addresses are checked when they are dialled.
package deliver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sourcegraph/conc"

	"sluice.example/sluice/internal/wait"
	"sluice.example/sluice/pipeline"
	"sluice.example/sluice/pipeline/deliver/share"
)

// Queue hands out leases and takes results back. Both calls must end by themselves when the database does not answer.
type Queue interface {
	// Claim leases at most want.Room messages for each destination. It borrows wants.
	Claim(ctx context.Context, wants []pipeline.Want) ([]pipeline.Lease, error)
	// Finish records results. late counts those that changed nothing, since the lease had run out and the message
	// changed hands. After an error it is called again with the same results.
	Finish(ctx context.Context, results []pipeline.Result) (late int, err error)
	// Begin counts an attempt before it is made. It reports false where the lease has passed to another.
	Begin(ctx context.Context, lease *pipeline.Lease) (held bool, err error)
	// Extend makes leases last for as long as a new claim would, and returns the new ends, by message, of those that
	// are still held. It reads the leases' ids and tokens only.
	Extend(ctx context.Context, leases []pipeline.Lease) (map[int64]time.Time, error)
}

// Dispatcher delivers. Run it once.
type Dispatcher struct {
	cfg     Config
	queue   Queue
	lease   time.Duration // how long a claim lasts
	metrics *Metrics
	log     *slog.Logger

	lanes    map[string]*lane
	order    []*lane
	claimers []*claimer
	maxHeld  int

	asking     sync.Mutex // over the wants of the claimers
	claiming   int        // what claims under way may bring
	promised   []int      // and in bytes, by the lanes' places
	results    chan done
	senders    conc.WaitGroup
	recorders  conc.WaitGroup // of results whose rows others hold
	held       atomic.Int64
	claimBatch atomic.Int64
	bytes      *share.Bytes // by the lanes' places in order
	aborted    atomic.Bool
	draining   chan struct{} // closed when Run's ctx ended
}

// done is a result on its way to the database, with what it frees.
type done struct {
	pipeline.Result
	lane  *lane
	bytes int
}

// New returns every fault of a configuration, among them destinations that need a longer lease. lease is how long the
// queue's claims last.
func New(cfg Config, ds Destinations, queue Queue, lease time.Duration, metrics *Metrics,
	log *slog.Logger) (*Dispatcher, error) {
	g := guard{}
	errs := []error{cfg.validate(), checkLease(ds, lease)}
	for _, s := range cfg.AllowNetworks {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			errs = append(errs, fmt.Errorf("deliver.allow-networks: %q is not a network such as 10.1.0.0/16", s))
			continue
		}
		g.allowed = append(g.allowed, p)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	d := &Dispatcher{
		cfg: cfg, queue: queue, lease: lease, metrics: metrics, log: log,
		lanes:    map[string]*lane{},
		maxHeld:  maxHeld(ds),
		draining: make(chan struct{}),
		results:  make(chan done, maxHeld(ds)), // a sender never waits for the database
		bytes:    share.New(cfg.MaxBytes, len(ds.list)),
		promised: make([]int, len(ds.list)),
	}
	d.claimBatch.Store(int64(cfg.ClaimBatch))
	free := newClaimer()
	d.claimers = append(d.claimers, free)
	for i, dest := range ds.list {
		c := free
		if dest.order != pipeline.Unordered {
			c = newClaimer()
			d.claimers = append(d.claimers, c)
		}
		l := newLane(dest, dest.open(g), metrics)
		l.place, l.freed = i, c.freed
		c.lanes = append(c.lanes, l)
		l.start = func(l *lane) { d.senders.Go(func() { d.send(l) }) }
		d.lanes[dest.Name] = l
		d.order = append(d.order, l)
	}
	return d, nil
}

// Nudge hints that something may have become due. It never blocks.
func (d *Dispatcher) Nudge() {
	for _, c := range d.claimers {
		wait.Nudge(c.nudge)
	}
}

// Run delivers until ctx ends. Then it claims nothing more, gives back at once what was not sent, lets the sends under
// way end within DrainTimeout (and ends them after it), records every result, and returns nil. No failure of the
// database or of a destination ends it before.
func (d *Dispatcher) Run(ctx context.Context) error {
	working, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	finished := make(chan struct{})
	var recorder, extender, watcher conc.WaitGroup
	recorder.Go(func() { d.record(working) })
	extender.Go(func() { d.extend(working, finished) })
	watcher.Go(func() { d.watchDrain(ctx, finished, giveUp) })

	var claimers conc.WaitGroup
	for _, c := range d.claimers {
		claimers.Go(func() { d.claim(ctx, working, c) })
	}
	claimers.Wait()
	close(d.draining)
	for _, l := range d.order {
		for _, lease := range l.empty() {
			d.done(l, &lease, pipeline.Result{Status: pipeline.Released})
		}
	}
	d.senders.Wait()
	close(d.results)
	recorder.Wait()
	d.recorders.Wait()
	close(finished)
	extender.Wait()
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

// wants is what to claim. The claim as a whole is bounded, so the lanes take turns in being first.
func (d *Dispatcher) wants(c *claimer, turn int) (wants []pipeline.Want) {
	d.asking.Lock()
	defer d.asking.Unlock()
	left := min(int(d.claimBatch.Load()), d.maxHeld-int(d.held.Load())-d.claiming)
	starved := false
	c.starved.Store(true)
	for i := range c.lanes {
		if left <= 0 {
			break
		}
		l := c.lanes[(turn+i)%len(c.lanes)]
		n := min(l.room(), left)
		if n <= 0 {
			continue
		}
		bytes, full := d.bytes.Room(l.place, d.promised)
		if n = l.fitting(n, bytes, full, d.bytes.Held(l.place)); n <= 0 {
			starved = true
			continue
		}
		d.promised[l.place] = bytes
		l.claiming()
		wants = append(wants, pipeline.Want{
			Destination: l.d.Name, Room: n, Bytes: max(1, bytes/copies), Order: l.d.order,
		})
		left -= n
		d.claiming += n
	}
	c.starved.Store(starved)
	return wants
}

// copies is how often the payload of a message may be in memory: in its lease, and in the body that is being sent.
const copies = 2

// weight is how many bytes of memory a lease counts as.
func weight(lease *pipeline.Lease) int { return copies * len(lease.Payload) }

// handed is what a lane gets of a claim.
type handed struct {
	leases, unread []pipeline.Lease
	bytes          int // what the leases weigh
	unreadBytes    int // what those that were not read would weigh
}

// hand gives leases to their lanes, and those whose payloads were not read back to the queue.
func (d *Dispatcher) hand(leases []pipeline.Lease, wants []pipeline.Want) {
	byLane := make(map[string]*handed, len(wants))
	for _, w := range wants {
		byLane[w.Destination] = &handed{leases: make([]pipeline.Lease, 0, min(len(leases), w.Room))}
	}
	for i := range leases {
		lease := &leases[i]
		h := byLane[lease.Destination]
		if lease.Unread > 0 {
			h.unread = append(h.unread, *lease)
			h.unreadBytes += copies * lease.Unread
			continue
		}
		h.leases = append(h.leases, *lease)
		h.bytes += weight(lease)
	}
	d.held.Add(int64(len(leases)))
	for _, w := range wants {
		l, h := d.lanes[w.Destination], byLane[w.Destination]
		d.bytes.Add(l.place, h.bytes)
		l.bytesGauge.Set(float64(d.bytes.Held(l.place)))
		if n := len(h.leases) + len(h.unread); n > 0 {
			l.mean = (h.bytes + h.unreadBytes) / n
		}
		l.add(h.leases, len(h.unread), w.Room)
		for i := range h.unread {
			d.done(l, &h.unread[i], pipeline.Result{Status: pipeline.Released})
		}
	}
}

// send is one sender: it sends what its lane has until that is empty.
func (d *Dispatcher) send(l *lane) {
	t := &term{}
	var lease pipeline.Lease
	for {
		var ok, claim bool
		lease, ok, claim = l.next(t)
		if claim {
			wait.Nudge(l.freed)
		}
		if !ok {
			return
		}
		r := d.attempt(l, &lease)
		d.done(l, &lease, r)
	}
}

// attempt sends one message, if its lease still allows it, and returns what came of it.
func (d *Dispatcher) attempt(l *lane, lease *pipeline.Lease) pipeline.Result {
	if lease.Attempt > l.d.attempts {
		return pipeline.Result{Status: pipeline.Dead, Error: tooManyAttempts(lease, l.d.attempts)}
	}
	if l.limiter != nil && !d.pace(l) {
		return pipeline.Result{Status: pipeline.Released}
	}
	now := time.Now()
	lasts := func() bool { return lease.Until.Sub(now) >= l.d.timeout+LeaseMargin/2 }
	if !lasts() {
		return pipeline.Result{Status: pipeline.Released}
	}
	ok, probe, open := l.breaker.enter(now)
	if !ok {
		return pipeline.Result{Status: pipeline.Released, RetryIn: spread(open)}
	}
	begun := lease.Lost > 0
	if begun {
		held, err := d.queue.Begin(context.Background(), lease)
		if now = time.Now(); err != nil || !held || !lasts() {
			l.breaker.cancel(probe)
			return pipeline.Result{Status: pipeline.Released, Begun: err == nil && held, RetryIn: lastBackoff}
		}
	}
	a := l.sink.send(lease, now, now.Add(l.d.timeout))
	end := time.Now()
	r := pipeline.Result{HTTPStatus: a.status, StartedAt: now, Latency: end.Sub(now), Begun: begun}
	if a.err != nil && d.aborted.Load() {
		return pipeline.Result{
			Status: pipeline.Released,
			Error:  "interrupted: the process stopped before the answer came",
			Begun:  begun,
		}
	}
	pause := min(a.pause(end), l.d.maxRetryAfter)
	shown := a.shows(pause)
	d.leave(l, shown, a, end, probe, pause)
	l.seconds.Observe(r.Latency.Seconds())
	if shown == asked {
		return pipeline.Result{
			Status:  pipeline.Released,
			Error:   clean("not taken now: "+a.reason(), l.d.secrets),
			RetryIn: spread(max(a.hold, pause, minWait)),
			Begun:   begun,
		}
	}
	r.Status, r.Error = classify(l.d, lease.Attempt, a)
	if r.Status == pipeline.Sent {
		l.lag.Observe(max(0, end.Sub(lease.DueAt).Seconds()))
	}
	r.Error = clean(r.Error, l.d.secrets)
	if r.Status == pipeline.Failed {
		r.RetryIn = l.d.retry.wait(lease.Attempt)
		if pause > 0 {
			r.RetryIn = spread(max(pause, minWait))
		}
	}
	return r
}

// leave reports to the lane's breaker what an attempt showed about the destination.
func (d *Dispatcher) leave(l *lane, shown result, a answer, end time.Time, probe bool, pause time.Duration) {
	leaveAlone := min(pause, l.d.breaker.maxPause)
	if a.hold > 0 {
		leaveAlone = a.hold
	}
	opened := l.breaker.leave(end, probe, shown, leaveAlone, l.d.concurrency)
	if opened == 0 {
		if probe {
			l.openGauge.Set(0)
		}
		l.grow()
		return
	}
	l.openings.Inc()
	l.openGauge.Set(1)
	d.log.Warn("deliver: circuit breaker opened", "destination", l.d.Name, "for", opened, "after", a.summary())
	surplus := l.surplus()
	for i := range surplus {
		d.done(l, &surplus[i], pipeline.Result{Status: pipeline.Released, RetryIn: spread(opened)})
	}
	l.reopenIn(opened)
}

// spread adds up to a fifth to a wait, so that not all come back at once.
func spread(wait time.Duration) time.Duration {
	return wait + time.Duration(rand.Float64()*float64(wait)/5)
}

// tooManyAttempts is the error of a message that has none left. Where leases were lost it may be what killed the
// workers.
func tooManyAttempts(lease *pipeline.Lease, most int) string {
	if lease.Lost == 0 {
		return fmt.Sprintf("given up before attempt %d: only %d are allowed", lease.Attempt, most)
	}
	return fmt.Sprintf("given up before attempt %d: only %d are allowed, and its workers died (or their "+
		"leases ran out) %d times before a result was recorded", lease.Attempt, most, lease.Lost)
}

// pace waits for the destination's rate. It reports false when the process stops first.
func (d *Dispatcher) pace(l *lane) bool {
	r := l.limiter.Reserve()
	delay := r.Delay()
	if delay == 0 {
		return true
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-d.draining:
		r.Cancel()
		return false
	}
}

// done sends a result on its way. It waits for nothing: there is a place for every lease held.
func (d *Dispatcher) done(l *lane, lease *pipeline.Lease, r pipeline.Result) {
	r.MessageID, r.Token, r.IdempotencyKey = lease.ID, lease.Token, lease.IdempotencyKey
	r.Ordered = l.d.order != pipeline.Unordered
	l.attempts[r.Status].Inc()
	d.results <- done{Result: r, lane: l, bytes: weight(lease)}
}
