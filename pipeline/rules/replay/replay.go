// Package replay decides about events in memory, by a clock that its caller moves: for the tests inside a rules file,
// and for trying rules on stored events.
//
// What the rules make of events is the code that ingest runs. What SQL remembers between batches is kept in maps here,
// to the same decisions; a test holds both against each other. Nothing is written, and no other clock is read.
package replay

import (
	"cmp"
	"container/heap"
	"slices"
	"time"

	"sluice.example/sluice/pipeline"
	"sluice.example/sluice/pipeline/rules"
)

// Run is one replay. It is for one goroutine.
type Run struct {
	set *rules.Set
	// start is when the rules came into force.
	start time.Time
	now   time.Time
	wakes wakes
	seq   int

	ledger   map[ledgerKey]time.Time
	subjects map[subjectKey]*subject
	quotas   rules.QuotaRows
	// telling are the rows of quotas whose digest waits.
	telling map[rules.QuotaKey]bool
	timers  map[rules.TimerKey]*timer
	rates   map[rateKey]*rate
	minutes map[rules.Minute]rules.Counts
	decided []*Decided
	// reviewed: rules that wait for their review decide as if they had it.
	reviewed bool
	failures []Failed
}

// Decided is one decision of a replay, and what became of it.
type Decided struct {
	Rule    string
	Tenant  int32
	At      time.Time
	Event   pipeline.UUID
	Subject string
	Key     string
	Payload []byte
	// Destinations are empty where no message was made.
	Destinations []string
	// Suppressed is why no message was made: duplicate, cooldown or cap.
	Suppressed string
	// SendAt is when the message was due. Skipped is why it was not sent then: cancelled, superseded or shadow.
	SendAt  time.Time
	Skipped string
}

// Failed is an event that a rule could not decide about.
type Failed struct {
	Rule  string
	At    time.Time
	Kind  string
	Event pipeline.UUID
	Err   error
}

type ledgerKey struct {
	tenant int32
	hash   pipeline.UUID
}

type subjectKey struct {
	tenant int32
	rule   *rules.Rule
	text   string
}

// subject is a row of rule_subjects.
type subject struct {
	recent     []time.Time
	suppressed int64
	since      time.Time
}

// New starts at the given time with nothing remembered.
func New(set *rules.Set, start time.Time) *Run {
	return &Run{
		set:      set,
		start:    start,
		now:      start,
		ledger:   map[ledgerKey]time.Time{},
		subjects: map[subjectKey]*subject{},
		quotas:   rules.QuotaRows{},
		telling:  map[rules.QuotaKey]bool{},
		timers:   map[rules.TimerKey]*timer{},
		rates:    map[rateKey]*rate{},
		minutes:  map[rules.Minute]rules.Counts{},
	}
}

// Feed moves the clock to at and stores events then, all of them new. It keeps them.
func (r *Run) Feed(events []pipeline.Event, at time.Time) {
	r.Advance(at)
	found := r.set.Decide(events)
	if found == nil {
		return
	}
	for _, m := range found.Marks {
		r.mark(m)
	}
	for _, c := range found.Counts {
		r.count(c)
	}
	r.record(found)
}

// Advance moves the clock and decides about what becomes due on the way.
func (r *Run) Advance(to time.Time) {
	for len(r.wakes) > 0 && !r.wakes[0].at.After(to) {
		w := heap.Pop(&r.wakes).(wake)
		r.now = w.at
		w.do()
	}
	r.now = to
}

// Decided is everything that was decided, oldest first.
func (r *Run) Decided() []Decided {
	out := make([]Decided, len(r.decided))
	for i, d := range r.decided {
		out[i] = *d
	}
	return out
}

// Failed is what rules could not decide about, oldest first.
func (r *Run) Failed() []Failed { return r.failures }

// record makes decisions out of matches, as package evaluate does in SQL.
func (r *Run) record(found *rules.Findings) {
	for _, f := range found.Failures {
		r.failures = append(r.failures, Failed{f.Rule.Name, r.now, f.Kind, f.Event, f.Err})
	}
	suppressed := make([]string, len(found.Matches))
	sent := make([][]rules.Part, len(found.Matches))
	for i := range found.Matches {
		m := &found.Matches[i]
		suppressed[i], sent[i] = r.suppress(m), []rules.Part{{To: m.Rule.SendTo, Delay: m.Delay}}
	}
	held := make([]bool, len(found.Matches))
	for _, i := range rules.ByPriority(found.Matches) {
		if m := &found.Matches[i]; suppressed[i] == "" {
			r.quotas.Want(m)
			sent[i], held[i] = r.quotas.Grant(m, r.now)
			r.tellOf(m)
		}
	}
	for i := range found.Matches {
		if m := &found.Matches[i]; suppressed[i] == "" {
			r.send(m, sent[i], held[i])
		} else {
			r.decide(m).Suppressed = suppressed[i]
		}
	}
}

