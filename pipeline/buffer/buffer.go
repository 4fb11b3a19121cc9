// Package buffer gathers the events of many callers into batches and returns to each caller the outcome of its own.
//
// In: Add, AddAsync. Out: WriteFunc, called by a bounded number of writers. Memory is bounded in bytes: a request for
// which there is no room is refused at once with a time to come back. A request is never split over two batches, and a
// caller that goes away takes nothing out of one. Nothing here survives a crash, so Add answers only after the
// write. What AddAsync took is written again after a failure, until it succeeds or the drain ends. What Add took is
// not written again: its caller gets the error and may repeat it.
package buffer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"sluice.example/sluice/internal/wait"
	"sluice.example/sluice/pipeline"
)

// WriteFunc stores a batch and returns a verdict for each of its events, by index. With an error nothing of the batch
// is known to be stored. It must return soon after ctx ends, and must not keep the slice.
type WriteFunc func(ctx context.Context, events []pipeline.Event) ([]pipeline.Verdict, error)

// Buffer is safe for concurrent use. Its writers live in Run.
type Buffer struct {
	cfg   Config
	write WriteFunc
	m     *Metrics
	away  func() (first, last time.Time) // nil: not known
	tell  func(events int)               // nil: nobody

	// nudge wakes writers. It holds one token for each, so that a full channel means that all will look anyway.
	nudge chan struct{}

	mu      sync.Mutex
	maxWait time.Duration
	// auto: maxWait follows the time of a write.
	auto      bool
	maxEvents int
	resting   int // writers that pause after a failure
	work      work
	open      *batch   // takes requests; nil when there are none
	sealed    []*batch // full ones in order
	writing   map[*batch]struct{}
	used      int // bytes of everything above
	requests  int // in the batch that was taken last: about how many the next will have
	closed    bool
	over      bool // the drain deadline has passed
	lost      int  // events without an outcome when it passed
	lost202   int  // of them those that AddAsync took
	rate      drainRate
}

// New checks the configuration; Run does the work.
func New(cfg Config, write WriteFunc, m *Metrics) (*Buffer, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	b := &Buffer{
		cfg:       cfg,
		write:     write,
		m:         m,
		nudge:     make(chan struct{}, cfg.Writers),
		maxWait:   cfg.MaxWait,
		auto:      cfg.MaxWait == Auto,
		maxEvents: cfg.MaxEvents,
		writing:   map[*batch]struct{}{},
	}
	if cfg.MaxWait == Auto {
		b.maxWait = startWait
	}
	m.maxBytes.Set(float64(cfg.MaxBytes))
	m.writers.Set(float64(cfg.Writers))
	m.maxEvents.Set(float64(cfg.MaxEvents))
	m.maxWait.Set(b.maxWait.Seconds())
	m.limitedBy(byClients)
	return b, nil
}

// Add hands events over and waits for the outcome of their batch. It keeps the slice. The verdict at i belongs to
// events[i]. Errors: Overloaded, Away and ErrClosed at once (nothing was taken), ErrUnavailable and ErrFault (the write
// failed; repeating is harmless), and ctx.Err() when ctx ends first, in which case the events are written all the same.
func (b *Buffer) Add(ctx context.Context, events []pipeline.Event) ([]pipeline.Verdict, error) {
	if len(events) == 0 {
		return nil, nil
	}
	start := time.Now()
	in, at, err := b.admit(request{events: events}, start)
	if err != nil {
		return nil, err
	}
	select {
	case <-in.done:
		b.m.wait.Observe(seconds(start))
		if in.err != nil {
			return nil, b.comeBack(in.err)
		}
		return in.verdicts[at : at+len(events) : at+len(events)], nil
	case <-ctx.Done():
		return nil, b.comeBack(ctx.Err())
	}
}

// AddAsync hands events over and returns once their memory is reserved. It keeps the slice. Errors: Overloaded and
// ErrClosed; nothing was taken then.
func (b *Buffer) AddAsync(events []pipeline.Event) error {
	if len(events) == 0 {
		return nil
	}
	_, _, err := b.admit(request{events: events, async: true}, time.Now())
	return err
}

// Fill returns how much of buffer.max-bytes is in use, from 0 to 1.
func (b *Buffer) Fill() float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return float64(b.used) / float64(b.cfg.MaxBytes)
}

// Room returns the error that Add would return now for about this many bytes: Overloaded or Away. It reserves nothing.
// With it a caller need not make events of what will not fit. An empty buffer leaves the decision to Add.
func (b *Buffer) Room(bytes int) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.awayLocked(time.Now()); err != nil {
		return err
	}
	if b.used == 0 || b.used+bytes <= b.cfg.MaxBytes {
		return nil
	}
	return b.overloadedLocked(time.Now(), makeRoom)
}

const makeRoom = "the buffer is full: raise buffer.max-bytes, or make the database faster"

