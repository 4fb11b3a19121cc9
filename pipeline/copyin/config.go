package copyin

import (
	"errors"
	"fmt"
	"time"
)

// Config are the settings of the stage. Its zero value is not valid; start from DefaultConfig.
type Config struct {
	// Deadline bounds one Write with all its retries; then it ends with ErrUnavailable. Default 25 s (a guess, below
	// the 30 s after which most clients give up).
	Deadline time.Duration
	// DedupeWindow is how far around its time of arrival an event without a time is looked up by its id alone. Default
	// 48 h (a guess: clients that keep events longer put a time on them).
	DedupeWindow time.Duration
	// RecentBytes is the memory for the keys that this process wrote last, 8 bytes each, rounded down to a power of
	// two. A key that is among them is looked up before COPY; below 64 nothing is remembered. Default 8 MiB: a
	// million keys, 10 s at 100,000 events a second; SDKs retry after 0.1 to 3 s.
	RecentBytes int
}

const (
	// attemptTimeout bounds one transaction and every wait in it, the one for a free connection included, within
	// Config.Deadline. PostgreSQL gets it as statement_timeout and idle_in_transaction_session_timeout of the
	// transaction, so that the locks of a client that died are freed. A guess: two attempts fit into the deadline.
	attemptTimeout = 10 * time.Second
	// lockShare of attemptTimeout is lock_timeout: clearly below, so that a wait for a lock ends as one. A guess: 2.5 s,
	// longer than a deadlock takes to be found.
	lockShare = 4
	// lookupFirst is the share of recent batches with repeats that recent does not know, from which on all keys are
	// looked up before COPY and not after it failed. A look-up cost PostgreSQL about 2 us an event, and a COPY that
	// failed and was repeated about 5 us (BenchmarkRepeats, 2 % repeats, 2 cores, PostgreSQL 15).
	lookupFirst = 0.35
)

// DefaultConfig returns the settings that an operator starts from.
func DefaultConfig() Config {
	return Config{Deadline: 25 * time.Second, DedupeWindow: 48 * time.Hour, RecentBytes: 8 << 20}
}

// maxRecent bounds the places of recent to the half of the hash that chooses them.
const maxRecent = bucketBytes << 32

func (c Config) validate() error {
	var faults []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	fault(c.Deadline < time.Millisecond, "copyin.deadline is %s: set at least 1ms", c.Deadline)
	fault(c.DedupeWindow <= 0, "copyin.dedupe-window is %s: set more than 0", c.DedupeWindow)
	fault(c.RecentBytes < 0 || c.RecentBytes > maxRecent,
		"copyin.recent-bytes is %d: set 0 to %d", c.RecentBytes, maxRecent)
	return errors.Join(faults...)
}
