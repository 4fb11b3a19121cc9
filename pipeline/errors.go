package pipeline

import (
	"errors"
	"fmt"
	"time"
)

// The errors that stages report to each other. Compare with errors.Is.
var (
	// ErrOverloaded: nothing was taken, since a bound is reached. Try again later; see Overloaded for when.
	ErrOverloaded = errors.New("overloaded")
	// ErrUnavailable: the database could not be reached, or did not answer in time. The events may or may not be
	// stored; sending them again is harmless, since their keys make a repeat a duplicate.
	ErrUnavailable = errors.New("database unavailable")
	// ErrDiskFull is an ErrUnavailable of which more is known: the database's disk is full, and the events are not
	// stored. Sending them again helps once there is room, and is harmless.
	ErrDiskFull = fmt.Errorf("%w: its disk is full", ErrUnavailable)
	// ErrLocked is an ErrUnavailable of which more is known: somebody holds a lock in the database for long, and the
	// events, which need it, are not stored. Sending them again is harmless.
	ErrLocked = fmt.Errorf("%w: somebody holds a lock", ErrUnavailable)
	// ErrFault: the database answers, and cannot store events as things are: a privilege or a table is missing, or a
	// bug. The events are not stored. Sending them again helps once somebody has repaired it, and is harmless.
	ErrFault = errors.New("not stored until a fault is repaired")
	// ErrClosed: the stage is draining and accepts nothing more.
	ErrClosed = errors.New("shutting down")
)

// Overloaded is the ErrOverloaded that tells when to come back.
type Overloaded struct {
	// RetryAfter is when there should be room again, computed from how fast the work drains. Always positive.
	RetryAfter time.Duration
	// Remedy tells an operator what to change.
	Remedy string
}

func (e *Overloaded) Error() string {
	return fmt.Sprintf("overloaded, retry in %s: %s", e.RetryAfter, e.Remedy)
}

// Is makes errors.Is(err, ErrOverloaded) true.
func (e *Overloaded) Is(target error) bool { return target == ErrOverloaded }

// Away is the ErrUnavailable of requests while the database is known to be away.
type Away struct {
	// RetryAfter is when to come back. It is random, so that those who are refused together come back apart.
	RetryAfter time.Duration
	// Err is why the outcome of events is not known; nil where they were refused at once and nothing was taken.
	Err error
}

func (e *Away) Error() string {
	if e.Err != nil {
		return e.Err.Error()
	}
	return fmt.Sprintf("%v for a while: retry in %s", ErrUnavailable, e.RetryAfter)
}

// Is makes errors.Is(err, ErrUnavailable) true.
func (e *Away) Is(target error) bool { return target == ErrUnavailable }

func (e *Away) Unwrap() error { return e.Err }

// RowsHeldError: results of some messages were not recorded, since others hold their rows. All other results were.
type RowsHeldError struct {
	Messages []int64
}

func (e *RowsHeldError) Error() string {
	return fmt.Sprintf("the rows of %d messages (%d, ...) are locked by somebody else: end the transaction that holds "+
		"them", len(e.Messages), e.Messages[0])
}
