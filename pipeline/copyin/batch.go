package copyin

import (
	"cmp"
	"encoding/binary"
	"slices"
	"sync"
	"time"

	"sluice.example/sluice/internal/pgcopy"
	"sluice.example/sluice/pipeline"
)

// rowState is what is known of a row. Only fresh rows are sent. The other two are final: they depend on what other
// transactions have committed, or on the row itself, and both outlast a rollback of ours.
type rowState uint8

const (
	fresh rowState = iota
	duplicate
	poison
)

// batch is the working set of one Write.
type batch struct {
	caller []pipeline.Event // as handed over
	// events are the caller's without repeats inside the batch, in the caller's order: the first of a key wins. It is
	// the caller's own slice where there are no repeats.
	events []pipeline.Event
	// winner maps the caller's index to one in events; nil where they are the same.
	winner []int32
	// order lists indexes into events by (UTC day, tenant, event id). All writers insert in this order: two overlapping
	// batches in different orders deadlock, each waiting for a key of the other.
	order []int32
	// timeless are the positions, ascending, of events whose time is unknown.
	timeless []int32
	// suspects are the positions, ascending, of keys that this process wrote before, as recent believes.
	suspects []int32
	days     []int32 // distinct UTC days, ascending

	// By position in order.
	state   []rowState
	encoded *[]byte
	offsets []int // row p is encoded[offsets[p]:offsets[p+1]]

	rejections map[int32]rejection // by position
	duplicates int
	missed     bool // a key that was not a suspect is stored
	shared     bool // encoded may still be read by somebody
}

// rejection is why PostgreSQL would not store a row.
type rejection struct {
	sqlstate, field, reason string
}

type sortKey struct {
	day, tenant int32
	hi, lo      uint64
	micros      int64
	index       int32
}

// compareKeys ends at the first difference. cmp.Or over all six comparisons takes twice as long, and sorting was half
// of what newBatch costs.
func compareKeys(a, b sortKey) int {
	switch {
	case a.day != b.day:
		return cmp.Compare(a.day, b.day)
	case a.tenant != b.tenant:
		return cmp.Compare(a.tenant, b.tenant)
	case a.hi != b.hi:
		return cmp.Compare(a.hi, b.hi)
	case a.lo != b.lo:
		return cmp.Compare(a.lo, b.lo)
	case a.micros != b.micros:
		return cmp.Compare(a.micros, b.micros)
	}
	return cmp.Compare(a.index, b.index)
}

// halves are a UUID as two numbers that compare as it does.
func halves(u pipeline.UUID) (hi, lo uint64) {
	return binary.BigEndian.Uint64(u[:8]), binary.BigEndian.Uint64(u[8:])
}

const dayMicros = int64(24 * time.Hour / time.Microsecond)

func dayOf(micros int64) int32 {
	day := micros / dayMicros
	if micros%dayMicros < 0 {
		day--
	}
	return int32(day)
}

// newBatch sorts, finds the repeats inside the batch and encodes. Call release when done.
func newBatch(caller []pipeline.Event) *batch {
	b := &batch{caller: caller, events: caller}
	keys := make([]sortKey, len(caller))
	timeless := false
	bytes := 0
	for i := range caller {
		e := &caller[i]
		bytes += e.Size()
		micros := e.OccurredAt.UnixMicro()
		hi, lo := halves(e.ID)
		keys[i] = sortKey{day: dayOf(micros), tenant: e.Tenant, hi: hi, lo: lo, micros: micros, index: int32(i)}
		timeless = timeless || e.TimeUnknown
	}
	slices.SortFunc(keys, compareKeys)
	keys = b.collapse(keys, timeless)

	b.order = make([]int32, len(keys))
	b.state = make([]rowState, len(keys))
	b.offsets = make([]int, len(keys)+1)
	b.encoded = encodePool.Get().(*[]byte)
	// An encoded row is smaller than Event.Size, so that the buffer never grows; the pool loses it at every other
	// collection of garbage.
	buf := slices.Grow((*b.encoded)[:0], bytes)
	for p, k := range keys {
		b.order[p] = k.index
		e := &b.events[k.index]
		if len(b.days) == 0 || b.days[len(b.days)-1] != k.day {
			b.days = append(b.days, k.day)
		}
		if e.TimeUnknown {
			b.timeless = append(b.timeless, int32(p))
		}
		buf = appendRow(buf, e)
		b.offsets[p+1] = len(buf)
	}
	*b.encoded = buf
	return b
}

