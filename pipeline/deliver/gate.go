package deliver

import (
	"sync"
	"time"
)

// gate holds a destination's messages back while it is down and while it asked for a pause. What is
// held back costs no attempt.
//
// The breaker: after so many failures in a row the gate closes for a while. Then a single message is let through as a
// probe. When it succeeds the gate is open again; when it fails, the gate closes for twice as long.
type gate struct {
	cfg breaker

	mu       sync.Mutex
	failures int           // in a row
	closed   time.Duration // how long it was closed for the last time; 0: it is open
	until    time.Time     // closed until then, and open for a probe after it
	probing  bool
}

// breaker is what the file says about it.
type breaker struct {
	failures int // 0: no breaker
	pause    time.Duration
	maxPause time.Duration
}

// 20 failures in a row: the first third of the 64 senders. A pause starts at 5 s and doubles up to 1 min. Guesses.
var defaultBreaker = breaker{failures: 20, pause: 5 * time.Second, maxPause: time.Minute}

// room bounds how many more messages may be claimed at this time, of those that would fit.
func (g *gate) room(now time.Time, free, held int) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.closed > 0 && (now.Before(g.until) || g.probing):
		return 0
	case g.closed > 0:
		return min(free, 1-min(held, 1))
	}
	return free
}

// enter asks to send one message now. Without permission it gives how long the gate stays closed. With it, the caller
// has to say how that went by calling leave, with the same probe.
func (g *gate) enter(now time.Time) (ok, probe bool, wait time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.closed == 0:
		return true, false, 0
	case now.Before(g.until):
		return false, false, g.until.Sub(now)
	case g.probing:
		return false, false, time.Second
	}
	g.probing = true
	return true, true, 0
}

// leave tells how a message went that had entered: whether the destination did its part, and for how long it asked to be
// left alone (0: it did not). It reports for how long the gate closed with that. What was on its way when the gate closed
// does not count.
func (g *gate) leave(now time.Time, probe, well bool, pause time.Duration) (closed time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed > 0 && !probe {
		return 0
	}
	before := g.closed
	g.closed, g.probing = 0, g.probing && !probe
	if well {
		g.failures = 0
	} else {
		g.failures++
		switch {
		case g.cfg.failures == 0:
		case probe:
			g.closed = min(2*before, max(g.cfg.maxPause, before))
		case g.failures >= g.cfg.failures:
			g.closed = g.cfg.pause
		}
	}
	g.closed = max(g.closed, pause)
	g.until = now.Add(g.closed)
	return g.closed
}
