package evaluate

import (
	"cmp"
	"container/heap"
	"io"
	"log/slog"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sluice.example/sluice/pipeline"
)

// Replay decides about events in memory, by a clock that the caller moves: for the tests inside a rules file, and for
// trying rules on stored events. Matching, keys and payloads are the code that ingest runs; what SQL remembers there is
// kept in maps here, to the same decisions. Not safe for concurrent use.
type Replay struct {
	engine *Engine
	now    time.Time
	wakes  wakes
	seq    int

	ledger   map[ledgerKey]time.Time
	subjects map[subjectKey]*subject
	timers   map[timerKey]*replayTimer
	rates    map[rateKey]*replayRate
	minutes  map[minuteKey]pipeline.Counts
	decided  []*Decided
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
	tenant      int32
	rule        *rule
	subjectText string
}

// subject is a row of rule_subjects.
type subject struct {
	recent     []time.Time
	suppressed int64
	since      time.Time
}

// replayTimer is a row of absence_timers with its history.
type replayTimer struct {
	timerKey
	rule                     *rule
	latest, cancel, activity time.Time
	done, fired              time.Time
	trigger                  *pipeline.Event
	history                  []*pipeline.Event
}

// NewReplay starts at the given time with nothing remembered.
func NewReplay(cfg Config, set *Set, start time.Time) *Replay {
	e := &Engine{cfg: cfg, metrics: NewMetrics(prometheus.NewRegistry()), log: slog.New(slog.NewTextHandler(io.Discard, nil)), onDecided: func(int) {}, tallies: map[string]*tally{}}
	e.set.Store(set)
	return &Replay{engine: e, now: start, ledger: map[ledgerKey]time.Time{}, subjects: map[subjectKey]*subject{}, timers: map[timerKey]*replayTimer{},
		rates: map[rateKey]*replayRate{}, minutes: map[minuteKey]pipeline.Counts{}}
}

// Feed moves the clock to at and stores events then, all of them new. It keeps them.
func (r *Replay) Feed(events []pipeline.Event, at time.Time) {
	r.Advance(at)
	p := r.engine.Decide(events)
	if p == nil {
		return
	}
	for _, m := range p.marks {
		r.mark(m)
	}
	for _, c := range p.counts {
		r.count(c)
	}
	r.decide(p)
}

// Advance moves the clock and decides about what becomes due on the way.
func (r *Replay) Advance(to time.Time) {
	for len(r.wakes) > 0 && !r.wakes[0].at.After(to) {
		w := heap.Pop(&r.wakes).(wake)
		r.now = w.at
		w.do()
	}
	r.now = to
}

// Decided gives everything that was decided, oldest first.
func (r *Replay) Decided() []Decided {
	out := make([]Decided, len(r.decided))
	for i, d := range r.decided {
		out[i] = *d
	}
	return out
}

// Failed gives what rules could not decide about.
func (r *Replay) Failed() []Failed { return r.failures }

// decide is what work.decide does.
func (r *Replay) decide(p *Plan) {
	for _, f := range p.failures {
		r.failures = append(r.failures, Failed{f.rule.name, r.now, f.kind, f.event, f.err})
	}
	for _, c := range p.candidates {
		d := &Decided{Rule: c.rule.name, Tenant: c.tenant, At: r.now, Event: c.event, Subject: c.subject, Key: c.key, Payload: c.payload}
		r.decided = append(r.decided, d)
		if d.Suppressed = r.suppress(c); d.Suppressed != "" {
			continue
		}
		d.Destinations, d.SendAt = c.rule.sendTo, r.now.Add(c.delay)
		if c.rule.shadow {
			d.Skipped = "shadow"
		} else if c.recheck != nil {
			r.later(d.SendAt, func() {
				d.Skipped = r.recheck(c.rule, timerKey{c.tenant, c.rule.absence.Timer, c.timerKey}, c.anchor, c.latest)
			})
		}
	}
}

