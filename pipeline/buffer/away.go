package buffer

import (
	"math/rand/v2"
	"time"

	"sluice.example/sluice/pipeline"
)

const (
	// awayAfter is how long the database has to be away before requests are refused. A guess: a restart takes about as
	// long, and who waits that long waits no longer than a client's patience.
	awayAfter = 3 * time.Second
	// awayFor is how long a failure counts: longer than one attempt of copyin takes that nobody answers.
	awayFor = 15 * time.Second
	// Bounds of the outage that Retry-After follows: a few seconds at least; and with its random part Retry-After is less
	// than 300 s, from which on SDKs do not take it at its word.
	leastAway = 5 * time.Second
	mostAway  = 170 * time.Second
)

// RefuseWhile has the buffer refuse requests that would wait, while the database is known to be away: with
// pipeline.Away, and without taking anything. away returns the first and the last failure since the database last
// answered, zero without one. One batch at a time goes on trying; the first that succeeds ends it. What AddAsync takes
// is not refused, since it waits in memory. Call it before all else.
func (b *Buffer) RefuseWhile(away func() (first, last time.Time)) { b.away = away }

// outage returns how long the database has been away, 0 where it is not known to be.
func (b *Buffer) outage(now time.Time) time.Duration {
	if b.away == nil {
		return 0
	}
	first, last := b.away()
	if first.IsZero() || now.Sub(first) < awayAfter || now.Sub(last) > awayFor {
		return 0
	}
	return last.Sub(first)
}

// awayLocked is the refusal while the database is away, nil for the request that finds out whether it still is.
func (b *Buffer) awayLocked(now time.Time) error {
	idle := b.open == nil && len(b.sealed) == 0 && len(b.writing) == 0
	if idle {
		return nil
	}
	if length := b.outage(now); length > 0 {
		return &pipeline.Away{RetryAfter: retryAfter(length)}
	}
	return nil
}

// comeBack adds to an error when to come back, where the database is known to be away.
func (b *Buffer) comeBack(err error) error {
	if length := b.outage(time.Now()); length > 0 {
		return &pipeline.Away{RetryAfter: retryAfter(length), Err: err}
	}
	return err
}

// retryAfter is when a client that is refused should come back: after about as long as the outage has lasted. Then
// those who wait when it ends come back over about as long as it took to gather them, one for each that is new, and a
// client with ten tries outlasts a quarter of an hour. With a fixed wait all come back within that wait: at 30 s, after
// 170 s, six times the usual rate. From mostAway on that holds no more. See TestOutageThatClientsCanLiveWith.
func retryAfter(length time.Duration) time.Duration {
	wait := min(max(length, leastAway), mostAway)
	return wait + wait/4 + rand.N(wait/2)
}
