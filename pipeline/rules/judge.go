package rules

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"sluice.example/sluice/pipeline"
)

// Sample is what happened in one window.
type Sample struct {
	// N and X are denominator and numerator.
	N, X float64
	// Usable: it can be compared with, since the rule was counting and did not fire.
	Usable bool
}

// Window is a window of a rate rule that has settled, and those that it is compared with.
type Window struct {
	Tenant  int32
	End     time.Time
	Current Sample
	// Before are the samples of the rule's Periods.
	Before []Sample
	// Inhibited: another rule fires, which explains whatever is seen.
	Inhibited bool
}

// RateState is what is kept of a rule and a tenant between two windows. Its JSON is a column of rate_states.
type RateState struct {
	// State is ok, pending, firing or unknown; empty before the first window.
	State string `json:"state"`
	// Times counts windows in a row: towards firing, or, while firing, towards the all-clear.
	Times int `json:"times"`
	// Since is the end of the window with which the firing began; zero while it does not fire.
	Since time.Time `json:"since,omitzero"`
	// Sent counts the messages of this firing, SentAt is the window of the last.
	Sent   int       `json:"sent"`
	SentAt time.Time `json:"sent_at,omitzero"`
	Last   Judgement `json:"last"`
}

// Firing reports whether the rule fires, which it goes on to do while nothing is known.
func (s RateState) Firing() bool { return !s.Since.IsZero() }

// Judgement is how one window compares.
type Judgement struct {
	// Unknown is why nothing can be told; empty where something can.
	Unknown  string  `json:"unknown,omitempty"`
	Value    float64 `json:"value"`
	Baseline float64 `json:"baseline"`
	// Change is the relative distance of value from baseline, at most mostChange.
	Change float64 `json:"change"`
	// Z is the distance in standard deviations.
	Z float64 `json:"z"`
	N float64 `json:"denominator,omitempty"`
	X float64 `json:"numerator"`

	// little: Unknown is set since too little happens for a rise, which is a way for a rise to end.
	little bool
}

// mostChange is what a rise from nothing counts as: beyond every threshold, and a number that JSON has.
const mostChange = 1e6

func relativeChange(value, baseline float64) float64 {
	switch {
	case baseline > 0:
		return min(value/baseline-1, mostChange)
	case value > 0:
		return mostChange
	}
	return 0
}

// Judge goes on by one window. It returns the state to keep, and a match where the state's change means a message.
func (s *Set) Judge(r *Rule, state RateState, w Window) (RateState, *Findings) {
	f := &Findings{set: s}
	j := r.Rate.judge(w.Current, w.Before)
	if w.Inhibited {
		j.Unknown = "another rule fires: " + strings.Join(r.Rate.inhibitedBy, ", ")
		j.little = false
	}
	state, message := r.Rate.next(state, j, w.End)
	if message != "" {
		f.announce(r, state, w, message)
	}
	return state, f
}

// judge compares a window with those before it.
func (a *Rate) judge(cur Sample, before []Sample) Judgement {
	j := Judgement{N: cur.N, X: cur.X}
	before = slices.DeleteFunc(slices.Clone(before), func(s Sample) bool {
		return !s.Usable || a.Ratio && s.N == 0
	})
	if len(before) < a.baseline.require {
		j.Unknown = fmt.Sprintf("%d of %d earlier windows can be compared with", len(before), a.baseline.require)
		return j
	}
	if a.Ratio {
		a.judgeRatio(&j, before)
	} else {
		a.judgeCount(&j, before)
	}
	if j.Unknown == "" || j.little {
		j.Change = relativeChange(j.Value, j.Baseline)
	}
	if math.IsNaN(j.Z) || math.IsInf(j.Z, 0) {
		j.Z = 0
	}
	return j
}

// rise reports whether the rule looks for more than usual, and not for less.
func (a *Rate) rise() bool { return a.fire.change > 0 }

// enough reports whether a window can be judged. A drop needs that much was expected. A rise needs that much was
// expected or counted: what begins at nothing is just what such a rule is for.
func (a *Rate) enough(expected, counted float64) bool {
	return expected >= a.MinExpected || a.rise() && counted >= a.MinExpected
}

// mostExpected is an upper bound, at about 95 %, of the mean of a Poisson variable of which n were counted: 3 for none.
func mostExpected(n float64) float64 { return n + 1.645*math.Sqrt(n) + 3 }

// judgeRatio is a test of two proportions, widened by how much the earlier windows differ among themselves.
func (a *Rate) judgeRatio(j *Judgement, before []Sample) {
	var n, x float64
	for _, b := range before {
		n += b.N
		x += b.X
	}
	if n == 0 || j.N == 0 || x == 0 && !a.rise() {
		j.Unknown = "nothing to divide by"
		return
	}
	p := x / n
	j.Value = j.X / j.N
	j.Baseline = p
	if j.N < a.MinDenominator || !a.enough(j.N*p, j.X) {
		j.Unknown = fmt.Sprintf("too little happened: %g, of which %.1f were expected to count", j.N, j.N*p)
		j.little = a.rise() && j.N >= a.MinDenominator
		return
	}
	chi := 0.0
	for _, b := range before {
		if v := b.N * p * (1 - p); v > 0 {
			chi += (b.X - b.N*p) * (b.X - b.N*p) / v
		}
	}
	few := j.N*p < a.MinExpected
	if few {
		p = min(1, mostExpected(x)/n)
	}
	q := (j.X + n*p) / (j.N + n)
	j.Z = (j.Value - p) / math.Sqrt(dispersion(chi, len(before))*q*(1-q)*(1/j.N+1/n))
	if few {
		j.Z = max(0, j.Z) // below the bound nothing is significant
	}
}

