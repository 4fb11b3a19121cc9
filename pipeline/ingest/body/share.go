package body

import (
	"sync/atomic"
)

// unknownBytes bounds a body, before and after decompression, until a write key is found in it. A guess: batches of
// Segment's libraries, which may write the key last, have at most 500 KB.
const unknownBytes = 1 << 20

// Share is the part of the memory for bodies that one tenant may hold, or all those together whose tenant is not known
// yet.
type Share struct {
	inUse atomic.Int64
	most  *atomic.Int64
}

// Hold is memory that one body or stream is counted for, in the whole and in its share. It belongs to one goroutine.
type Hold struct {
	share *Share
	n     int
}

// Unknown is the share of the bodies whose tenant is not known yet: a tenth.
func (r *Reader) Unknown() *Share { return &r.unknown }

// Tenant is the share of a tenant: half, or everything where it is the only one.
func (r *Reader) Tenant(id int32) *Share {
	if s, ok := r.tenants.Load(id); ok {
		return s.(*Share)
	}
	s, _ := r.tenants.LoadOrStore(id, &Share{most: &r.tenantMost})
	return s.(*Share)
}

// Several sets whether there is more than one tenant. At the beginning there is not.
func (r *Reader) Several(several bool) {
	most := int64(r.cfg.MaxReadingBytes)
	if several { // but room for one body
		most = max(most/2, int64(r.cfg.MaxBodyBytes+r.cfg.MaxDecodedBytes))
	}
	r.tenantMost.Store(most)
}

// NewHold returns a hold of nothing yet, of a share.
func NewHold(of *Share) Hold { return Hold{share: of} }

// InUse is the memory that is counted, in bytes.
func (r *Reader) InUse() int { return int(r.inUse.Load()) }

// Reserve counts n bytes more, or returns false where the bound or the share does not allow them.
func (r *Reader) Reserve(h *Hold, n int) bool {
	if r.inUse.Add(int64(n)) > int64(r.cfg.MaxReadingBytes) {
		r.inUse.Add(int64(-n))
		return false
	}
	if h.share.inUse.Add(int64(n)) > h.share.most.Load() {
		h.share.inUse.Add(int64(-n))
		r.inUse.Add(int64(-n))
		return false
	}
	h.n += n
	r.metrics.Reading.Set(float64(r.inUse.Load()))
	return true
}

// Return counts n bytes less.
func (r *Reader) Return(h *Hold, n int) {
	if n == 0 {
		return
	}
	h.n -= n
	h.share.inUse.Add(int64(-n))
	r.metrics.Reading.Set(float64(r.inUse.Add(int64(-n))))
	r.arrivals.nudge()
}

// ReturnAll ends a hold.
func (r *Reader) ReturnAll(h *Hold) { r.Return(h, h.n) }

// adopt moves a body from the share of those that are not known to a tenant's.
func (b *Body) adopt(to *Share) bool {
	n := int64(b.hold.n)
	if to.inUse.Add(n) > to.most.Load() {
		to.inUse.Add(-n)
		return false
	}
	b.hold.share.inUse.Add(-n)
	b.hold.share, b.find = to, nil
	b.of.Store(to)
	return true
}

// room reserves memory like Reserve. Where there is none, a body that does not arrive has to return its own. One body
// alone is never refused for what it needs for a moment.
func (r *Reader) room(b *Body, n int) bool {
	for range 4 {
		if r.Reserve(&b.hold, n) || r.alone(b, n) {
			return true
		}
		var of *Share
		if s := b.hold.share; s.inUse.Load()+int64(n) > s.most.Load() {
			of = s
		}
		if !r.arrivals.endSlowest(of) {
			return false
		}
		r.arrivals.waitNudge()
	}
	return r.Reserve(&b.hold, n)
}

// alone reserves memory beyond the bound for a body that is the only one.
func (r *Reader) alone(b *Body, n int) bool {
	h := &b.hold
	if h.n == 0 || b.find != nil || !r.inUse.CompareAndSwap(int64(h.n), int64(h.n+n)) {
		return false
	}
	h.share.inUse.Add(int64(n))
	h.n += n
	return true
}
