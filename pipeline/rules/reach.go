package rules

import (
	"slices"
	"time"
)

// Names are the event names that the rules listen to; nil if there is one that listens to all.
func (s *Set) Names() []string {
	names := []string{}
	for _, r := range s.rules {
		for _, t := range r.takes {
			if r.Off {
				continue
			}
			if slices.Contains(t.on, "*") {
				return nil
			}
			names = append(names, t.on...)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Reach is for how long before a moment events matter to what the rules decide then, dedupe keys apart.
func (s *Set) Reach(moment time.Time) time.Duration {
	var d time.Duration
	for _, r := range s.rules {
		if r.Off {
			continue
		}
		d = max(d, r.Limits.Cooldown, r.Limits.CapPer, r.Limits.DigestAfter)
		if r.Absence != nil {
			d = max(d, r.Absence.Lookback+r.Absence.Grace)
		}
		if r.Rate != nil {
			d = max(d, moment.Sub(r.Rate.Oldest(moment))+time.Hour)
		}
	}
	return d
}