// collapse drops the repeats from keys and turns their index into one of b.events. Equal keys are neighbours after the
// sort, the first of them in front. An event without a time repeats any earlier one with its id.
func (b *batch) collapse(keys []sortKey, timeless bool) []sortKey {
	first := make(map[int32]int32) // caller's index of a repeat -> that of its winner
	for p := 1; p < len(keys); p++ {
		a, k := &keys[p-1], &keys[p]
		if a.day == k.day && a.tenant == k.tenant && a.hi == k.hi && a.lo == k.lo && a.micros == k.micros {
			w, ok := first[a.index]
			if !ok {
				w = a.index
			}
			first[k.index] = w
		}
	}
	if timeless {
		type id struct {
			tenant int32
			id     pipeline.UUID
		}
		seen := make(map[id]int32)
		for i := range b.caller {
			e := &b.caller[i]
			if _, repeat := first[int32(i)]; repeat {
				continue
			}
			k := id{e.Tenant, e.ID}
			w, ok := seen[k]
			switch {
			case !ok:
				seen[k] = int32(i)
			case e.TimeUnknown:
				first[int32(i)] = w
			}
		}
	}
	if len(first) == 0 {
		return keys
	}
	b.events = make([]pipeline.Event, 0, len(b.caller)-len(first))
	b.winner = make([]int32, len(b.caller))
	for i := range b.caller {
		if w, repeat := first[int32(i)]; repeat {
			b.winner[i] = b.winner[w] // w comes before i
			continue
		}
		b.winner[i] = int32(len(b.events))
		b.events = append(b.events, b.caller[i])
	}
	kept := keys[:0]
	for _, k := range keys {
		if _, repeat := first[k.index]; !repeat {
			k.index = b.winner[k.index]
			kept = append(kept, k)
		}
	}
	return kept
}

// encodePool reuses the encoded batches. A buffer above maxPooled is left to the garbage collector, so that one huge
// batch does not occupy memory from then on.
var encodePool = sync.Pool{New: func() any { return new([]byte) }}

const maxPooled = 16 << 20

func (b *batch) release() {
	if !b.shared && cap(*b.encoded) <= maxPooled {
		encodePool.Put(b.encoded)
	}
	b.encoded = nil
}

// rows returns the COPY stream of the given positions, which ascend.
func (b *batch) rows(positions []int32) *rowReader {
	r := &rowReader{parts: [][]byte{[]byte(pgcopy.Header)}}
	for i := 0; i < len(positions); {
		j := i + 1
		for j < len(positions) && positions[j] == positions[j-1]+1 {
			j++
		}
		r.parts = append(r.parts, (*b.encoded)[b.offsets[positions[i]]:b.offsets[positions[j-1]+1]])
		i = j
	}
	r.parts = append(r.parts, []byte(pgcopy.Trailer))
	return r
}

// remaining lists the positions that are still to be stored.
func (b *batch) remaining() []int32 {
	positions := make([]int32, 0, len(b.order))
	for p, s := range b.state {
		if s == fresh {
			positions = append(positions, int32(p))
		}
	}
	return positions
}

// remainingOf returns the positions among the given that are still to be stored.
func (b *batch) remainingOf(positions []int32) (of []int32) {
	for _, p := range positions {
		if b.state[p] == fresh {
			of = append(of, p)
		}
	}
	return of
}

func (b *batch) event(position int32) *pipeline.Event { return &b.events[b.order[position]] }

func (b *batch) reject(position int32, r rejection) {
	if b.rejections == nil {
		b.rejections = make(map[int32]rejection)
	}
	b.state[position] = poison
	b.rejections[position] = r
}

// stored reports for each of b.events whether this transaction stores it.
func (b *batch) stored() []bool {
	stored := make([]bool, len(b.events))
	for p, s := range b.state {
		stored[b.order[p]] = s == fresh
	}
	return stored
}

// verdicts returns the caller's, after COMMIT. A repeat inside the batch shares the rejection of the event that it
// repeats.
func (b *batch) verdicts() []pipeline.Verdict {
	own := make([]pipeline.Verdict, len(b.events))
	for p, s := range b.state {
		v := &own[b.order[p]]
		switch s {
		case fresh:
			v.Outcome = pipeline.Stored
		case duplicate:
			v.Outcome = pipeline.Duplicate
		case poison:
			r := b.rejections[int32(p)]
			*v = pipeline.Verdict{Outcome: pipeline.Rejected, Field: r.field, Reason: r.reason}
		}
	}
	if b.winner == nil {
		return own
	}
	all := make([]pipeline.Verdict, len(b.caller))
	given := make([]bool, len(own))
	for i, w := range b.winner {
		all[i] = own[w]
		if given[w] && own[w].Outcome == pipeline.Stored {
			all[i].Outcome = pipeline.Duplicate
		}
		given[w] = true
	}
	return all
}
