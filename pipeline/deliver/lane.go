package deliver

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"sluice.example/sluice/internal/wait"
	"sluice.example/sluice/pipeline"
)

// lane is one destination at work: the leases held for it, in the order in which they are sent, and how many of its
// senders run. Senders are started when there is something to send and end when there is nothing.
type lane struct {
	d       *Destination
	sink    sink
	breaker breaker

	openings                 prometheus.Counter
	attempts                 map[pipeline.DeliveryStatus]prometheus.Counter
	seconds, lag             prometheus.Observer
	heldGauge, inFlightGauge prometheus.Gauge
	openGauge, pausedGauge   prometheus.Gauge
	bytesGauge               prometheus.Gauge

	limiter *rate.Limiter // nil: no limit
	start   func(*lane)   // starts a sender
	freed   chan struct{} // wakes the claimer
	place   int           // in the file's order
	mean    int           // what a message of the last claim weighs, in bytes; the claimer's alone

	mu      sync.Mutex
	reopen  *time.Timer // runs while the breaker is open
	paused  bool        // nothing is claimed
	stopped bool        // nothing is sent any more but what is under way
	waiting []pipeline.Lease
	sending map[*term]struct{} // what senders have
	senders int
	held    int  // waiting, being sent, or sent and not recorded
	more    bool // the last claim filled its room: there is probably more
	dirty   bool // woken since the last claim began
	asked   bool // the claimer was woken since the last claim, because room became free
}

func newLane(d *Destination, s sink, m *Metrics) *lane {
	l := &lane{
		d:             d,
		sink:          s,
		breaker:       breaker{cfg: d.breaker},
		sending:       map[*term]struct{}{},
		openings:      m.openings.WithLabelValues(d.Name),
		attempts:      map[pipeline.DeliveryStatus]prometheus.Counter{},
		seconds:       m.seconds.WithLabelValues(d.Name),
		lag:           m.lag.WithLabelValues(d.Name),
		heldGauge:     m.held.WithLabelValues(d.Name),
		inFlightGauge: m.inFlight.WithLabelValues(d.Name),
		openGauge:     m.open.WithLabelValues(d.Name),
		bytesGauge:    m.heldBytes.WithLabelValues(d.Name),
		pausedGauge:   m.paused.WithLabelValues(d.Name),
		paused:        d.paused,
	}
	m.concurrency.WithLabelValues(d.Name).Set(float64(d.concurrency))
	if d.paused {
		l.pausedGauge.Set(1)
	}
	if d.rate > 0 {
		l.limiter = rate.NewLimiter(rate.Limit(d.rate), d.burst)
	}
	for _, s := range []pipeline.DeliveryStatus{pipeline.Sent, pipeline.Failed, pipeline.Dead, pipeline.Released} {
		l.attempts[s] = m.attempts.WithLabelValues(d.Name, string(s))
	}
	return l
}

// wake notes that something may have become due.
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
	free := l.freeLocked()
	if l.paused || !l.more && !l.dirty || l.more && free < (l.capacity()+1)/2 {
		return 0
	}
	return l.breaker.room(time.Now(), free, l.held)
}

// claiming notes that a claim for the lane begins. What wakes it from now on asks for another one: the claim may have
// looked before.
func (l *lane) claiming() {
	l.mu.Lock()
	l.dirty, l.asked = false, false
	l.mu.Unlock()
}

// fitting is how many of n messages a claim may take, where the lane holds held bytes, has room for so many more, and
// may hold full bytes in all. Where bytes are scarcer than messages, it waits until half of them are free.
func (l *lane) fitting(n, bytes, full, held int) int {
	if l.mean == 0 || bytes/l.mean >= n {
		return min(n, bytes)
	}
	switch {
	case held == 0:
		return max(1, bytes/l.mean)
	case held > full/2:
		return 0
	}
	return bytes / l.mean
}

// capacity is how many messages may be held at this time.
func (l *lane) capacity() int { return l.breaker.capacity(l.d.capacity()) }

// freeLocked is the room for messages that are to be sent. Those that were sent and not recorded yet have some room of
// their own, so that recording them in bulk holds nobody up; but only some: the database may be away.
func (l *lane) freeLocked() int {
	capacity := l.capacity()
	return min(capacity-len(l.waiting)-l.senders, 4*capacity-l.held)
}

// add takes leases that were claimed with the given room, and keeps the slice; it starts senders for them. unread more
// were claimed, and are going back.
func (l *lane) add(leases []pipeline.Lease, unread, room int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.more = unread > 0 || len(leases) >= room
	l.held += len(leases) + unread
	if len(l.waiting) == 0 {
		l.waiting = leases
	} else {
		l.waiting = append(l.waiting, leases...)
	}
	l.heldGauge.Set(float64(l.held))
	l.startLocked()
}

