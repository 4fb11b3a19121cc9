package buffer

import (
	"errors"
	"fmt"
	"time"
)

// Auto lets a setting follow what is measured, between its starting value and a bound; see Tune. "auto" for operators.
const Auto = -1

// Where tuned settings start, and what they do not go below.
const (
	// 2000: COPY then costs PostgreSQL 13-14 us an event, against 16 us at 500 and 22 us at 100 (2 cores, PostgreSQL 15).
	startEvents = 2000
	// 5 ms is a guess of the order of a COMMIT; in BenchmarkPolicy 0, 2 and 5 ms are within 10 % of each other at 256
	// callers, and 5 ms makes the fewest transactions.
	startWait = 5 * time.Millisecond
	leastWait = time.Millisecond // a guess: about the fastest COMMIT that waits for a disk
	// Two: one writes rows while the other waits for its COMMIT. In BenchmarkPolicy, 256 callers, 2 cores, one gives
	// 35,000-38,000 events/s, two 38,000-41,000, four no more at the same number of transactions.
	startWriters = 2
)

// Config are the settings of the stage. Its zero value is not valid; start from DefaultConfig.
type Config struct {
	// MaxBytes bounds what all events in memory weigh (sum of Event.Size), from Add until the outcome of their batch.
	// Bytes; default 256 MiB (a guess: some seconds of full load).
	MaxBytes int
	// MaxEvents seals a batch. Default Auto: 2000, and up to AutoMaxEvents where more at once is measured to be faster. A
	// request is never split, so a single larger one makes a larger batch.
	MaxEvents int
	// MaxBatchBytes seals a batch, by the same weight as MaxBytes. Bytes; default 8 MiB (a guess: keeps the encoded
	// copy that a writer holds small where events are large).
	MaxBatchBytes int
	// MaxWait seals a batch that nobody takes earlier: the longest that an event waits for company while a writer is
	// free. Where no batch is being written there is no wait at all. Default Auto: as long as a batch takes, from 1 ms
	// to AutoMaxWait.
	MaxWait time.Duration
	// Writers is how many batches are written at the same time. Default Auto: 2, and up to AutoWriters where that is
	// measured to be faster.
	Writers int
	// AutoMaxEvents, AutoMaxWait and AutoWriters bound what Auto does. Defaults 8000 events (a guess: above it a batch
	// of usual events is sealed by its bytes), 50 ms (a guess: the p99 that answers should keep) and 4 (a guess: they hide
	// a COMMIT of three times as long as the rows of its batch take; each costs a connection and the memory of a batch).
	AutoMaxEvents int
	AutoMaxWait   time.Duration
	AutoWriters   int
	// DrainTimeout is how long Run goes on writing after its context ended. Default 20 s (a guess, below the 30 s that
	// orchestrators grant by default).
	DrainTimeout time.Duration
}

// DefaultConfig gives the settings that an operator starts from.
func DefaultConfig() Config {
	return Config{
		MaxBytes:      256 << 20,
		MaxEvents:     Auto,
		MaxBatchBytes: 8 << 20,
		MaxWait:       Auto,
		Writers:       Auto,
		AutoMaxEvents: 8000,
		AutoMaxWait:   50 * time.Millisecond,
		AutoWriters:   4,
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
	fault(c.MaxEvents != Auto && c.MaxEvents < 1, "buffer.max-events is %d: give at least 1, or auto", c.MaxEvents)
	fault(c.MaxBatchBytes < 1, "buffer.max-batch-bytes is %d: give at least 1", c.MaxBatchBytes)
	fault(c.MaxBatchBytes > c.MaxBytes, "buffer.max-batch-bytes is %d: give at most buffer.max-bytes (%d)", c.MaxBatchBytes, c.MaxBytes)
	fault(c.MaxWait != Auto && c.MaxWait < 0, "buffer.max-wait is %s: give 0 or more, or auto", c.MaxWait)
	fault(c.Writers != Auto && c.Writers < 1, "buffer.writers is %d: give at least 1, or auto", c.Writers)
	fault(c.MaxEvents == Auto && c.AutoMaxEvents < 1, "buffer.auto-max-events is %d: give at least 1", c.AutoMaxEvents)
	fault(c.MaxWait == Auto && c.AutoMaxWait < 0, "buffer.auto-max-wait is %s: give 0 or more", c.AutoMaxWait)
	fault(c.Writers == Auto && c.AutoWriters < 1, "buffer.auto-writers is %d: give at least 1", c.AutoWriters)
	fault(c.DrainTimeout < 0, "buffer.drain-timeout is %s: give 0 or more", c.DrainTimeout)
	return errors.Join(faults...)
}

// knobs are the settings in force.
type knobs struct {
	writers   int
	maxEvents int
	maxWait   time.Duration
}

// bounds gives the least and the most that the settings may be; they are the same where a value is fixed. Tuning
// starts from the least, but for the wait.
func (c Config) bounds() (least, most knobs) {
	least = knobs{c.Writers, c.MaxEvents, c.MaxWait}
	most = least
	if c.Writers == Auto {
		least.writers, most.writers = min(startWriters, c.AutoWriters), c.AutoWriters
	}
	if c.MaxEvents == Auto {
		least.maxEvents, most.maxEvents = min(startEvents, c.AutoMaxEvents), c.AutoMaxEvents
	}
	if c.MaxWait == Auto {
		least.maxWait, most.maxWait = min(leastWait, c.AutoMaxWait), c.AutoMaxWait
	}
	return least, most
}

// MostWriters is how many batches may be written at the same time, tuned or fixed.
func (c Config) MostWriters() int {
	_, most := c.bounds()
	return most.writers
}
