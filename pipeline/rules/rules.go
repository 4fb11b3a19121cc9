// Package rules is the language of rules: it reads them from YAML into a Set, and says what a Set makes of events, of
// timers that have run out, of subjects whose digest is due, and of windows of time.
//
// Everything here is pure. Nothing reads a clock, a database or the network, nothing is remembered between two calls,
// and a Set never changes, so it is safe for concurrent use. What a Set finds is recorded by package evaluate, in SQL,
// and by package replay, in memory. A rule that fails on an event fails on that event alone: the failure is one of the
// findings.
package rules

import (
	"maps"
	"slices"
	"time"

	"sluice.example/sluice/internal/yamlfile"
	"sluice.example/sluice/pipeline"
	"sluice.example/sluice/pipeline/rules/expr"
)

// Options are what the rest of the configuration knows of the names in a rules file, and what bounds messages.
type Options struct {
	// Tenants maps the names of the tenants to their ids. Nil: tenant names are not checked, and rules that name a
	// tenant apply to none.
	Tenants map[string]int32
	// Destinations are the names that send_to may use. Nil: they are not checked.
	Destinations []string
	// Irreversible are those of them that can't take back what they do; a rule that sends there needs a review.
	Irreversible []string
	// MaxPayloadBytes bounds the payload of one message, in bytes; a larger one is a failure of its rule.
	MaxPayloadBytes int
}

// DefaultOptions checks no names. Payloads have up to 65536 bytes, a guess: what common webhook receivers take without
// being told.
func DefaultOptions() Options { return Options{MaxPayloadBytes: 64 << 10} }

// Set is the rules that are in force together. It never changes.
type Set struct {
	rules []*Rule
	// byTenant has an index for each tenant that has rules of its own; others use every.
	byTenant map[int32]*index
	every    *index
	warnings yamlfile.Faults
	byState  map[string]*Rule
	// byLimit makes the digests of limits, by their state.
	byLimit    map[string]*Rule
	absences   []*Rule
	rates      []*Rule
	maxPayload int
	// fingerprint changes with the content of the rules.
	fingerprint string
}

// Rule is one rule. It never changes.
type Rule struct {
	// ID is the rule's name within its file, Name is ruleset/id, which is unique.
	ID, Name string
	// StateKey is under what its keys and subjects are kept: its name, or what that was when it began. A shadow keeps its
	// own, so that trying a rule does not use up what it will have to send.
	StateKey string
	// Hash has 16 hexadecimal digits that change with the rule's content.
	Hash string
	// Kind is event, absence or rate.
	Kind string
	// MaxAge is how long before its arrival an event may have happened for an event rule to decide about it; 0 is no
	// limit. What is brought in later is history.
	MaxAge time.Duration
	// Off: it is only checked. Shadow: it decides, and what it decides is not sent.
	Off, Shadow bool
	// Review is who read the rule as it is; without a review that it needs it is a shadow.
	Review Review
	// Owner and Response are who answers for the rule, and what to do when it fires.
	Owner, Response string
	// Tenants are those that the rule is for; nil for all.
	Tenants []int32
	// SendTo names the destinations; each gets a message.
	SendTo []string
	Limits Limits
	// Absence and Rate are what only rules of that kind have; nil in others.
	Absence *Absence
	Rate    *Rate
	// Tests are those that stand in the rule.
	Tests []*Test

	// origin is the name under which the rule began, shape what makes rules look alike, and place where it stands.
	origin, shape string
	place         yamlfile.Fault
	// meantAsShadow: it would be a shadow also after a review.
	meantAsShadow bool

	takes     []take
	subject   *expr.Program
	dedupeKey *expr.Program
	payload   *expr.Template
	digest    *expr.Template

	quotas   []*Quota
	priority int
}

// take is which events a rule listens to.
type take struct {
	on []string
	listener
}

// State is active, shadow or off.
func (r *Rule) State() string {
	switch {
	case r.Off:
		return "off"
	case r.Shadow:
		return "shadow"
	}
	return "active"
}

// Limits is what may hold a decision back. Zero: no such limit.
type Limits struct {
	// DedupeFor is how long a key is remembered; 0 means for good.
	DedupeFor time.Duration
	// Cooldown is for how long after a message about a subject no other is made.
	Cooldown time.Duration
	// CapMax is how many messages about a subject are made within CapPer.
	CapMax int
	CapPer time.Duration
	// DigestAfter is how long suppressed decisions are counted before they are sent as one message.
	DigestAfter time.Duration
}

// Any reports whether cooldown or cap have a say.
func (l Limits) Any() bool { return l.Cooldown > 0 || l.CapMax > 0 }

// Rules are all rules of the set, in the order of the files.
func (s *Set) Rules() []*Rule { return s.rules }

// Absences are the absence rules in force.
func (s *Set) Absences() []*Rule { return s.absences }

// Rates are the rate rules in force; those that keep others from firing come first.
func (s *Set) Rates() []*Rule { return s.rates }

// States are the names under which the state of the rules in force is kept, sorted.
func (s *Set) States() []string { return slices.Sorted(maps.Keys(s.byState)) }

// Warnings are what is not wrong but probably not meant.
func (s *Set) Warnings() yamlfile.Faults { return s.warnings }

// Fingerprint changes with the content of the rules.
func (s *Set) Fingerprint() string { return s.fingerprint }

// index finds who listens to an event name.
type index struct {
	byName map[string][]listener
	// any listens to every name.
	any []listener
}

// listener is a rule and what it does with an event of this name.
type listener struct {
	rule  *Rule
	role  Role
	match *expr.Program
}

// Role is what an event is to a rule.
type Role uint8

const (
	// Decides is the role of an event that an event rule decides about.
	Decides Role = iota
	// Triggers, Cancels and GoesOn move the timers of an absence rule; GoesOn shows that a key is not idle.
	Triggers
	Cancels
	GoesOn
	// Numerator and Denominator are counted by a rate rule.
	Numerator
	Denominator
)

func (r Role) String() string {
	return [...]string{"event", "trigger", "cancel", "activity", "numerator", "denominator"}[r]
}

// listeners are those of an event: by its name, and to every name.
func (s *Set) listeners(ev *pipeline.Event) [2][]listener {
	idx := s.byTenant[ev.Tenant]
	if idx == nil {
		idx = s.every
	}
	return [2][]listener{idx.byName[ev.Name], idx.any}
}

// Settles is how long after an event the rule may still decide because of it.
func (r *Rule) Settles() time.Duration {
	d := r.Limits.DigestAfter + time.Minute
	if a := r.Absence; a != nil {
		d += a.Within + a.Grace
	}
	if a := r.Rate; a != nil {
		d += a.Window + a.Settle
	}
	return d
}