// suppress gives the reason for which a candidate makes no message, and remembers it otherwise.
func (r *Replay) suppress(c candidate) string {
	k := ledgerKey{c.tenant, c.keyHash}
	if until, ok := r.ledger[k]; !c.once && ok && (until.IsZero() || until.After(r.now)) {
		return reasonDuplicate
	}
	l := c.rule.limits
	if !c.once {
		r.ledger[k] = time.Time{}
	}
	if !c.once && l.dedupeFor > 0 {
		r.ledger[k] = r.now.Add(l.dedupeFor)
	}
	if !l.any() || c.unlimited {
		return ""
	}
	sk := subjectKey{c.tenant, c.rule, c.subject}
	s := r.subjects[sk]
	if s == nil {
		s = &subject{}
		r.subjects[sk] = s
	}
	reason := ""
	used := 0
	for _, at := range s.recent {
		if at.After(r.now.Add(-l.capPer)) {
			used++
		}
	}
	switch {
	case l.cooldown > 0 && len(s.recent) > 0 && s.recent[0].After(r.now.Add(-l.cooldown)):
		reason = reasonCooldown
	case l.capMax > 0 && used >= l.capMax:
		reason = reasonCap
	}
	if reason == "" {
		s.recent = slices.Insert(s.recent, 0, r.now)
		s.recent = s.recent[:min(len(s.recent), max(1, l.capMax))]
		return ""
	}
	if l.digestAfter > 0 {
		if s.suppressed++; s.suppressed == 1 {
			s.since = r.now
			r.later(r.now.Add(l.digestAfter), func() { r.digest(sk, s) })
		}
	}
	return reason
}

func (r *Replay) digest(k subjectKey, s *subject) {
	p := &Plan{recorder: recorder{engine: r.engine}}
	p.digest(k.rule, pipeline.Held{Tenant: k.tenant, Subject: k.subjectText, Count: s.suppressed, Since: s.since})
	s.suppressed = 0
	r.decide(p)
}

// mark is what timersSQL does.
func (r *Replay) mark(m mark) {
	k := timerKey{m.event.Tenant, m.rule.absence.Timer, m.key}
	t := r.timers[k]
	if t == nil {
		t = &replayTimer{timerKey: k, rule: m.rule}
		r.timers[k] = t
	}
	at := m.at()
	switch m.role {
	case triggers:
		if t.trigger == nil || at.After(t.latest) || at.Equal(t.latest) && slices.Compare(m.event.ID[:], t.trigger.ID[:]) > 0 {
			t.trigger, t.latest = m.event, at
		}
		if m.rule.absence.First {
			t.history = append(t.history, m.event)
		}
	case cancels:
		if at.After(t.cancel) {
			t.cancel = at
		}
	case goesOn:
		if at.After(t.activity) {
			t.activity = at
		}
	}
	if anchor, _, armed := t.armed(); armed {
		due := anchor.Add(m.rule.absence.Within)
		if due.Before(r.now) {
			due = r.now
		}
		r.later(due, func() { r.fire(t) })
	}
}

// armed says whether the timer waits, from when, and for which event.
func (t *replayTimer) armed() (anchor time.Time, trigger *pipeline.Event, ok bool) {
	if !t.rule.absence.First {
		anchor = t.latest
		if t.activity.After(anchor) {
			anchor = t.activity
		}
		return anchor, t.trigger, t.trigger != nil && t.latest.After(t.cancel) && t.latest.After(t.done)
	}
	for _, ev := range t.history {
		at := effective(ev)
		if at.After(t.cancel) && (trigger == nil || at.Before(anchor) || at.Equal(anchor) && slices.Compare(ev.ID[:], trigger.ID[:]) < 0) {
			anchor, trigger = at, ev
		}
	}
	return anchor, trigger, trigger != nil && (t.fired.IsZero() || t.cancel.After(t.fired))
}

func (r *Replay) fire(t *replayTimer) {
	a := t.rule.absence
	anchor, trigger, ok := t.armed()
	if !ok || anchor.Add(a.Within).After(r.now) {
		return // moved meanwhile; the move has its own wake
	}
	if !anchor.After(r.now.Add(-a.Lookback)) {
		t.done = t.latest
		return
	}
	t.done, t.fired = t.latest, anchor
	p := &Plan{recorder: recorder{engine: r.engine}}
	p.fire(t.rule, pipeline.Due{Tenant: t.tenant, Key: t.key, Anchor: anchor, Latest: t.latest, Trigger: *trigger})
	r.decide(p)
}