// overloadedLocked is the refusal of a request, whose Retry-After follows the drain rate.
func (b *Buffer) overloadedLocked(now time.Time, remedy string) error {
	return &pipeline.Overloaded{RetryAfter: b.rate.timeFor(b.used, now), Remedy: remedy}
}

// admit puts a request into a batch, and returns which, and where its events begin there.
func (b *Buffer) admit(r request, now time.Time) (in *batch, at int, err error) {
	for i := range r.events {
		r.bytes += r.events[i].Size()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, 0, pipeline.ErrClosed
	}
	if !r.async && b.away != nil {
		if err := b.awayLocked(now); err != nil {
			return nil, 0, err
		}
	}
	if b.used+r.bytes > b.cfg.MaxBytes {
		b.m.refused.Add(float64(len(r.events)))
		remedy := makeRoom
		if r.bytes > b.cfg.MaxBytes {
			remedy = fmt.Sprintf("one request of %d bytes in memory never fits: "+
				"split it, or raise buffer.max-bytes (%d)", r.bytes, b.cfg.MaxBytes)
		}
		return nil, 0, b.overloadedLocked(now, remedy)
	}
	b.m.perTenant(r.events, admitted)
	b.used += r.bytes
	b.m.usedBytes.Set(float64(b.used))

	if b.open != nil {
		switch {
		case b.open.count+len(r.events) > b.maxEvents:
			b.sealLocked(byEvents)
		case b.open.bytes+r.bytes > b.cfg.MaxBatchBytes:
			b.sealLocked(byBytes)
		}
	}
	if b.open == nil {
		b.open = newBatch(now, b.requests)
		wait.Nudge(b.nudge)
	}
	in, at = b.open, b.open.count
	in.add(r)
	switch {
	case b.open.count >= b.maxEvents:
		b.sealLocked(byEvents)
	case b.open.bytes >= b.cfg.MaxBatchBytes:
		b.sealLocked(byBytes)
	}
	return in, at, nil
}

func (b *Buffer) sealLocked(t trigger) {
	b.open.trigger = t
	b.sealed = append(b.sealed, b.open)
	b.open = nil
	wait.Nudge(b.nudge)
}

// TellLost has f called with the number of events that AddAsync took and that were not written when the drain ended.
// Nobody else learns of them: their clients were told that they were taken. Call it before Run.
func (b *Buffer) TellLost(f func(events int)) { b.tell = f }

// Run writes batches until ctx ends; then it refuses new events, writes what it has, and returns nil. Writes are not
// cancelled with ctx but after Config.DrainTimeout: then callers that still wait get ErrUnavailable, and Run
// returns how many events had no outcome. Call it once.
func (b *Buffer) Run(ctx context.Context) error {
	wctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	// Not a conc pool: it would hold a writer's panic back until the other writers end, with callers waiting.
	var writers sync.WaitGroup
	for range b.cfg.Writers {
		writers.Go(func() { b.writer(wctx) })
	}
	<-ctx.Done()
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	for range b.cfg.Writers {
		wait.Nudge(b.nudge)
	}
	deadline := time.AfterFunc(b.cfg.DrainTimeout, func() { b.abandon(); cancel() })
	writers.Wait()
	deadline.Stop()

	b.mu.Lock()
	defer b.mu.Unlock()
	if b.lost202 > 0 && b.tell != nil {
		b.tell(b.lost202)
	}
	if b.lost > 0 {
		return fmt.Errorf("buffer: %d events were not written within %s of the stop; raise drain-timeout",
			b.lost, b.cfg.DrainTimeout)
	}
	return nil
}

var errDrain = fmt.Errorf("%w: not written before the shutdown deadline", pipeline.ErrUnavailable)

// abandon answers everybody who still waits. A write that is under way may yet succeed, and nobody learns of it.
func (b *Buffer) abandon() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.over = true
	all := b.sealed
	if b.open != nil {
		all = append(all, b.open)
	}
	for batch := range b.writing {
		all = append(all, batch)
	}
	b.sealed, b.open = nil, nil
	clear(b.writing)
	for _, batch := range all {
		b.lost += batch.count
		for _, r := range batch.requests {
			b.m.perTenant(r.events, lost)
			if r.async {
				b.m.perTenant(r.events, lost202)
				b.lost202 += len(r.events)
			}
		}
		b.resolveLocked(batch, batch.bytes, nil, errDrain)
	}
}

// resolveLocked sets the outcome of a batch for its callers and frees that many bytes. One channel wakes them all.
func (b *Buffer) resolveLocked(done *batch, bytes int, verdicts []pipeline.Verdict, err error) {
	b.used -= bytes
	b.m.usedBytes.Set(float64(b.used))
	if err != nil && !errors.Is(err, pipeline.ErrUnavailable) && !errors.Is(err, pipeline.ErrFault) {
		err = fmt.Errorf("%w: %w", pipeline.ErrUnavailable, err)
	}
	done.verdicts, done.err = verdicts, err
	close(done.done)
}
