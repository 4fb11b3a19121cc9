package evaluate

import (
	"time"

	"cel.dev/cel-go/common/types"

	"sluice.example/sluice/pipeline"
)

// Look is what one rule of a set makes of one event.
type Look struct {
	Rule, Hash, Kind, State string
	// As is what the event is to the rule: event, trigger, cancel, activity, numerator or denominator.
	As string
	// Matched says whether the rule's condition holds. Failure is why that, or what follows from it, can't be told.
	Matched bool
	Failure string
	// Key and Subject are those of the decision, for event rules, or of the timer, for absence rules.
	Key, Subject string
	// Ledger is what the key is remembered under, zero where none is needed. StateKey is under what subjects are kept, Timer under what timers.
	Ledger          pipeline.UUID
	StateKey, Timer string
	// Cooldown, CapMax and CapPer are the rule's limits; Within is how long an absence rule waits.
	Cooldown, CapPer, Within time.Duration
	CapMax                   int
}

var roleNames = map[role]string{decides: "event", triggers: "trigger", cancels: "cancel", goesOn: "activity",
	numerator: "numerator", denominator: "denominator"}

// Explain says what the rules that listen to an event make of it. Nothing is recorded.
func (s *Set) Explain(cfg Config, ev pipeline.Event) []Look {
	e := &Engine{cfg: cfg}
	var looks []Look
	for _, list := range s.listeners(&ev) {
		for _, l := range list {
			looks = append(looks, l.explain(e, ev))
		}
	}
	return looks
}

func (l listener) explain(e *Engine, ev pipeline.Event) Look {
	r := l.rule
	out := Look{Rule: r.name, Hash: r.hash, Kind: r.kind, State: r.stateName(), As: roleNames[l.role], StateKey: r.stateKey,
		Cooldown: r.limits.cooldown, CapMax: r.limits.capMax, CapPer: r.limits.capPer}
	p := &Plan{recorder: recorder{engine: e}, events: []pipeline.Event{ev}}
	p.record.set(&p.events[0])
	p.vars.event = &p.record
	p.one(0, l)
	for _, f := range p.failures {
		out.Failure = f.kind + ": " + f.err.Error()
	}
	for _, c := range p.candidates {
		out.Matched, out.Key, out.Subject = true, c.key, c.subject
		if !c.once {
			out.Ledger = c.keyHash
		}
	}
	for _, m := range p.marks {
		out.Matched, out.Key = true, m.key
	}
	out.Matched = out.Matched || len(p.counts) > 0
	if a := r.absence; a != nil {
		out.Timer, out.Within = a.Timer, a.Within
	}
	if out.Failure != "" && l.match != nil {
		if v, err := l.match.eval(&p.vars); err == nil && v == types.True {
			out.Matched = true
		}
	}
	return out
}
