package rules

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"sluice.example/sluice/pipeline"
)

// Held is what cooldown and cap held back from one subject of a rule.
type Held struct {
	Tenant int32
	// State names the rule's state, as it was recorded.
	State   string
	Subject string
	Count   int64
	Since   time.Time
}

// Digest makes one match for each subject whose held back decisions are due to be told. What belongs to a rule of the
// set that has no digest any more is dropped.
func (s *Set) Digest(held []Held) *Findings {
	f := &Findings{set: s}
	for _, h := range held {
		if r := s.byState[h.State]; r != nil && r.Limits.DigestAfter > 0 {
			f.tell(r, h)
		}
	}
	return f
}

// LimitHeld is what a limit over several rules held back from one subject, in Held.State. Late is how long ago its
// digest was due.
type LimitHeld struct {
	Held
	Late time.Duration
}

// LimitDigest makes one match for each subject whose digest of a limit is due.
func (s *Set) LimitDigest(held []LimitHeld) *Findings {
	f := &Findings{set: s}
	for _, h := range held {
		if r := s.byLimit[h.State]; r != nil {
			made := len(f.Matches)
			f.tell(r, h.Held)
			for i := made; i < len(f.Matches); i++ {
				f.Matches[i].Delay = -h.Late // under its limit it counts at the time when it is due
			}
		}
	}
	return f
}

// LimitDigests makes the messages that tell of what a limit held back, by the limit's name; nil if it tells nothing.
func (s *Set) LimitDigests(limit string) *Rule { return s.byLimit[limit] }

// LimitStates are under what limits in force that have a digest keep their subjects, sorted.
func (s *Set) LimitStates() []string { return slices.Sorted(maps.Keys(s.byLimit)) }

// tell makes the match of one digest.
func (f *Findings) tell(r *Rule, h Held) {
	raw, _ := json.Marshal(struct { // can't fail
		Count   int64  `json:"count"`
		Subject string `json:"subject"`
		Since   string `json:"since"`
	}{h.Count, h.Subject, h.Since.UTC().Format(time.RFC3339Nano)})
	f.events = make([]pipeline.Event, 1)
	f.vars.SetDigest(raw)
	m := Match{Rule: r, Tenant: h.Tenant, Subject: h.Subject, Unlimited: true, Once: true, Payload: raw,
		Key: fmt.Sprintf("digest %s@%d", h.Subject, h.Since.UnixMicro())}
	m.KeyHash = keyHash(r, m.Key)
	if r.digest != nil {
		var ok bool
		if m.Payload, ok = f.payload(0, r, r.digest, "digest.payload"); !ok {
			return
		}
	}
	f.Matches = append(f.Matches, m)
}
