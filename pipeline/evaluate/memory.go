package evaluate

import (
	"slices"
	"time"
)

// Names are the event names that the rules listen to; nil if there is one that listens to all.
func (s *Set) Names() []string {
	names := []string{}
	for _, r := range s.rules {
		for _, t := range r.takes {
			if r.off {
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

// Memory is for how long before a moment events matter to what the rules decide then, dedupe keys apart.
func (s *Set) Memory() time.Duration {
	var d time.Duration
	for _, r := range s.rules {
		if r.off {
			continue
		}
		d = max(d, r.limits.cooldown, r.limits.capPer, r.limits.digestAfter)
		if r.absence != nil {
			d = max(d, r.absence.Lookback+r.absence.grace)
		}
		if r.rate != nil {
			now := time.Now()
			periods := r.rate.Periods(now)
			d = max(d, now.Sub(periods[len(periods)-1])+r.rate.Window+time.Hour)
		}
	}
	return d
}
