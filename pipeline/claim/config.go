package claim

import (
	"errors"
	"fmt"
	"time"
)

// Config is what an operator may set about claiming. DefaultConfig gives a complete one.
type Config struct {
	// Lease is how long a claimed message belongs to its worker; claim.lease, default 60 s (a guess: a worker that is
	// killed delays its messages by this much). It must cover the time that a message may wait for its turn and be sent;
	// deliver checks that against its destinations.
	Lease time.Duration
	// Timeout bounds every statement, from sending it to its last row; claim.timeout, default 10 s (a guess: a claim of
	// 1,000 rows takes about 30 ms on two cores).
	Timeout time.Duration
	// GaugeInterval is how often the backlog is counted for the metrics; claim.gauge-interval, default 15 s (counting
	// costs about 0.1 s for a million waiting rows).
	GaugeInterval time.Duration
}

// DefaultConfig is complete and valid.
func DefaultConfig() Config {
	return Config{Lease: time.Minute, Timeout: 10 * time.Second, GaugeInterval: 15 * time.Second}
}

func (c Config) validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.Lease < time.Second {
		bad("claim.lease is %s: set it to at least 1s", c.Lease)
	}
	if c.Timeout <= 0 {
		bad("claim.timeout is %s: set it above 0, so that a dead connection can't hang a worker", c.Timeout)
	}
	if c.Timeout > 0 && c.Lease >= time.Second && c.Timeout >= c.Lease {
		bad("claim.timeout is %s and claim.lease %s: a claim that takes as long as its lease is worth nothing; lower the first or raise the second", c.Timeout, c.Lease)
	}
	if c.GaugeInterval <= 0 {
		bad("claim.gauge-interval is %s: set it above 0", c.GaugeInterval)
	}
	return errors.Join(errs...)
}
