package buffer

import (
	"context"
	"fmt"
	"math"
	"time"

	"sluice.example/sluice/internal/wait"
	"sluice.example/sluice/pipeline"
)

// request is what one caller handed over.
type request struct {
	events []pipeline.Event
	bytes  int
	async  bool // nobody waits for the outcome
}

// trigger is what sealed a batch.
type trigger string

const (
	byEvents trigger = "events"
	byBytes  trigger = "bytes"
	byAge    trigger = "age"
	byIdle   trigger = "idle"
	byDrain  trigger = "drain"
	byRetry  trigger = "retry"
)

// batch shares one outcome: verdicts and err are written once, before done is closed.
type batch struct {
	requests []request
	count    int // events
	bytes    int
	since    time.Time
	trigger  trigger
	done     chan struct{}
	verdicts []pipeline.Verdict
	err      error
}

func newBatch(since time.Time, requests int) *batch {
	return &batch{since: since, requests: make([]request, 0, requests), done: make(chan struct{})}
}

func (b *batch) add(r request) {
	b.requests = append(b.requests, r)
	b.count += len(r.events)
	b.bytes += r.bytes
}

// writer takes batches and writes them until the buffer is closed and empty.
func (b *Buffer) writer(ctx context.Context) {
	var scratch []pipeline.Event // reused, so that a batch costs no slice
	for {
		next := b.next()
		if next == nil {
			return
		}
		events := next.requests[0].events
		if len(next.requests) > 1 {
			for _, r := range next.requests {
				scratch = append(scratch, r.events...)
			}
			events = scratch
		}
		start := time.Now()
		verdicts, err := b.write(ctx, events)
		b.m.writeSeconds.Observe(seconds(start))
		if err == nil && len(verdicts) != len(events) {
			err = fmt.Errorf("the writer returned %d verdicts for %d events", len(verdicts), len(events))
		}
		again := b.finish(next, events, verdicts, err)
		clear(scratch) // the strings of the events are garbage now
		scratch = scratch[:0]
		if again {
			wait.For(ctx, retryPause)
			b.mu.Lock()
			b.resting--
			b.mu.Unlock()
		}
	}
}

// retryPause is how long a writer rests after a failed batch that has to be written again. A guess: the write has
// retried for its own deadline already; this only keeps an error that comes at once from becoming a busy loop.
const retryPause = time.Second

// next waits for a batch; nil means that the buffer is closed and empty.
func (b *Buffer) next() *batch {
	for {
		b.mu.Lock()
		taken, until, done := b.takeLocked(time.Now())
		b.mu.Unlock()
		if done {
			wait.Nudge(b.nudge) // the other writers are done too
			return nil
		}
		if taken != nil {
			b.m.took(taken)
			return taken
		}
		if until == 0 {
			<-b.nudge
			continue
		}
		timer := time.NewTimer(until)
		select {
		case <-b.nudge:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// takeLocked is the policy. Full batches go first. The open batch is taken as it is when no batch is being written, so
// that a lone request waits for nothing. While one is being written the others gather, up to buffer.max-wait. So the
// time of a write is how long a batch waits, and it adapts by itself: small batches where writes are quick and callers
// few, full ones under load, when all writers are busy.
//
// Rejected: letting every idle writer take at once (many small requests then make twice as many small batches, each
// with the fixed cost of a transaction), and a fixed wait for all (a lone client waits in vain). See
// BenchmarkPolicy.
func (b *Buffer) takeLocked(now time.Time) (taken *batch, until time.Duration, done bool) {
	switch {
	case len(b.writing)+b.resting >= b.cfg.Writers:
		// Whoever writes or rests looks again afterwards.
		return nil, 0, b.over
	case len(b.sealed) > 0:
		taken = b.sealed[0]
		b.sealed[0] = nil
		b.sealed = b.sealed[1:]
	case b.open == nil:
		// A write under way may put its asynchronous events back: the last writer to finish sees to them.
		return nil, 0, b.over || b.closed
	default:
		age := now.Sub(b.open.since)
		switch {
		case b.closed:
			b.open.trigger = byDrain
		case len(b.writing) == 0:
			b.open.trigger = byIdle
		case age >= b.maxWait:
			b.open.trigger = byAge
		default:
			return nil, b.maxWait - age, false
		}
		taken, b.open = b.open, nil
	}
	b.work.advance(len(b.writing), now)
	b.writing[taken] = struct{}{}
	b.requests = len(taken.requests)
	return taken, 0, false
}

// finish wakes the callers of a batch. Where the write failed, what was acknowledged already goes back into the queue,
// and finish reports that.
func (b *Buffer) finish(done *batch, events []pipeline.Event, verdicts []pipeline.Verdict, err error) (again bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.writing[done]; !ok {
		return false // abandoned: everybody has been told
	}
	now := time.Now()
	b.work.advance(len(b.writing), now)
	delete(b.writing, done)
	if err == nil {
		b.rate.drained(done.bytes, now)
		b.work.events += done.count
		b.work.batches++
		b.m.perTenant(events, resolved)
		b.resolveLocked(done, done.bytes, verdicts, nil)
		return false
	}
	retry := newBatch(done.since, 0)
	retry.trigger = byRetry
	for _, r := range done.requests {
		if r.async {
			retry.add(r)
		} else {
			b.m.perTenant(r.events, lost)
		}
	}
	b.resolveLocked(done, done.bytes-retry.bytes, nil, err)
	if retry.count == 0 {
		return false
	}
	b.m.asyncRetried.Add(float64(retry.count))
	b.sealed = append(b.sealed, retry)
	b.resting++
	return true
}

// drainRate is how many bytes a second get written, averaged over about drainMemory.
type drainRate struct {
	perSecond float64
	at        time.Time
}

const (
	drainMemory = 5 * time.Second
	// A guess: nobody should be told to stay away for longer, since an outage may end at any time.
	maxRetryAfter = 30 * time.Second
	minRetryAfter = 100 * time.Millisecond
)

func (d *drainRate) drained(bytes int, now time.Time) {
	d.decay(now)
	d.perSecond += float64(bytes) / drainMemory.Seconds()
}

func (d *drainRate) decay(now time.Time) {
	if !d.at.IsZero() {
		d.perSecond *= math.Exp(-now.Sub(d.at).Seconds() / drainMemory.Seconds())
	}
	d.at = now
}

// timeFor returns how long it takes to write that many bytes. Asking for all that is held, not for the little that one
// request lacks, spreads the returning callers out.
func (d *drainRate) timeFor(bytes int, now time.Time) time.Duration {
	d.decay(now)
	wait := maxRetryAfter.Seconds()
	if d.perSecond > 0 {
		wait = min(wait, float64(bytes)/d.perSecond)
	}
	return max(minRetryAfter, time.Duration(wait*float64(time.Second)))
}
