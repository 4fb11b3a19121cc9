package rules

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"go.yaml.in/yaml/v3"

	"sluice.example/sluice/internal/duration"
	"sluice.example/sluice/internal/spell"
	"sluice.example/sluice/internal/yamlfile"
	"sluice.example/sluice/pipeline"
	"sluice.example/sluice/pipeline/rules/expr"
)

// Absence is what only rules about something that does not happen have.
type Absence struct {
	// Timer names the rule's timers. It changes with the rule's trigger, cancel and key.
	Timer string
	// Names are the events that the timers depend on; nil for all.
	Names []string
	// Within is how long to wait. Lookback is how long ago a trigger may be and still fire.
	Within, Lookback time.Duration
	// Grace is how long after the decision the message is due.
	Grace time.Duration
	// First says that the wait counts from the first trigger after the last cancel, Idle that it counts from the latest
	// event of any kind. Otherwise it counts from the latest trigger.
	First, Idle bool
	// Episodes: each trigger that is left alone fires; otherwise each key fires once.
	Episodes bool
	// Skip are the reasons for which a message is not sent any more.
	Skip []string

	key *expr.Program
}

// The reasons to skip a message that had been decided.
const (
	Cancelled  = "cancelled"
	Superseded = "superseded"
)

// Recheck is what to check again before a message is sent. As JSON it is a column of the outbox, see there.
type Recheck struct {
	Timer string `json:"timer"`
	Key   string `json:"key"`
	// Anchor is from when the wait counted, Latest the latest trigger.
	Anchor time.Time `json:"anchor"`
	Latest time.Time `json:"trigger"`
	Skip   []string  `json:"skip"`
	// Ledger is the key that the decision used up for good, and Messages how many were made of it. If all of them are
	// skipped, the key is free again. Empty where another wait has another key.
	Ledger   string `json:"ledger,omitempty"`
	Messages int    `json:"messages,omitempty"`
}

// Since is the moment from which on a cancel undoes the decision: the trigger. With anchor idle the wait counts from a
// later activity, with anchor first from an earlier trigger.
func (c *Recheck) Since() time.Time {
	if c.Latest.Before(c.Anchor) {
		return c.Latest
	}
	return c.Anchor
}

// Until is the moment after which a trigger begins another wait, which fires in place of the decision.
func (c *Recheck) Until() time.Time {
	if c.Latest.After(c.Anchor) {
		return c.Latest
	}
	return c.Anchor
}

// Mark is an event that moves a timer.
type Mark struct {
	Rule  *Rule
	Batch int
	Event *pipeline.Event
	Role  Role
	Key   string

	at time.Time
}

// At is when the event counts as having happened: a clock that runs ahead must not delay anything. Of an event that is
// just being stored it may be in the future; whoever records it clamps it by the one clock that decides, see Clamped.
func (m Mark) At() time.Time { return m.at }

// Clamped is the mark as of now: what happens later than that counts as happening now.
func (m Mark) Clamped(now time.Time) Mark {
	if now.Before(m.at) {
		m.at = now
	}
	return m
}

func effective(ev *pipeline.Event) time.Time {
	if ev.ReceivedAt.Before(ev.OccurredAt) {
		return ev.ReceivedAt
	}
	return ev.OccurredAt
}

// staleAfter is how far beyond the lookback an event has to be to be left out of the timers.
const staleAfter = time.Hour

// Stale is how old an event has to be to be left out of the timers, since nothing can come of it; 0 where nothing is
// left out, since the anchor is not a maximum. How old it is is for the clock that decides when timers run out.
func (a *Absence) Stale() time.Duration {
	if a.First {
		return 0
	}
	return a.Lookback + staleAfter
}

