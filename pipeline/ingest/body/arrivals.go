package body

import (
	"sync"
	"time"

	"sluice.example/sluice/internal/wait"
)

const (
	// slowAfter and slowRate say when a body that does not arrive gives its memory to another: for that long, fewer bytes
	// a second came. Guesses: a telephone with a poor connection sends 30 KB/s.
	slowAfter = 2 * time.Second
	slowRate  = 8 << 10
)

// arrivals are the bodies that did not come with their header, so that one that does not arrive can be ended in favor
// of others.
type arrivals struct {
	mu     sync.Mutex
	bodies map[*Body]bool
	freed  chan struct{} // a nudge after memory was returned
}

func (a *arrivals) nudge() { wait.Nudge(a.freed) }

// waitNudge waits until memory was returned, or a moment.
func (a *arrivals) waitNudge() {
	t := time.NewTimer(100 * time.Millisecond)
	defer t.Stop()
	select {
	case <-a.freed:
	case <-t.C:
	}
}

// note counts n bytes more of a body, which enters at its second piece.
func (a *arrivals) note(b *Body, n int) {
	came := b.came.Add(int64(n))
	if b.conn == nil {
		return
	}
	now := time.Now()
	b.last.Store(now.UnixNano())
	if b.entered && now.Sub(b.mark) < slowAfter {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if b.entered {
		b.rate = float64(came-b.marked) / now.Sub(b.mark).Seconds()
	} else {
		b.rate = slowRate
		a.bodies[b] = true
	}
	b.entered, b.mark, b.marked = true, now, came
}

// leave ends what note began. From then on nobody touches the body's connection.
func (a *arrivals) leave(b *Body) {
	if !b.entered {
		return
	}
	b.entered = false
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.bodies, b)
}

// endSlowest ends the reading of the slowest body of a share, nil being any, and reports whether there was one that is
// too slow. Its client is answered 408.
func (a *arrivals) endSlowest(of *Share) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	var slowest *Body
	least := float64(slowRate)
	for b := range a.bodies {
		if of != nil && b.of.Load() != of {
			continue
		}
		rate := b.rate
		if took := now.Sub(b.mark); took >= slowAfter {
			rate = float64(b.came.Load()-b.marked) / took.Seconds()
		}
		if now.UnixNano()-b.last.Load() >= int64(slowAfter) {
			rate = 0
		}
		if rate < least {
			slowest, least = b, rate
		}
	}
	if slowest == nil {
		return false
	}
	delete(a.bodies, slowest)
	slowest.ended.Store(true)
	slowest.conn.SetReadDeadline(time.Unix(1, 0))
	return true
}
