package rules

import (
	"encoding/json"
	"fmt"
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
