package copyin

import (
	"sync"
	"time"
)

// outage is what the last transactions learned about the connection to the database.
type outage struct {
	mu          sync.Mutex
	since, last time.Time // of the failures since the last answer; zero without any
}

// note takes the outcome of a transaction. Whatever the database answers, it is there.
func (o *outage) note(err error, now time.Time) {
	away := err != nil && classify(err) == causeConnection
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case !away:
		o.since, o.last = time.Time{}, time.Time{}
	case o.since.IsZero():
		o.since, o.last = now, now
	default:
		o.last = now
	}
}

// Away returns when the first and the last transaction failed for lack of a connection, of those since the last one
// that the database answered. Both are zero where it answered the last.
func (w *Writer) Away() (first, last time.Time) {
	w.outage.mu.Lock()
	defer w.outage.mu.Unlock()
	return w.outage.since, w.outage.last
}
