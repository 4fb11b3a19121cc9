package rules

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"sluice.example/sluice/internal/jsontext"
	"sluice.example/sluice/pipeline"
	"sluice.example/sluice/pipeline/rules/expr"
)

// Findings is what a set makes of a batch of events, before it is known which of them are new, or of something that
// time brings. It is for one goroutine.
type Findings struct {
	// Matches are decisions before dedupe, cooldown and cap. Marks move timers, and Counts are what rate rules count.
	Matches  []Match
	Marks    []Mark
	Counts   []Count
	Failures []Failure
	// Passed are matches about events that are too old for their rule.
	Passed []Passed

	set    *Set
	events []pipeline.Event
	// stored: the events are looked at again, so that it is not now that they happen.
	stored bool
	// looked are the events that some rule listens to.
	looked []int
	vars   expr.Vars
}

// Match is a decision before dedupe, cooldown and cap.
type Match struct {
	Rule   *Rule
	Tenant int32
	// Batch is the event's place in its batch; not used where no batch led to the decision.
	Batch int
	// Event is what the decision is about, zero for none, and OccurredAt when it happened.
	Event      pipeline.UUID
	OccurredAt time.Time
	Subject    string
	Key        string
	// KeyHash is the key's name in the ledger.
	KeyHash pipeline.UUID
	Payload []byte
	// Once: nothing but this event, or this state of a subject, can lead to the decision, so it needs no ledger.
	Once bool
	// Unlimited: cooldown and cap do not apply, since they made it.
	Unlimited bool
	// Delay is how long after the decision the message is due.
	Delay time.Duration
	// Under are the limits over several rules that it has to be within.
	Under []Under
	// Recheck is what to check again before the message is sent; nil for nothing.
	Recheck *Recheck
	// Trace is that of the event because of which an event rule decides; nil for none. What time decides has none.
	Trace *pipeline.Trace
}

// Passed is a match about an event that is older than its rule's MaxAge, so that nothing comes of it.
type Passed struct {
	Rule   *Rule
	Tenant int32
	Batch  int
}

// Limited reports whether cooldown or cap have a say.
func (m *Match) Limited() bool { return !m.Unlimited && m.Rule.Limits.Any() }

// The reasons for which a match makes no message.
const (
	Duplicate = "duplicate"
	Cooldown  = "cooldown"
	Cap       = "cap"
	OverLimit = "limit"   // a limit over several rules
	TooOld    = "too-old" // the event happened longer before it arrived than the rule's max_age
)

// Failure is a rule that could not decide about an event.
type Failure struct {
	Rule  *Rule
	Batch int
	Event pipeline.UUID
	Kind  string
	Err   error
}

// Missing reports whether the event lacks a property that the rule uses.
func (f *Failure) Missing() bool { return f.Kind == FailedExpression && expr.IsMissing(f.Err) }

// The kinds of failures.
const (
	FailedExpression = "expression"    // an expression has no value, for example since a property is missing
	FailedKey        = "no-key"        // subject or dedupe_key is null or empty
	FailedSize       = "too-large"     // a key or the payload is too long
	FailedCost       = "too-expensive" // evaluating would cost so much that other events would have to wait
	FailedPanic      = "panic"         // our own bug
	FailedRefused    = "refused"       // what the rule made could not be recorded
)

// FailureKinds are all kinds of failures.
var FailureKinds = []string{FailedExpression, FailedKey, FailedSize, FailedCost, FailedPanic, FailedRefused}

// Suppressions are the reasons for which matches of the rule may make no message.
func (r *Rule) Suppressions() (reasons []string) {
	if r.dedupeKey != nil || r.Absence != nil {
		reasons = append(reasons, Duplicate)
	}
	if r.Limits.Cooldown > 0 {
		reasons = append(reasons, Cooldown)
	}
	if r.Limits.CapMax > 0 {
		reasons = append(reasons, Cap)
	}
	if len(r.quotas) > 0 {
		reasons = append(reasons, OverLimit)
	}
	if r.MaxAge > 0 {
		reasons = append(reasons, TooOld)
	}
	return reasons
}

