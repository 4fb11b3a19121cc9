package deliver

import (
	"errors"
	"fmt"
	"time"
)

// Config is what an operator may set about delivery as a whole. DefaultConfig returns a complete one. What belongs to
// one destination stands in the destinations file.
type Config struct {
	// PollInterval is how often the dispatcher asks for due messages when nothing woke it, with up to a quarter of
	// jitter; deliver.poll-interval, default 1 s (a guess: the delay of what another node committed, against one cheap
	// statement a second).
	PollInterval time.Duration
	// ClaimBatch is the most messages that one claim takes, over all destinations; deliver.claim-batch, default 1,000.
	ClaimBatch int
	// MaxBytes bounds the memory of the messages held; deliver.max-bytes, default 64 MiB. A payload counts twice: it is
	// in memory again while it is sent. Each destination has a part of it that no other can take. One that holds
	// nothing takes one message whatever its size, so each may go over its part by a message.
	MaxBytes int
	// AllowNetworks are networks such as 10.1.0.0/16 whose addresses every destination may be called at, although they
	// are not public; deliver.allow-networks, default none.
	AllowNetworks []string
	// DrainTimeout is how long sends that are under way may take when the process stops. After it their connections are
	// closed. Default 10 s; the program takes it from its own drain-timeout.
	DrainTimeout time.Duration
}

// maxHeld is the most messages that a process holds leases on: 10,000, a guess at what costs little memory beside
// their payloads, or twice what the biggest destination may hold, so that none waits for results to be recorded.
func maxHeld(ds Destinations) int {
	most := 10_000
	for _, d := range ds.list {
		most = max(most, 2*d.capacity())
	}
	return most
}

// recordBatch is the most results that one statement records. As many as a claim takes: larger statements cost no less
// for each message.
const recordBatch = 1000

// recordWait is how long a result waits for others to be recorded with. At 10,000 deliveries a second that is 50
// results a statement and more, since while one runs the results for the next gather anyway. The message is delivered
// by then; only its record waits.
const recordWait = 5 * time.Millisecond

// DefaultConfig is complete and valid.
func DefaultConfig() Config {
	return Config{
		PollInterval: time.Second,
		ClaimBatch:   1000,
		MaxBytes:     64 << 20,
		DrainTimeout: 10 * time.Second,
	}
}

func (c Config) validate() error {
	var errs []error
	atLeast := func(key string, got, least int) {
		if got < least {
			errs = append(errs, fmt.Errorf("deliver.%s is %d: set it to at least %d", key, got, least))
		}
	}
	atLeast("claim-batch", c.ClaimBatch, 1)
	atLeast("max-bytes", c.MaxBytes, 1)
	if c.PollInterval < time.Millisecond {
		errs = append(errs, fmt.Errorf("deliver.poll-interval is %s: set it to at least 1ms", c.PollInterval))
	}
	return errors.Join(errs...)
}

// LeaseMargin is what a lease must have left beside the timeout of the send: for the answer to be recorded. A guess.
const LeaseMargin = 2 * time.Second

// checkLease refuses destinations whose messages may wait for longer than their lease: with p messages held for each
// sender, the last of them is sent after the p-1 before it have taken the whole timeout. Leases are extended while work
// goes on, but that needs the database; this does not.
func checkLease(ds Destinations, lease time.Duration) error {
	var errs []error
	for _, d := range ds.list {
		if need := d.longestWait() + LeaseMargin; need > lease {
			rate := ""
			if d.rate > 0 {
				rate = fmt.Sprintf(", rate %g", d.rate)
			}
			errs = append(errs, fmt.Errorf("destination %q (%s): claim.lease is %s, but with timeout %s, "+
				"prefetch %d%s its messages need %s: raise claim.lease, or lower the timeout or the prefetch",
				d.Name, d.where, lease, d.timeout, d.prefetch, rate, need))
		}
	}
	return errors.Join(errs...)
}
