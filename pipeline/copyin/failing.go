package copyin

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// sayEvery is how often the log repeats that batches still fail for the same cause.
	sayEvery = time.Minute
	// failedLately is how long a failure counts for readiness: without requests, which readiness keeps away, nothing
	// shows that there is room again. A guess: a few probes of a load balancer.
	failedLately = 15 * time.Second
)

// failing is since when batches fail, and why. A line of the log for each batch would bury the reason.
type failing struct {
	on atomic.Bool // so that a batch that is stored takes no lock

	mu                sync.Mutex
	cause             string
	since, said, last time.Time
	batches, events   int // since the log said so
}

func (f *failing) note(log *slog.Logger, cause string, events int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	if f.cause == "" {
		f.since = now
	}
	changed := f.cause != cause
	f.on.Store(true)
	f.cause, f.last = cause, now
	f.batches++
	f.events += events
	if !changed && now.Sub(f.said) < sayEvery {
		return
	}
	log.Error("batches are not written", "cause", cause, "batches", f.batches, "events", f.events, "error", err)
	f.said, f.batches, f.events = now, 0, 0
}

func (f *failing) end(log *slog.Logger) {
	if !f.on.Load() {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cause != "" {
		log.Info("batches are written again", "cause", f.cause, "seconds", int(time.Since(f.since).Seconds()),
			"batches_not_logged", f.batches)
	}
	f.on.Store(false)
	f.cause, f.batches, f.events = "", 0, 0
}

// full reports whether a batch found the disk full just now.
func (f *failing) full() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.cause == string(causeDiskFull) && time.Since(f.last) < failedLately
}

// Trouble reports what keeps batches from being acknowledged although the database answers, nil where nothing does.
func (w *Writer) Trouble() error {
	if w.failing.full() {
		return errors.New("the database's disk is full: give it room, or drop days of events (retain.events)")
	}
	if n := w.waiting.Load(); n > 0 {
		return fmt.Errorf("%d COMMITs take longer than %s: is a synchronous standby away? (pg_stat_replication, "+
			"synchronous_standby_names) Events are stored again when it is back", n, w.attemptTimeout)
	}
	return nil
}
