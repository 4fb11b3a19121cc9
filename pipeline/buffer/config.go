package buffer

import (
	"errors"
	"fmt"
	"time"
)

// Config are the settings of the stage. Its zero value is not valid; start from DefaultConfig.
type Config struct {
	// MaxBytes bounds what all events in memory weigh (sum of Event.Size), from Add until the outcome of their batch.
	// Bytes; default 256 MiB (a guess: some seconds of full load).
	MaxBytes int
	// MaxEvents seals a batch. Default 2000: COPY then costs PostgreSQL 13-14 us an event, against 16 us at 500 and 22 us
	// at 100 (2 cores, PostgreSQL 15). A request is never split, so a single larger one makes a larger batch.
	MaxEvents int
	// MaxBatchBytes seals a batch, by the same weight as MaxBytes. Bytes; default 8 MiB (a guess: keeps the encoded
	// copy that a writer holds small where events are large).
	MaxBatchBytes int
	// MaxWait seals a batch that nobody takes earlier: the longest that an event waits for company while a writer is
	// free. Where no batch is being written there is no wait at all. Default 5 ms (a guess of
	// the order of a COMMIT; in BenchmarkPolicy 0, 2 and 5 ms are within 10 % of each other at 256 callers, and 5 ms
	// makes the fewest transactions).
	MaxWait time.Duration
	// Writers is how many batches are written at the same time. Default 2: one writes rows while the other waits for
	// its COMMIT. In BenchmarkPolicy, 256 callers, 2 cores, one gives 35,000-38,000 events/s, two 38,000-41,000, four no
	// more at the same number of transactions.
	Writers int
	// DrainTimeout is how long Run goes on writing after its context ended. Default 20 s (a guess, below the 30 s that
	// orchestrators grant by default).
	DrainTimeout time.Duration
}

// DefaultConfig gives the settings that an operator starts from.
func DefaultConfig() Config {
	return Config{
		MaxBytes:      256 << 20,
		MaxEvents:     2000,
		MaxBatchBytes: 8 << 20,
		MaxWait:       5 * time.Millisecond,
		Writers:       2,
		DrainTimeout:  20 * time.Second,
	}
}

func (c Config) validate() error {
	var faults []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	fault(c.MaxBytes < 1<<16, "buffer.max-bytes is %d: give at least 65536 bytes", c.MaxBytes)
	fault(c.MaxEvents < 1, "buffer.max-events is %d: give at least 1", c.MaxEvents)
	fault(c.MaxBatchBytes < 1, "buffer.max-batch-bytes is %d: give at least 1", c.MaxBatchBytes)
	fault(c.MaxBatchBytes > c.MaxBytes, "buffer.max-batch-bytes is %d: give at most buffer.max-bytes (%d)", c.MaxBatchBytes, c.MaxBytes)
	fault(c.MaxWait < 0, "buffer.max-wait is %s: give 0 or more", c.MaxWait)
	fault(c.Writers < 1, "buffer.writers is %d: give at least 1", c.Writers)
	fault(c.DrainTimeout < 0, "buffer.drain-timeout is %s: give 0 or more", c.DrainTimeout)
	return errors.Join(faults...)
}