func (f *Findings) mark(i int, l listener) {
	ev := &f.events[i]
	a := l.rule.Absence
	text, err := a.key.Text(&f.vars)
	if err != nil {
		if l.role != GoesOn { // the rule watches all events, also those without such a key
			f.fail(l.rule, i, failureKind(err), fmt.Errorf("key: %w", err))
		}
		return
	}
	at := ev.OccurredAt
	if f.stored {
		at = effective(ev)
	}
	f.Marks = append(f.Marks, Mark{l.rule, i, ev, l.role, text, at})
}

// TimerKey names one timer.
type TimerKey struct {
	Tenant     int32
	Timer, Key string
}

// Timer is what marks tell about one key. A time is nil where they tell nothing.
type Timer struct {
	TimerKey
	TriggerAt, CancelAt, ActivityAt *time.Time
	// FirstAt is the earliest of all, of rules whose anchor is the first trigger.
	FirstAt *time.Time
	// Trigger is the latest trigger; of two at one moment the one with the larger id.
	Trigger *pipeline.Event
	// Stale is that of the rule.
	Stale time.Duration
}

// Merge gathers marks by key, in the order of keys. Their own order does not matter.
func Merge(marks []Mark) []*Timer {
	byKey := map[TimerKey]*Timer{}
	for _, m := range marks {
		k := TimerKey{m.Event.Tenant, m.Rule.Absence.Timer, m.Key}
		t := byKey[k]
		if t == nil {
			t = &Timer{TimerKey: k, Stale: m.Rule.Absence.Stale()}
			byKey[k] = t
		}
		at := m.At()
		switch m.Role {
		case Triggers:
			if t.Trigger == nil || at.After(*t.TriggerAt) ||
				at.Equal(*t.TriggerAt) && bytes.Compare(m.Event.ID[:], t.Trigger.ID[:]) > 0 {
				t.Trigger, t.TriggerAt = m.Event, &at
			}
		case Cancels:
			t.CancelAt = later(t.CancelAt, at)
		case GoesOn:
			t.ActivityAt = later(t.ActivityAt, at)
		}
		if m.Rule.Absence.First && (t.FirstAt == nil || at.Before(*t.FirstAt)) {
			t.FirstAt = &at
		}
	}
	return slices.SortedFunc(maps.Values(byKey), func(a, b *Timer) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Timer, b.Timer), cmp.Compare(a.Key, b.Key))
	})
}

func later(a *time.Time, b time.Time) *time.Time {
	if a == nil || b.After(*a) {
		return &b
	}
	return a
}

// Due is a timer that has run out.
type Due struct {
	Tenant int32
	Key    string
	// Anchor is from when the wait counted. Latest is the latest trigger, which is the anchor in most rules.
	Anchor, Latest time.Time
	// Trigger is the event that the decision is about. Its Name is empty if it is no longer stored.
	Trigger pipeline.Event
}

// Fire decides about timers of an absence rule that have run out.
func (s *Set) Fire(r *Rule, due []Due) *Findings {
	f := &Findings{set: s}
	for _, d := range due {
		f.fire(r, d)
	}
	return f
}

func (f *Findings) fire(r *Rule, d Due) {
	f.events = []pipeline.Event{d.Trigger}
	f.vars.SetTimer(&f.events[0], d.Key, d.Anchor)
	defer f.recovered(r, 0)
	if d.Trigger.Name == "" {
		f.fail(r, 0, FailedExpression, errors.New("the event that started the timer is no longer stored"))
		return
	}
	a := r.Absence
	m := Match{Rule: r, Tenant: d.Tenant, Event: d.Trigger.ID, OccurredAt: d.Trigger.OccurredAt, Subject: d.Key,
		Key:   d.Key,
		Delay: a.Grace}
	if a.Episodes {
		m.Key = fmt.Sprintf("%s@%d", d.Key, d.Anchor.UnixMicro())
	}
	if len(a.Skip) > 0 {
		m.Recheck = &Recheck{Timer: a.Timer, Key: d.Key, Anchor: d.Anchor, Latest: d.Latest, Skip: a.Skip}
	}
	if f.complete(&m) {
		if m.Recheck != nil && !a.Episodes {
			m.Recheck.Ledger, m.Recheck.Messages = m.KeyHash.String(), len(r.SendTo)
		}
		f.Matches = append(f.Matches, m)
	}
}

