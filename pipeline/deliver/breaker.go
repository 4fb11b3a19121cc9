package deliver

import (
	"sync"
	"time"
)

// breaker is a destination's circuit breaker. While it is open nothing is sent; what it holds back costs no attempt.
//
// It opens for a while after a number of failures in a row, and when the destination asks to be left alone. Then a
// single message is let through as a probe (half-open). If that succeeds the breaker closes; if it fails, the breaker
// opens for twice as long.
type breaker struct {
	cfg breakerConfig

	mu       sync.Mutex
	failures int           // in a row
	open     time.Duration // how long it was opened for the last time; 0: it is closed
	until    time.Time     // open until then, and half-open after it
	probing  bool
}

// breakerConfig is the breaker setting of a destination.
type breakerConfig struct {
	failures int // 0: it opens only when the destination asks for it
	pause    time.Duration
	maxPause time.Duration
}

// 20 failures in a row: the first third of the 64 senders. A pause starts at 5 s and doubles up to 1 min. Guesses.
var defaultBreaker = breakerConfig{failures: 20, pause: 5 * time.Second, maxPause: time.Minute}

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

// enter asks to send one message now. Where it may not, wait is how long the breaker stays open. Where it may, the
// caller has to report the result by calling leave, with the same probe.
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

// leave takes the result of a message that had entered: whether the destination did its part, and for how long it asked
// to be left alone (0: it did not). It returns for how long the breaker opened with that (0: it did not). What was
// under way when it opened does not count.
func (b *breaker) leave(now time.Time, probe, well bool, pause time.Duration) (opened time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open > 0 && !probe {
		return 0
	}
	before := b.open
	b.open = 0
	b.probing = b.probing && !probe
	if well {
		b.failures = 0
	} else {
		b.failures++
		switch {
		case b.cfg.failures == 0:
		case probe:
			b.open = min(2*before, max(b.cfg.maxPause, before))
		case b.failures >= b.cfg.failures:
			b.open = b.cfg.pause
		}
	}
	b.open = max(b.open, pause)
	b.until = now.Add(b.open)
	return b.open
}
