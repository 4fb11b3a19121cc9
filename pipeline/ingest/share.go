package ingest

import (
	"bytes"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"sluice.example/sluice/internal/wait"
	"sluice.example/sluice/pipeline"
)

// share is what the bodies of one tenant may hold together of ingest.max-reading-bytes, or those whose tenant is not
// known yet.
type share struct {
	inUse atomic.Int64
	most  int64
}

func (s *share) reserve(n int) bool {
	if s == nil || s.inUse.Add(int64(n)) <= s.most {
		return true
	}
	s.inUse.Add(int64(-n))
	return false
}

func (s *share) unreserve(n int) {
	if s != nil {
		s.inUse.Add(int64(-n))
	}
}

const (
	// unknownBytes bounds a body, before and after decompression, until a write key is found in it. A guess: batches of
	// Segment's libraries, which write the key last, have at most 500 KB.
	unknownBytes = 1 << 20
	// slowAfter and slowRate say when a body that does not arrive gives its memory to another: it has had that long, and
	// came at fewer bytes a second. Guesses: a telephone with a poor connection sends 30 KB/s.
	slowAfter = 2 * time.Second
	slowRate  = 8 << 10
)

// shares are the parts of the memory for bodies.
type shares struct {
	unknown share
	tenants map[int32]*share // fixed; nil where there is only one, which may hold everything
}

// newShares gives a tenth to those that are not known, and no tenant more than half, but room for one body to each.
func newShares(cfg *Config, ids map[string]int32) *shares {
	one := int64(cfg.MaxBodyBytes + cfg.MaxDecodedBytes)
	s := &shares{}
	s.unknown.most = min(max(int64(cfg.MaxReadingBytes)/10, 4*unknownBytes), int64(cfg.MaxReadingBytes))
	if len(ids) > 1 {
		s.tenants = make(map[int32]*share, len(ids))
		for _, id := range ids {
			s.tenants[id] = &share{most: max(int64(cfg.MaxReadingBytes)/2, one)}
		}
	}
	return s
}

func (s *shares) of(who sender) *share {
	if who.later {
		return &s.unknown
	}
	return s.tenants[who.tenant]
}

// adopt moves the body from the share of those that are not known to a tenant's.
func (b *body) adopt(to *share) bool {
	if !to.reserve(b.reserved) {
		return false
	}
	b.share.unreserve(b.reserved)
	b.share, b.find = to, nil
	return true
}

// keyNames are the names under which bodies hold a write key.
var keyNames = [][]byte{[]byte(`"writeKey"`), []byte(`"api_key"`), []byte(`"token"`), []byte(`"$token"`)}

// findKey returns what looks like a write key in the first part of a body. It decides only how much more is read; whose
// the events are is found out when the body is decoded.
func findKey(text []byte) []byte {
	for _, name := range keyNames {
		_, rest, ok := bytes.Cut(text, name)
		if !ok {
			continue
		}
		rest, ok = bytes.CutPrefix(bytes.TrimLeft(rest, " \t\r\n"), []byte(":"))
		if !ok {
			continue
		}
		if rest, ok = bytes.CutPrefix(bytes.TrimLeft(rest, " \t\r\n"), []byte(`"`)); !ok {
			continue
		}
		if key, _, ok := bytes.Cut(rest, []byte(`"`)); ok && len(key) <= maxText {
			return key
		}
	}
	return nil
}

// arrivals are the bodies that did not come with their header, so that one that does not arrive can be ended in favour
// of others.
type arrivals struct {
	mu     sync.Mutex
	bodies map[*body]bool
	freed  chan struct{} // a nudge after memory was returned
}

// enter is called at the second read of a body.
func (a *arrivals) enter(b *body) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.bodies[b] = true
}

func (a *arrivals) leave(b *body) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.bodies, b)
}

// endSlowest ends the reading of the slowest body of a share, nil being any, and reports whether there was one that is
// too slow.
func (a *arrivals) endSlowest(of *share, now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	var slowest *body
	least := float64(slowRate)
	for b := range a.bodies {
		took := now.Sub(b.began)
		if of != nil && b.share != of || took < slowAfter {
			continue
		}
		if rate := float64(b.came.Load()) / took.Seconds(); rate < least {
			slowest, least = b, rate
		}
	}
	if slowest == nil {
		return false
	}
	delete(a.bodies, slowest)
	slowest.conn.SetReadDeadline(time.Unix(1, 0))
	return true
}

// room reserves memory like reserve. Where there is none, a body that does not arrive has to return its own. One body
// alone is never refused for what it needs for a moment.
func (r *reader) room(b *body, n int) bool {
	for range 4 {
		if r.reserve(b, n) || r.alone(b, n) {
			return true
		}
		var of *share
		if b.share != nil && b.share.inUse.Load()+int64(n) > b.share.most {
			of = b.share
		}
		if !r.arrivals.endSlowest(of, time.Now()) {
			return false
		}
		t := time.NewTimer(100 * time.Millisecond)
		select {
		case <-r.arrivals.freed:
		case <-t.C:
		}
		t.Stop()
	}
	return r.reserve(b, n)
}

// alone reserves memory beyond the bound for a body that is the only one.
func (r *reader) alone(b *body, n int) bool {
	if b.reserved == 0 || b.find != nil || !r.inUse.CompareAndSwap(int64(b.reserved), int64(b.reserved+n)) {
		return false
	}
	if b.share != nil {
		b.share.inUse.Add(int64(n))
	}
	b.reserved += n
	return true
}

// arriving notes that n bytes more of a body came.
func (b *body) arriving(r *reader, n int) {
	if b.came.Add(int64(n)); b.entered || b.conn == nil {
		return
	}
	b.entered, b.began = true, time.Now()
	r.arrivals.enter(b)
}

// arrived ends what arriving began.
func (r *reader) arrived(b *body) {
	if b.entered {
		r.arrivals.leave(b)
		b.entered = false
	}
}

// unreserve returns the memory of a body, and tells one that waits for some.
func (r *reader) unreserve(b *body) {
	r.metrics.reading.Set(float64(r.inUse.Add(int64(-b.reserved))))
	b.share.unreserve(b.reserved)
	b.reserved = 0
	wait.Nudge(r.arrivals.freed)
}

// giveBack returns a part of a body's memory.
func (r *reader) giveBack(b *body, n int) {
	r.metrics.reading.Set(float64(r.inUse.Add(int64(-n))))
	b.share.unreserve(n)
	b.reserved -= n
}

// reserve counts n bytes more for the body. It returns false where the bound or the share does not allow them.
func (r *reader) reserve(b *body, n int) bool {
	if r.inUse.Add(int64(n)) > int64(r.cfg.MaxReadingBytes) {
		r.inUse.Add(int64(-n))
		return false
	}
	if !b.share.reserve(n) {
		r.inUse.Add(int64(-n))
		return false
	}
	b.reserved += n
	r.metrics.reading.Set(float64(r.inUse.Load()))
	return true
}

// expect reserves what decoding a large body makes: a copy of its text, and each event twice.
func (r *reader) expect(b *body) bool {
	const small = 64 << 10
	if len(b.text) <= small {
		return true
	}
	events := min(bytes.Count(b.text, []byte("{")), r.cfg.MaxEvents)
	return r.room(b, len(b.text)+2*events*int(unsafe.Sizeof(pipeline.Event{})))
}