// judgeCount is the same for one count: Poisson, widened.
func (a *Rate) judgeCount(j *Judgement, before []Sample) {
	k := float64(len(before))
	var sum float64
	for _, b := range before {
		sum += b.X
	}
	mean := sum / k
	j.Value = j.X
	j.Baseline = mean
	if !a.enough(mean, j.X) {
		j.Unknown = fmt.Sprintf("too little happens: %g were counted, and %.1f expected", j.X, mean)
		j.little = a.rise()
		return
	}
	chi := 0.0
	for _, b := range before {
		if mean > 0 {
			chi += (b.X - mean) * (b.X - mean) / mean
		}
	}
	few := mean < a.MinExpected
	if few {
		mean = mostExpected(sum) / k
	}
	j.Z = (j.X - mean) / math.Sqrt(dispersion(chi, len(before))*mean*(1+1/k))
	if few {
		j.Z = max(0, j.Z)
	}
}

func dispersion(chi float64, k int) float64 {
	if k < 2 {
		return 1
	}
	return max(1, chi/float64(k-1))
}

// next goes on by one window. The message that this means is firing, resolved, or empty for none.
func (a *Rate) next(s RateState, j Judgement, end time.Time) (_ RateState, message string) {
	// Where nothing is left to compare, a rise is over.
	over := j.little && s.Firing()
	if over {
		j.Unknown = ""
	}
	s.Last = j
	switch {
	case j.Unknown != "":
		s.State = "unknown"
		s.Times = 0
		return s, ""
	case s.Firing():
		s.State = "firing"
		if !over && (a.fire.crossed(j.Change) || a.clear.crossed(j.Change)) {
			s.Times = 0
			if a.repeat > 0 && end.Sub(s.SentAt) >= a.repeat {
				s.Sent++
				s.SentAt = end
				return s, "firing"
			}
			return s, ""
		}
		if s.Times++; s.Times < a.clear.times {
			return s, ""
		}
		return RateState{State: "ok", Last: j, SentAt: s.Since, Sent: s.Sent}, "resolved"
	case a.fire.crossed(j.Change) && math.Abs(j.Z) >= a.z:
		s.State = "pending"
		if s.Times++; s.Times < a.fire.times {
			return s, ""
		}
		return RateState{State: "firing", Since: end, Sent: 1, SentAt: end, Last: j}, "firing"
	}
	return RateState{State: "ok", Last: j}, ""
}

// announce makes the match that a state's change means.
func (f *Findings) announce(r *Rule, s RateState, w Window, kind string) {
	since := s.Since
	if kind == "resolved" {
		since = s.SentAt
	}
	raw, err := json.Marshal(struct {
		State string `json:"state"`
		Judgement
		WindowStart time.Time `json:"window_start"`
		WindowEnd   time.Time `json:"window_end"`
		Since       time.Time `json:"since"`
	}{kind, s.Last, w.End.Add(-r.Rate.Window), w.End, since})
	f.events = make([]pipeline.Event, 1)
	if err != nil {
		f.fail(r, 0, FailedExpression, fmt.Errorf("payload: %w", err))
		return
	}
	f.vars.SetRate(raw)
	m := Match{Rule: r, Tenant: w.Tenant, Key: fmt.Sprintf("%s@%d#%d", kind, since.Unix(), s.Sent), Payload: raw}
	m.KeyHash = keyHash(r, m.Key)
	if r.payload != nil {
		var ok bool
		if m.Payload, ok = f.payload(0, r, r.payload, "payload"); !ok {
			return
		}
	}
	f.Matches = append(f.Matches, m)
}

// Floor is the least of the denominator and of the numerator, or count, that has to be usual in a window for the rule
// to work; 0 where nothing has to. A rise needs no usual numerator, but a window that has room for the least one.
func (a *Rate) Floor() (n, x float64) {
	if a.rise() {
		if a.Ratio {
			n = max(a.MinDenominator, a.MinExpected)
		}
		return n, 0
	}
	return a.MinDenominator, a.MinExpected
}

// TooFew advises what to do about a rule in whose windows too little happens: n and x on average, of the denominator
// and of the numerator.
func (a *Rate) TooFew(n, x float64) string {
	leastN, leastX := a.Floor()
	factor, usual := leastX/x, fmt.Sprintf("%.1f events", x)
	if a.Ratio {
		factor = leastN / n
		if leastX > 0 {
			factor = max(factor, leastX/x)
		}
		usual = fmt.Sprintf("%.1f of the denominator and %.1f of the numerator", n, x)
	}
	if math.IsNaN(factor) || math.IsInf(factor, 0) || factor*a.Window.Hours() > 7*24 {
		return fmt.Sprintf("A window holds %s on average, too little for a rate rule", usual)
	}
	wider := time.Duration(factor*float64(a.Window)).Truncate(time.Hour) + time.Hour
	return fmt.Sprintf("A window holds %s on average: make it about %dh long, or lower the minimum", usual,
		int(wider.Hours()))
}
