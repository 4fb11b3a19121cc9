package deliver

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/pipeline"
)

// lane is one destination at work: the leases held for it, in the order in which they are sent, and how many of its
// senders run. Senders are started when there is something to send and end when there is nothing.
type lane struct {
	d    *Destination
	sink sink

	attempts                 map[pipeline.DeliveryStatus]prometheus.Counter
	seconds                  prometheus.Observer
	heldGauge, inFlightGauge prometheus.Gauge

	mu      sync.Mutex
	waiting []pipeline.Lease
	senders int
	held    int  // waiting, being sent, or sent and not recorded
	more    bool // the last claim filled its room: there is probably more
	dirty   bool // woken since the last claim
}

func newLane(d *Destination, s sink, m *Metrics) *lane {
	l := &lane{d: d, sink: s, seconds: m.seconds.WithLabelValues(d.Name), heldGauge: m.held.WithLabelValues(d.Name),
		inFlightGauge: m.inFlight.WithLabelValues(d.Name), attempts: map[pipeline.DeliveryStatus]prometheus.Counter{}}
	for _, s := range []pipeline.DeliveryStatus{pipeline.Sent, pipeline.Failed, pipeline.Dead, pipeline.Released} {
		l.attempts[s] = m.attempts.WithLabelValues(d.Name, string(s))
	}
	return l
}

// wake says that something may have become due.
func (l *lane) wake() {
	l.mu.Lock()
	l.dirty = true
	l.mu.Unlock()
}

// room is how many more leases the lane wants now. Where the last claim has shown a backlog, it waits until half of its
// room is free, whatever wakes it: few claims with big batches. Otherwise it asks once for each wake-up.
func (l *lane) room() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	capacity := l.d.concurrency * l.d.prefetch
	free := capacity - l.held
	if !l.more && !l.dirty || l.more && free < (capacity+1)/2 {
		return 0
	}
	return free
}

// add takes leases that were claimed with the given room, and starts senders for them with start.
func (l *lane) add(leases []pipeline.Lease, room int, start func(*lane)) {
	l.mu.Lock()
	l.more, l.dirty = len(leases) >= room, false
	l.held += len(leases)
	l.waiting = append(l.waiting, leases...)
	n := min(len(l.waiting), l.d.concurrency-l.senders)
	l.senders += n
	l.heldGauge.Set(float64(l.held))
	l.inFlightGauge.Set(float64(l.senders))
	l.mu.Unlock()
	for range n {
		start(l)
	}
}

// next gives a sender its next lease; without one, the sender has to end.
func (l *lane) next() (pipeline.Lease, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) == 0 {
		l.waiting = nil
		l.senders--
		l.inFlightGauge.Set(float64(l.senders))
		return pipeline.Lease{}, false
	}
	lease := l.waiting[0]
	l.waiting[0] = pipeline.Lease{} // its payload is the sender's now
	l.waiting = l.waiting[1:]
	return lease, true
}

// empty takes every waiting lease away.
func (l *lane) empty() []pipeline.Lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	waiting := l.waiting
	l.waiting = nil
	return waiting
}

// recorded says that n leases are done with. It reports whether this made the lane ask for more.
func (l *lane) recorded(n int) bool {
	l.mu.Lock()
	l.held -= n
	l.heldGauge.Set(float64(l.held))
	more := l.more
	l.mu.Unlock()
	return more && l.room() > 0
}
