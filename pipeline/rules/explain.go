package rules

import (
	"time"

	"sluice.example/sluice/pipeline"
)

// Look is what one rule of a set makes of one event.
type Look struct {
	Rule, Hash, Kind, State string
	// Names are the rule's name, and the one that it had before.
	Names []string
	// As is what the event is to the rule: event, trigger, cancel, activity, numerator or denominator.
	As string
	// Matched says whether the rule's condition holds. Failure is the reason where that, or what follows from it, is
	// unknown.
	Matched bool
	Failure string
	// Key and Subject are those of the decision, for event rules, or of the timer, for absence rules.
	Key, Subject string
	// Ledger is what the key is remembered under, zero where none is needed. StateKey is under what subjects are kept,
	// Timer under what timers.
	Ledger          pipeline.UUID
	StateKey, Timer string
	// Under are the limits over several rules that the decision had to be within.
	Under []Under
	// SubjectIsKey: an absence rule has no subject of its own.
	SubjectIsKey bool
	// Cooldown, CapMax and CapPer are the rule's limits; Within is how long an absence rule waits.
	Cooldown, CapPer, Within time.Duration
	// MaxAge is set where the event matched and is older than this, so that nothing came of it, unless it was sent as one
	// that counts at any age.
	MaxAge time.Duration
	CapMax int
}

// Explain returns what each rule that listens to an event makes of it.
func (s *Set) Explain(ev pipeline.Event) []Look {
	var looks []Look
	for _, list := range s.listeners(&ev) {
		for _, l := range list {
			looks = append(looks, s.explain(l, ev))
		}
	}
	return looks
}

func (s *Set) explain(l listener, ev pipeline.Event) Look {
	r := l.rule
	out := Look{Rule: r.Name, Hash: r.Hash, Kind: r.Kind, State: r.State(), As: l.role.String(), StateKey: r.StateKey,
		Cooldown: r.Limits.Cooldown, CapMax: r.Limits.CapMax, CapPer: r.Limits.CapPer}
	if out.Names = []string{r.Name}; r.origin != r.Name {
		out.Names = append(out.Names, r.origin)
	}
	f := &Findings{set: s, events: []pipeline.Event{ev}}
	f.look(0, [2][]listener{{l}})
	for _, failure := range f.Failures {
		out.Failure = failure.Kind + ": " + failure.Err.Error()
	}
	for _, m := range f.Matches {
		out.Matched, out.Key, out.Subject, out.Under = true, m.Key, m.Subject, m.Under
		if !m.Once {
			out.Ledger = m.KeyHash
		}
	}
	for range f.Passed {
		out.Matched, out.MaxAge = true, r.MaxAge
	}
	for _, m := range f.Marks {
		out.Matched, out.Key = true, m.Key
	}
	out.Matched = out.Matched || len(f.Counts) > 0
	if a := r.Absence; a != nil {
		out.Timer, out.Within = a.Timer, a.Within
		out.SubjectIsKey = r.subject == nil
	}
	if out.Failure != "" && l.match != nil {
		if holds, err := l.match.Holds(&f.vars); err == nil && holds {
			out.Matched = true
		}
	}
	return out
}
