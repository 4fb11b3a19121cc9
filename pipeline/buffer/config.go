package buffer

import (
	"errors"
	"fmt"
	"time"
)

// Auto lets a setting follow what is measured; see Tune. "auto" for operators.
const Auto = -1

// Config are the settings of the stage. Its zero value is not valid; start from DefaultConfig.
type Config struct {
	// MaxBytes bounds what all events in memory weigh (sum of Event.Size), from Add until the outcome of their batch.
	// Bytes; default 256 MiB (a guess: some seconds of full load).
	MaxBytes int
	// MaxEvents seals a batch. Default 2000: COPY then costs PostgreSQL 13-14 us an event, against 16 us at 500 and
	// 22 us at 100 (2 cores, PostgreSQL 15). A request is never split, so a single larger one makes a larger batch.
	MaxEvents int
	// MaxBatchBytes seals a batch, by the same weight as MaxBytes. Bytes; default 8 MiB (a guess: keeps the encoded
	// copy that a writer holds small where events are large).
	MaxBatchBytes int
	// MaxWait seals a batch that nobody takes earlier: the longest that an event waits for company while a writer is
	// free. Where no batch is being written there is no wait at all. Default Auto: as long as a batch takes, from 1 ms
	// to 50 ms.
	MaxWait time.Duration
	// Writers is how many batches are written at the same time. Default 2: one writes rows while the other waits for
	// its COMMIT. In BenchmarkPolicy, 256 callers, 2 cores, one gives 35,000-38,000 events/s, two 38,000-41,000, four
	// no more at the same number of transactions. Where a COMMIT takes several times as long as the rows of its
	// batch, more hide it; each costs a connection and the memory of a batch. Rejected: to find the number by trials
	// at run time; they tried a third, took it back and stayed at two.
	Writers int
	// DrainTimeout is how long Run goes on writing after its context ended. Default 20 s; the program takes it from its
	// own drain-timeout.
	DrainTimeout time.Duration
}

// DefaultConfig returns the settings that an operator starts from.
func DefaultConfig() Config {
	return Config{
		MaxBytes:      256 << 20,
		MaxEvents:     2000,
		MaxBatchBytes: 8 << 20,
		MaxWait:       Auto,
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
	fault(c.MaxBytes < 1<<16, "buffer.max-bytes is %d: set at least 65536 bytes", c.MaxBytes)
	fault(c.MaxEvents < 1, "buffer.max-events is %d: set at least 1", c.MaxEvents)
	fault(c.MaxBatchBytes < 1, "buffer.max-batch-bytes is %d: set at least 1", c.MaxBatchBytes)
	fault(c.MaxBatchBytes > c.MaxBytes, "buffer.max-batch-bytes is %d: set at most buffer.max-bytes (%d)",
		c.MaxBatchBytes, c.MaxBytes)
	fault(c.MaxWait != Auto && c.MaxWait < 0, "buffer.max-wait is %s: set 0 or more, or auto", c.MaxWait)
	fault(c.Writers < 1, "buffer.writers is %d: set at least 1", c.Writers)
	fault(c.DrainTimeout < 0, "buffer: DrainTimeout is %s; it has to be 0 or more", c.DrainTimeout)
	return errors.Join(faults...)
}
