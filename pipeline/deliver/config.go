package deliver

import (
	"errors"
	"fmt"
	"time"
)

// Config is what an operator may set about delivery as a whole. DefaultConfig gives a complete one. What belongs to one
// destination stands in the destinations file.
type Config struct {
	// PollInterval is how often the outbox is looked at when nothing woke the dispatcher, with up to a quarter of jitter;
	// deliver.poll-interval, default 1 s (a guess: the delay of what another node committed, against one cheap statement
	// a second).
	PollInterval time.Duration
	// ClaimBatch is the most messages that one claim takes, over all destinations; deliver.claim-batch, default 1,000.
	ClaimBatch int
	// MaxHeld is the most messages that this process holds leases on; deliver.max-held, default 10,000.
	MaxHeld int
	// MaxBytes stops claiming while the payloads held are more than this; deliver.max-bytes, default 64 MiB. One claim
	// may go over it, by its payloads.
	MaxBytes int
	// RecordBatch is the most results that are recorded by one statement; deliver.record-batch, default 1,000.
	RecordBatch int
	// RecordWait is how long a result waits for others to be recorded with; deliver.record-wait, default 5 ms: at
	// 10,000 deliveries a second that is 50 results a statement and more, since while one runs the results for the next
	// gather anyway. The message is delivered by then; only its record waits.
	RecordWait time.Duration
	// DrainTimeout is how long sends that are under way may take when the process stops; deliver.drain-timeout, default
	// 10 s. After it their connections are closed.
	DrainTimeout time.Duration
	// AllowNetworks are networks such as 10.1.0.0/16 whose addresses every destination may be called at, although they
	// are not public; deliver.allow-networks, default none.
	AllowNetworks []string
}

// DefaultConfig is complete and valid.
func DefaultConfig() Config {
	return Config{
		PollInterval: time.Second,
		ClaimBatch:   1000,
		MaxHeld:      10_000,
		MaxBytes:     64 << 20,
		RecordBatch:  1000,
		RecordWait:   5 * time.Millisecond,
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
	atLeast("max-held", c.MaxHeld, 1)
	atLeast("max-bytes", c.MaxBytes, 1)
	atLeast("record-batch", c.RecordBatch, 1)
	if c.PollInterval < time.Millisecond {
		errs = append(errs, fmt.Errorf("deliver.poll-interval is %s: set it to at least 1ms", c.PollInterval))
	}
	if c.RecordWait < 0 {
		errs = append(errs, fmt.Errorf("deliver.record-wait is %s: set it to 0 or more", c.RecordWait))
	}
	if c.DrainTimeout < 0 {
		errs = append(errs, fmt.Errorf("deliver.drain-timeout is %s: set it to 0 (stop at once) or more", c.DrainTimeout))
	}
	return errors.Join(errs...)
}

// leaseMargin is what a lease must have left beside the timeout of the send: for the answer to be recorded. A guess.
const leaseMargin = 2 * time.Second

// checkLease refuses destinations whose messages may wait for longer than their lease: with p messages held for each
// sender, the last of them is sent after the p-1 before it have taken the whole timeout. Leases are extended while work
// goes on, but that needs the database; this does not.
func checkLease(ds Destinations, lease time.Duration) error {
	var errs []error
	for _, d := range ds.list {
		if need := d.longestWait() + leaseMargin; need > lease {
			rate := ""
			if d.rate > 0 {
				rate = fmt.Sprintf(", rate %g", d.rate)
			}
			errs = append(errs, fmt.Errorf("destination %q (%s): claim.lease is %s, but with timeout %s, prefetch %d%s its messages need %s: raise claim.lease, or lower the timeout or the prefetch",
				d.Name, d.where, lease, d.timeout, d.prefetch, rate, need))
		}
	}
	return errors.Join(errs...)
}