// startLocked starts as many senders as there are messages for, and as the breaker allows.
func (l *lane) startLocked() {
	n := min(len(l.waiting), l.breaker.senders(time.Now(), l.d.concurrency)-l.senders)
	for range n {
		l.senders++
		l.start(l)
	}
	l.inFlightGauge.Set(float64(l.senders))
}

// grow starts a sender where one more may run than do.
func (l *lane) grow() {
	if !l.breaker.busy.Load() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.stopped {
		l.startLocked()
	}
}

// reopenIn goes on after the breaker was opened for a while.
func (l *lane) reopenIn(pause time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.reopen != nil {
		l.reopen.Stop()
	}
	if l.stopped {
		return
	}
	l.reopen = time.AfterFunc(pause, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.stopped {
			return
		}
		l.dirty = true
		l.startLocked()
		wait.Nudge(l.freed)
	})
}

// surplus takes away the waiting leases that are more than may be held at this time, the newest ones.
func (l *lane) surplus() []pipeline.Lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	most := min(l.capacity(), len(l.waiting))
	taken := l.waiting[most:]
	l.waiting = l.waiting[:most:most]
	return taken
}

// wantsLocked reports, once for each claim, that the room which a claim waits for has become free.
func (l *lane) wantsLocked() bool {
	if !l.more || l.asked || l.freeLocked() < (l.capacity()+1)/2 {
		return false
	}
	l.asked = true
	return true
}

// next returns a sender's next lease, and notes it in the sender's term instead of the last one; without one, the
// sender has to end. claim reports that the claimer should be woken.
func (l *lane) next(t *term) (lease pipeline.Lease, ok, claim bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	few := l.breaker.busy.Load() && l.senders > l.breaker.senders(time.Now(), l.d.concurrency)
	if len(l.waiting) == 0 || few {
		if len(l.waiting) == 0 {
			l.waiting = nil
		}
		delete(l.sending, t)
		l.senders--
		l.inFlightGauge.Set(float64(l.senders))
		return pipeline.Lease{}, false, l.wantsLocked()
	}
	lease = l.waiting[0]
	l.waiting[0] = pipeline.Lease{} // its payload is the sender's now
	l.waiting = l.waiting[1:]
	if t.id == 0 {
		l.sending[t] = struct{}{}
	}
	*t = term{lease.ID, lease.Token, lease.Until}
	return lease, true, l.wantsLocked()
}

// ending lists the leases that end before t: only their ids and tokens.
func (l *lane) ending(t time.Time) (held []pipeline.Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	add := func(id int64, token pipeline.UUID) {
		held = append(held, pipeline.Lease{Message: pipeline.Message{ID: id}, Token: token})
	}
	for s := range l.sending {
		if s.until.Before(t) {
			add(s.id, s.token)
		}
	}
	for i := range l.waiting {
		if l.waiting[i].Until.Before(t) {
			add(l.waiting[i].ID, l.waiting[i].Token)
		}
	}
	return held
}

// extended notes the new ends of the leases that were asked for. A waiting message whose lease was not extended
// belongs to another worker by now; it is taken away, and given back.
func (l *lane) extended(asked []pipeline.Lease, ends map[int64]time.Time) (lost []pipeline.Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	tokens := make(map[int64]pipeline.UUID, len(asked))
	for _, a := range asked {
		tokens[a.ID] = a.Token
	}
	for s := range l.sending {
		if end, ok := ends[s.id]; ok && tokens[s.id] == s.token {
			s.until = end
		}
	}
	kept := l.waiting[:0]
	for _, w := range l.waiting {
		if tokens[w.ID] == w.Token {
			end, ok := ends[w.ID]
			if !ok {
				lost = append(lost, w)
				continue
			}
			w.Until = end
		}
		kept = append(kept, w)
	}
	clear(l.waiting[len(kept):])
	l.waiting = kept
	return lost
}

// term is what has to be known to extend a lease. A sender has one; it holds the last lease until the next one comes,
// since extending what was recorded already changes nothing.
type term struct {
	id    int64
	token pipeline.UUID
	until time.Time
}

// empty takes every waiting lease away, for good.
func (l *lane) empty() []pipeline.Lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = true
	if l.reopen != nil {
		l.reopen.Stop()
	}
	waiting := l.waiting
	l.waiting = nil
	return waiting
}

// recorded notes that n leases are done with, and whether that makes others due: those that waited for the end of one
// before them. It reports whether the claimer should be woken.
func (l *lane) recorded(n int, passed bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held -= n
	l.heldGauge.Set(float64(l.held))
	l.dirty = l.dirty || passed
	return l.wantsLocked() || passed
}