// absenceRule reads what only absence rules have.
func (l *loader) absenceRule(r *Rule, c *yamlfile.Section) {
	a := &Absence{}
	r.Absence = a
	a.Within = c.Duration("within", 0, time.Second, maxDuration)
	c.Require("within", "how long to wait")
	a.Grace = c.Duration("grace", 2*time.Minute, 0, maxDuration)
	a.Lookback = c.Duration("lookback", max(6*time.Hour, 3*(a.Within+a.Grace)), time.Second, maxDuration)
	if least := a.Within + a.Grace + 2*time.Minute; a.Lookback <= least {
		c.Fault("lookback", "%s is too short; it has to be longer than within + grace + two sweeps (%s), or nothing would "+
			"fire",
			duration.Format(a.Lookback), duration.Format(least))
	}
	anchor := c.OneOf("anchor", "last", "first", "idle")
	a.First = anchor == "first"
	a.Idle = anchor == "idle"
	a.Episodes = c.OneOf("once_per", "key", "episode") == "episode"
	l.recheck(a, c)

	trigger := l.side(r, c, "trigger", Triggers)
	cancel := l.side(r, c, "cancel", Cancels)
	r.takes = []take{trigger, cancel}
	names := append(slices.Clone(trigger.on), cancel.on...)
	if a.Idle {
		activity := take{on: []string{"*"}, listener: listener{rule: r, role: GoesOn}}
		if c.Has("activity") {
			activity = l.side(r, c, "activity", GoesOn)
		}
		r.takes = append(r.takes, activity)
		names = append(names, activity.on...)
	} else if c.Has("activity") {
		c.Fault("activity", "activity goes with anchor: idle")
	}
	slices.Sort(names)
	if a.Names = slices.Compact(names); slices.Contains(names, "*") {
		a.Names = nil
	}
	if c.Require("key", "whose absence it is, for example event.session_id") {
		a.key = l.key(l.scope(expr.Event, names), c.Get("key"), c.At("key"))
	}
	sc := l.scope(expr.Timer, trigger.on)
	if n := c.Get("subject"); n != nil {
		r.subject = l.key(sc, n, c.At("subject"))
	}
	if n := c.Get("payload"); n != nil {
		r.payload = sc.Template(l.src, n, c.At("payload"))
	}
	a.Timer = stateName(r, c, "trigger", "cancel", "activity", "key", "anchor")
}

// recheck reads for which reasons a message is not sent any more.
func (l *loader) recheck(a *Absence, c *yamlfile.Section) {
	a.Skip = []string{Cancelled}
	if a.Episodes && !a.First {
		a.Skip = append(a.Skip, Superseded)
	}
	s := c.Section("recheck", "skip_if")
	if s == nil {
		return
	}
	a.Skip = []string{}
	if v := s.Get("skip_if"); v != nil && (v.Kind != yaml.SequenceNode || len(v.Content) > 0) {
		a.Skip = s.Strings("skip_if")
	}
	for _, reason := range a.Skip {
		known := []string{Cancelled, Superseded}
		switch {
		case !slices.Contains(known, reason):
			s.Fault("skip_if", "%q is not one of cancelled, superseded%s", reason, spell.DidYouMean(reason, known))
		case reason == Superseded && !a.Episodes:
			s.Fault("skip_if", "superseded goes with once_per: episode; "+
				"with once_per: key the key would be used up without a message")
		case reason == Superseded && a.First:
			s.Fault("skip_if", "superseded goes with anchor last or idle; "+
				"with anchor: first a later trigger begins no other wait, and nothing would be sent")
		}
	}
}