func (r *Run) decide(m *rules.Match) *Decided {
	d := &Decided{Rule: m.Rule.Name, Tenant: m.Tenant, At: r.now, Event: m.Event, Subject: m.Subject, Key: m.Key,
		Payload: m.Payload}
	r.decided = append(r.decided, d)
	return d
}

// send makes the messages of a match, those that are due together as one decision.
func (r *Run) send(m *rules.Match, parts []rules.Part, held bool) {
	if held {
		r.decide(m).Suppressed = rules.OverLimit
	}
	left := len(parts) // those that were not skipped
	for _, part := range parts {
		d := r.decide(m)
		d.Destinations = part.To
		d.SendAt = r.now.Add(part.Delay)
		if m.Rule.Shadow && !(r.reviewed && m.Rule.AwaitsReview()) {
			d.Skipped = "shadow"
		} else if m.Recheck != nil {
			r.later(d.SendAt, func() {
				if d.Skipped = r.recheck(m.Tenant, m.Recheck); d.Skipped == "" {
					return
				}
				if left--; left == 0 && m.Recheck.Ledger != "" {
					delete(r.ledger, ledgerKey{m.Tenant, m.KeyHash})
				}
			})
		}
	}
}

// suppress returns the reason for which a match makes no message; otherwise it remembers the match.
func (r *Run) suppress(m *rules.Match) string {
	k := ledgerKey{m.Tenant, m.KeyHash}
	if until, ok := r.ledger[k]; !m.Once && ok && (until.IsZero() || until.After(r.now)) {
		return rules.Duplicate
	}
	l := m.Rule.Limits
	if !m.Once {
		r.ledger[k] = time.Time{}
		if l.DedupeFor > 0 {
			r.ledger[k] = r.now.Add(l.DedupeFor)
		}
	}
	if !m.Limited() {
		return ""
	}
	sk := subjectKey{m.Tenant, m.Rule, m.Subject}
	s := r.subjects[sk]
	if s == nil {
		s = &subject{}
		r.subjects[sk] = s
	}
	reason := s.heldBack(l, r.now)
	if reason == "" {
		s.recent = slices.Insert(s.recent, 0, r.now)
		s.recent = s.recent[:min(len(s.recent), max(1, l.CapMax))]
		return ""
	}
	if l.DigestAfter > 0 {
		if s.suppressed++; s.suppressed == 1 {
			s.since = r.now
			r.later(r.now.Add(l.DigestAfter), func() { r.digest(sk, s) })
		}
	}
	return reason
}

// heldBack is which limit a further message would exceed; empty for none.
func (s *subject) heldBack(l rules.Limits, now time.Time) string {
	used := 0
	for _, at := range s.recent {
		if at.After(now.Add(-l.CapPer)) {
			used++
		}
	}
	switch {
	case l.Cooldown > 0 && len(s.recent) > 0 && s.recent[0].After(now.Add(-l.Cooldown)):
		return rules.Cooldown
	case l.CapMax > 0 && used >= l.CapMax:
		return rules.Cap
	}
	return ""
}

func (r *Run) digest(k subjectKey, s *subject) {
	held := rules.Held{Tenant: k.tenant, State: k.rule.StateKey, Subject: k.text, Count: s.suppressed, Since: s.since}
	s.suppressed = 0
	r.record(r.set.Digest([]rules.Held{held}))
}

// tellOf waits for the digests of the limits that a match is under.
func (r *Run) tellOf(m *rules.Match) {
	for _, k := range r.quotas.Waiting(m) {
		if r.telling[k] {
			continue
		}
		r.telling[k] = true
		r.later(r.quotas[k].DigestAt, func() {
			delete(r.telling, k)
			r.record(r.set.LimitDigest([]rules.LimitHeld{r.quotas.Told(k)}))
		})
	}
}

func (r *Run) later(at time.Time, do func()) { r.laterAs(at, 0, do) }

// laterAs is later; of what is to do at one moment the lower rank comes first.
func (r *Run) laterAs(at time.Time, rank int, do func()) {
	r.seq++
	heap.Push(&r.wakes, wake{at, rank, r.seq, do})
}

// wake is something to do at a time.
type wake struct {
	at        time.Time
	rank, seq int
	do        func()
}

// wakes is a heap, soonest first.
type wakes []wake

func (w wakes) Len() int { return len(w) }
func (w wakes) Less(i, j int) bool {
	return cmp.Or(w[i].at.Compare(w[j].at), cmp.Compare(w[i].rank, w[j].rank), cmp.Compare(w[i].seq, w[j].seq)) < 0
}
func (w wakes) Swap(i, j int) { w[i], w[j] = w[j], w[i] }
func (w *wakes) Push(x any)   { *w = append(*w, x.(wake)) }
func (w *wakes) Pop() any {
	last := len(*w) - 1
	x := (*w)[last]
	*w = (*w)[:last]
	return x
}