func failureKind(err error) string {
	switch {
	case errors.Is(err, expr.ErrNoKey):
		return FailedKey
	case errors.Is(err, expr.ErrLongKey), errors.Is(err, expr.ErrTooLarge):
		return FailedSize
	case errors.Is(err, expr.ErrTooExpensive):
		return FailedCost
	}
	return FailedExpression
}

func (f *Findings) fail(r *Rule, i int, kind string, err error) {
	f.Failures = append(f.Failures, Failure{r, i, f.events[i].ID, kind, err})
}

// recovered makes a panic a failure of one rule on one event. It has to be deferred itself.
func (f *Findings) recovered(r *Rule, i int) {
	if cause := recover(); cause != nil {
		f.fail(r, i, FailedPanic, fmt.Errorf("%v", cause))
	}
}

// Decide evaluates the rules on a batch. The findings borrow the slice. It costs an event that no rule listens to one
// look into a map. Nil: no rule listens to any of the events.
func (s *Set) Decide(events []pipeline.Event) *Findings {
	var f *Findings
	for i := range events {
		lists := s.listeners(&events[i])
		if len(lists[0])+len(lists[1]) == 0 {
			continue
		}
		if f == nil {
			f = &Findings{set: s, events: events, looked: make([]int, 0, len(events)-i)}
		}
		f.look(i, lists)
	}
	return f
}

// Revisit lets one rule look at stored events again.
func (s *Set) Revisit(r *Rule, events []pipeline.Event) *Findings {
	f := &Findings{set: s, events: events, stored: true}
	for i := range events {
		if r.Tenants != nil && !slices.Contains(r.Tenants, events[i].Tenant) {
			continue
		}
		for _, t := range r.takes {
			if slices.Contains(t.on, events[i].Name) || slices.Contains(t.on, "*") {
				f.look(i, [2][]listener{{t.listener}})
			}
		}
	}
	return f
}

// look evaluates one event by those who listen to it.
func (f *Findings) look(i int, lists [2][]listener) {
	f.looked = append(f.looked, i)
	f.vars.SetEvent(&f.events[i])
	for _, listeners := range lists {
		for _, l := range listeners {
			f.one(i, l)
		}
	}
}

// one evaluates one rule on one event, whatever happens.
func (f *Findings) one(i int, l listener) {
	defer f.recovered(l.rule, i)
	if l.match != nil {
		holds, err := l.match.Holds(&f.vars)
		if err != nil {
			f.fail(l.rule, i, failureKind(err), err)
		}
		if !holds {
			return
		}
	}
	switch l.role {
	case Decides:
		f.match(i, l.rule)
	case Numerator, Denominator:
		f.Counts = append(f.Counts, Count{l.rule, i, &f.events[i], l.role})
	default:
		f.mark(i, l)
	}
}

func (f *Findings) match(i int, r *Rule) {
	ev := &f.events[i]
	if r.MaxAge > 0 && !ev.AnyAge && ev.ReceivedAt.Sub(ev.OccurredAt) > r.MaxAge {
		f.Passed = append(f.Passed, Passed{r, ev.Tenant, i})
		return
	}
	m := Match{Rule: r, Tenant: ev.Tenant, Batch: i, Event: ev.ID, OccurredAt: ev.OccurredAt, Once: r.dedupeKey == nil,
		Trace: ev.Trace}
	if r.dedupeKey == nil {
		m.Key = "event " + ev.ID.String() // each event once
	} else {
		var ok bool
		if m.Key, ok = f.key(i, r, r.dedupeKey, "dedupe_key"); !ok {
			return
		}
	}
	if f.complete(&m) {
		f.Matches = append(f.Matches, m)
	}
}

// complete evaluates the subject and the payload of a match about an event whose key is known.
func (f *Findings) complete(m *Match) (ok bool) {
	r := m.Rule
	if r.subject != nil {
		if m.Subject, ok = f.key(m.Batch, r, r.subject, "subject"); !ok {
			return false
		}
	}
	if !f.within(m) {
		return false
	}
	if r.payload == nil {
		whole := expr.AppendEvent
		if r.Absence != nil {
			whole = expr.AppendTrigger
		}
		m.Payload = whole(nil, &f.events[m.Batch])
		if tooLarge(m.Payload, f.set.maxPayload) {
			f.fail(r, m.Batch, FailedSize, fmt.Errorf("payload: %w", expr.ErrTooLarge))
			return false
		}
	} else if m.Payload, ok = f.payload(m.Batch, r, r.payload, "payload"); !ok {
		return false
	}
	m.KeyHash = keyHash(r, m.Key)
	return true
}

