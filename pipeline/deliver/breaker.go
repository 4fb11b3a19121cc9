package deliver

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// breaker is a destination's circuit breaker. While it is open nothing is sent; what it holds back costs no attempt.
//
// It opens for a while after a number of failures in a row, and when the destination asks to be left alone. Then a
// single message is let through as a probe (half-open). If that succeeds the breaker closes; if it fails, the breaker
// opens for twice as long. After a 429, or a request to be left alone, few messages are in flight at first, and one
// more with each round of successes: what all senders would send at once would be refused again.
type breaker struct {
	cfg breakerConfig
	// busy is false while nothing limits the senders, so that they need not ask.
	busy atomic.Bool

	mu       sync.Mutex
	failures int           // in a row
	open     time.Duration // how long it was opened for the last time; 0: it is closed
	until    time.Time     // open until then, and half-open after it
	probing  bool
	window   float64 // how many messages may be in flight; 0: as many as there are senders
}

// breakerConfig is the breaker setting of a destination.
type breakerConfig struct {
	failures int // 0: it opens only when the destination asks for it
	pause    time.Duration
	maxPause time.Duration
}

// 20 failures in a row: the first third of the 64 senders. A pause starts at 5 s and doubles up to 1 min. Guesses.
var defaultBreaker = breakerConfig{failures: 20, pause: 5 * time.Second, maxPause: time.Minute}

// shortPause is how long messages wait here for an open breaker; for a longer time they go back to the outbox. A guess:
// a few seconds of a lease.
const shortPause = 5 * time.Second

// result is what an attempt shows about its destination.
type result int

const (
	well    result = iota // it answered, and not with a failure of its own
	failed                // it did not do its part
	crowded               // it failed, since it got too much at once
	asked                 // it asked to be left alone
)

// room bounds how many more messages may be claimed at this time: of free, where held are held already.
func (b *breaker) room(now time.Time, free, held int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.open > 0 && (now.Before(b.until) || b.probing):
		return 0
	case b.open > 0:
		return min(free, 1-min(held, 1))
	}
	return free
}

// senders is how many of most senders may run. While it is open for long they run, and give messages back.
func (b *breaker) senders(now time.Time, most int) int {
	if !b.busy.Load() {
		return most
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.open > 0 && b.until.Sub(now) > shortPause:
		return most
	case b.open > 0 && now.Before(b.until):
		return 0
	case b.open > 0:
		return 1
	case b.window > 0:
		return min(most, int(b.window))
	}
	return most
}

// capacity is how many messages may be held, of most: only some where few are in flight.
func (b *breaker) capacity(most int) int {
	if !b.busy.Load() {
		return most
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.window == 0 {
		return most
	}
	return min(most, 4*int(b.window))
}

// enter asks to send one message now. Where it may not, wait is how long the breaker stays open. Where it may, the
// caller has to report the result by calling leave or cancel, with the same probe.
func (b *breaker) enter(now time.Time) (ok, probe bool, wait time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.open == 0:
		return true, false, 0
	case now.Before(b.until):
		return false, false, b.until.Sub(now)
	case b.probing:
		return false, false, time.Second
	}
	b.probing = true
	return true, true, 0
}

// cancel is leave for a message that had entered and was not sent after all.
func (b *breaker) cancel(probe bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.probing = b.probing && !probe
}

// leave takes the result of a message that had entered, and how long the destination asked to be left alone. most is
// the number of its senders. It returns for how long the breaker opened with that (0: it did not). What was under way
// when it opened does not count.
func (b *breaker) leave(now time.Time, probe bool, r result, pause time.Duration, most int) (opened time.Duration) {
	if r == well && !b.busy.Load() {
		b.mu.Lock()
		b.failures = 0
		b.mu.Unlock()
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open > 0 && !probe {
		return 0
	}
	before := b.open
	b.open = 0
	b.probing = b.probing && !probe
	switch r {
	case well:
		b.failures = 0
		if b.window > 0 {
			b.window += 1 / math.Floor(b.window)
		}
		if int(b.window) >= most {
			b.window = 0
		}
	case asked:
		b.window = 1
		b.open = pause
	case failed, crowded:
		if r == crowded {
			b.window = 1
		}
		b.failures++
		switch {
		case b.cfg.failures == 0:
		case probe:
			b.open = min(2*before, max(b.cfg.maxPause, before))
		case b.failures >= b.cfg.failures:
			b.open = b.cfg.pause
		}
		b.open = max(b.open, pause)
	}
	b.until = now.Add(b.open)
	b.busy.Store(b.open > 0 || b.window > 0)
	return b.open
}