// recheck is what recheckSQL does.
func (r *Replay) recheck(of *rule, k timerKey, anchor, latest time.Time) string {
	t := r.timers[k]
	switch {
	case t == nil:
	case slices.Contains(of.absence.skip, skipCancelled) && !t.cancel.Before(anchor):
		return skipCancelled
	case slices.Contains(of.absence.skip, skipSuperseded) && t.latest.After(latest):
		return skipSuperseded
	}
	return ""
}

type rateKey struct {
	metric string
	tenant int32
}

// replayRate is a row of rate_states with its firings.
type replayRate struct {
	state   rateState
	firings [][2]time.Time
}

// count is what rollupSQL does. The first event of a tenant starts the windows.
func (r *Replay) count(c count) {
	k, i := c.place()
	sum := r.minutes[k]
	sum[i]++
	r.minutes[k] = sum
	rk := rateKey{k.metric, k.tenant}
	if r.rates[rk] == nil {
		r.rates[rk] = &replayRate{}
		r.window(c.rule, rk, r.now.Add(-c.rule.rate.Settle).Truncate(c.rule.rate.Every).Add(c.rule.rate.Every))
	}
}

// window judges the window that ends at end, once it has settled, and then the next.
func (r *Replay) window(of *rule, k rateKey, end time.Time) {
	a := of.rate
	r.later(end.Add(a.Settle), func() {
		rr := r.rates[k]
		periods := a.Periods(end)
		oldest := periods[len(periods)-1].Add(-a.Window)
		cur := r.sample(of, k, end, oldest)
		var before []pipeline.Sample
		for _, e := range periods {
			before = append(before, r.sample(of, k, e, oldest))
		}
		inhibited := slices.ContainsFunc(a.Inhibitors, func(m string) bool {
			other := r.rates[rateKey{m, k.tenant}]
			return other != nil && other.state.firing()
		})
		p := &Plan{recorder: recorder{engine: r.engine}}
		was := rr.state
		rr.state = p.judge(of, k.tenant, was, end, cur, before, inhibited)
		if rr.state.firing() && !was.firing() {
			rr.firings = append(rr.firings, [2]time.Time{end})
		} else if was.firing() && !rr.state.firing() {
			rr.firings[len(rr.firings)-1][1] = end
		}
		r.decide(p)
		r.window(of, k, end.Add(a.Every))
	})
}

// sample is what sampleSQL does.
func (r *Replay) sample(of *rule, k rateKey, end, oldest time.Time) (s pipeline.Sample) {
	start := end.Add(-of.rate.Window)
	for at := start; at.Before(end); at = at.Add(time.Minute) {
		if c, ok := r.minutes[minuteKey{k.metric, k.tenant, at}]; ok {
			s.N, s.X, s.Usable = s.N+float64(c[0]), s.X+float64(c[1]), true
		}
	}
	for _, f := range r.rates[k].firings {
		if !f[0].Before(oldest) && f[0].Before(end) && (f[1].IsZero() || f[1].After(start)) {
			s.Usable = false
		}
	}
	return s
}

func (r *Replay) later(at time.Time, do func()) {
	r.seq++
	heap.Push(&r.wakes, wake{at, r.seq, do})
}

// wake is something to do at a time.
type wake struct {
	at  time.Time
	seq int
	do  func()
}

// wakes is a heap, soonest first.
type wakes []wake

func (w wakes) Len() int { return len(w) }
func (w wakes) Less(i, j int) bool {
	return cmp.Or(w[i].at.Compare(w[j].at), cmp.Compare(w[i].seq, w[j].seq)) < 0
}
func (w wakes) Swap(i, j int) { w[i], w[j] = w[j], w[i] }
func (w *wakes) Push(x any)   { *w = append(*w, x.(wake)) }
func (w *wakes) Pop() any {
	last := len(*w) - 1
	x := (*w)[last]
	*w = (*w)[:last]
	return x
}
