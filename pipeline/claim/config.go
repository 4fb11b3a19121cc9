package claim

import (
	"fmt"
	"time"
)

// Config is what an operator may set about claiming. DefaultConfig returns a complete one.
type Config struct {
	// Lease is how long a claimed message belongs to its worker; claim.lease, default 60 s (a guess: a worker that is
	// killed delays its messages by this much). It must cover the time that a message may wait for its turn and be
	// sent; deliver checks that against its destinations.
	Lease time.Duration
}

// DefaultConfig is complete and valid.
func DefaultConfig() Config { return Config{Lease: time.Minute} }

func (c Config) validate() error {
	if c.Lease < time.Second {
		return fmt.Errorf("claim.lease is %s: set it to at least 1s", c.Lease)
	}
	return nil
}

// statementTimeout bounds every statement, from sending it to its last row, so that a dead connection can't hang a
// worker. A guess: a claim of 1,000 rows takes about 30 ms on two cores.
const statementTimeout = 10 * time.Second

// timeout is the bound on one statement. A claim that takes as long as its lease is worth nothing.
func (c Config) timeout() time.Duration { return min(statementTimeout, c.Lease/2) }

// gaugeInterval is how often the backlog is counted for the metrics. Counting costs about 0.1 s for a million waiting
// rows.
const gaugeInterval = 15 * time.Second
