package claim

import "sluice.example/sluice/pipeline"

// budget decides whose payloads a claim reads. A statement can't know sizes before it has read and printed them, and
// the common claim should not pay for that twice: rows over the budget are leased, and given back unread.
type budget map[string]*share

// share is what a claim may read, and has read, for one destination.
type share struct {
	bytes, read int // bytes 0: any number
	least       end // the first message in the order of claims that was not read
	cut         bool
}

func newBudget(wants []pipeline.Want) budget {
	b := make(budget, len(wants))
	for _, w := range wants {
		b[w.Destination] = &share{bytes: w.Bytes}
	}
	return b
}

// take reports whether a payload of this size is read. The first one is, whatever its size.
func (s *share) take(size int) bool {
	if s.bytes > 0 && s.read > 0 && s.read+size > s.bytes {
		s.cut = true
		return false
	}
	s.read += size
	return true
}

// left notes a message that was not read.
func (s *share) left(e end) {
	if s.least.time.IsZero() || s.least.after(e) {
		s.least = e
	}
}