// tooLarge reports whether a payload is longer than most bytes once PostgreSQL prints it: a number like 1e300, of an
// event or of a rule's arithmetic, has 301 digits then.
func tooLarge(payload []byte, most int) bool {
	return len(payload) > most || jsontext.Printed(payload) > most
}

// payload makes the payload of a message.
func (f *Findings) payload(i int, r *Rule, t *expr.Template, what string) (payload []byte, ok bool) {
	most := f.set.maxPayload
	payload, err := t.Append(nil, &f.vars, most)
	if err == nil && tooLarge(payload, most) {
		err = expr.ErrTooLarge
	}
	if err != nil {
		f.fail(r, i, failureKind(err), fmt.Errorf("%s: %w", what, err))
	}
	return payload, err == nil
}

// key evaluates a subject or a dedupe key.
func (f *Findings) key(i int, r *Rule, p *expr.Program, what string) (text string, ok bool) {
	text, err := p.Text(&f.vars)
	if err != nil {
		f.fail(r, i, failureKind(err), fmt.Errorf("%s: %w", what, err))
	}
	return text, err == nil
}

func keyHash(r *Rule, key string) pipeline.UUID {
	return pipeline.HashUUID("rule:" + r.StateKey + ":" + key)
}

// Stored is the findings about the events of the batch that were newly stored. Where keys and limits choose among
// matches, the first one is the same as in a replay.
func (f *Findings) Stored(stored []bool) *Findings {
	matches := keep(f.Matches, func(m *Match) bool { return stored[m.Batch] })
	if slices.ContainsFunc(matches, func(m Match) bool { return !m.Once || m.Limited() }) {
		f.inOrder(matches)
	}
	return &Findings{
		Matches:  matches,
		Marks:    keep(f.Marks, func(m *Mark) bool { return stored[m.Batch] }),
		Counts:   keep(f.Counts, func(c *Count) bool { return stored[c.Batch] }),
		Passed:   keep(f.Passed, func(p *Passed) bool { return stored[p.Batch] }),
		Failures: keep(f.Failures, func(failure *Failure) bool { return stored[failure.Batch] }),
	}
}

// inOrder sorts matches as a replay of the stored events comes upon them: by arrival, and those that arrived together
// by id. Their places in a batch are not stored.
func (f *Findings) inOrder(matches []Match) {
	slices.SortStableFunc(matches, func(a, b Match) int {
		x, y := &f.events[a.Batch], &f.events[b.Batch]
		return cmp.Or(x.ReceivedAt.Compare(y.ReceivedAt), bytes.Compare(x.ID[:], y.ID[:]))
	})
}

// keep returns the items that are wanted, in an array of their own.
func keep[T any](items []T, wanted func(*T) bool) []T {
	out := make([]T, 0, len(items))
	for i := range items {
		if wanted(&items[i]) {
			out = append(out, items[i])
		}
	}
	return out
}

// Heard counts the newly stored events that some rule listens to, by tenant, and those that each rule looked at.
func (f *Findings) Heard(stored []bool) (byTenant map[int32]int, byRule map[*Rule]int) {
	byTenant, byRule = map[int32]int{}, map[*Rule]int{}
	heard := map[*listener]int{} // events by the first listener of a list: many events share few lists
	lists := map[*listener][]listener{}
	for _, i := range f.looked {
		if !stored[i] {
			continue
		}
		byTenant[f.events[i].Tenant]++
		for _, list := range f.set.listeners(&f.events[i]) {
			if len(list) == 0 {
				continue
			}
			if heard[&list[0]]++; heard[&list[0]] == 1 {
				lists[&list[0]] = list
			}
		}
	}
	for first, list := range lists {
		for _, l := range list {
			byRule[l.rule] += heard[first]
		}
	}
	return byTenant, byRule
}
