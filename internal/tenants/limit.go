package tenants

import (
	"sync"
	"time"
)

// Limiter holds one tenant to its limits, so that it can't fill the buffer for the others. It is two token buckets of
// one second's worth. What a request costs is known only once it is decoded, so a request goes on while there is
// anything left, and what it then takes may leave a debt that the next ones wait for. A request of any size passes,
// and over time the rate holds exactly. (x/time/rate has neither the debt nor a wait that takes nothing.)
// A nil Limiter limits nothing. It is safe for concurrent use.
type Limiter struct {
	mu     sync.Mutex
	events bucket
	bytes  bucket
}

type bucket struct {
	rate   float64
	tokens float64
	filled time.Time
}

// NewLimiter makes a limiter that is full.
func NewLimiter(l Limits, now time.Time) *Limiter {
	return &Limiter{
		events: bucket{l.EventsPerSecond, l.EventsPerSecond, now},
		bytes:  bucket{l.BytesPerSecond, l.BytesPerSecond, now},
	}
}

// Wait returns how long until the tenant may send again, 0 when it may now.
func (l *Limiter) Wait(now time.Time) time.Duration {
	if l == nil {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(l.events.wait(now), l.bytes.wait(now))
}

// Spend takes what a request turned out to cost.
func (l *Limiter) Spend(events, bytes int) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events.tokens -= float64(events)
	l.bytes.tokens -= float64(bytes)
}

func (b *bucket) wait(now time.Time) time.Duration {
	if b.rate == 0 {
		return 0
	}
	b.tokens = min(b.rate, b.tokens+b.rate*now.Sub(b.filled).Seconds())
	b.filled = now
	if b.tokens > 0 {
		return 0
	}
	return max(time.Millisecond, time.Duration(-b.tokens/b.rate*float64(time.Second)))
}
