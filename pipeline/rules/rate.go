package rules

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"sluice.example/sluice/internal/duration"
	"sluice.example/sluice/internal/yamlfile"
	"sluice.example/sluice/pipeline"
	"sluice.example/sluice/pipeline/rules/expr"
)

// Rate is what only rules about how much happens have.
type Rate struct {
	// Metric names the rule's counts and states. It changes with what is counted.
	Metric string
	// Names are the events that are counted; nil for all.
	Names []string
	// Window is what is judged, Every how often, and Settle how long after its end.
	Window, Every, Settle time.Duration
	// Ratio: numerator against denominator; otherwise one count.
	Ratio bool
	// MinDenominator and MinExpected are the least that has to happen in a window for it to be judged; the latter is the
	// numerator, or count, that the baseline lets expect, or, for a rise, that was counted. MinimumPlace is where they
	// stand, or would stand.
	MinDenominator, MinExpected float64
	MinimumPlace                yamlfile.Fault
	// settlePlace is where Settle stands, or would stand.
	settlePlace yamlfile.Fault
	// Inhibitors are the metrics of rules that, while they fire, keep this one from firing.
	Inhibitors []string

	baseline    baseline
	fire, clear threshold
	z           float64
	repeat      time.Duration
	inhibitedBy []string
	// section is for faults of inhibited_by, while the file is read.
	section *yamlfile.Section
}

// baseline is what a window is compared with: windows before it, each a step earlier.
type baseline struct {
	step    time.Duration
	periods int
	// require is how many of them have to be usable.
	require int
	zone    *time.Location
}

// threshold is a relative distance from the baseline that has to be seen some times in a row.
type threshold struct {
	change float64
	times  int
}

// crossed reports whether change is at least as far in the threshold's direction.
func (t threshold) crossed(change float64) bool {
	return t.change < 0 && change <= t.change || t.change > 0 && change >= t.change
}

// Periods are the ends of the windows that the one with the given end is compared with, latest first.
func (a *Rate) Periods(end time.Time) []time.Time {
	b := a.baseline
	ends := make([]time.Time, b.periods)
	for k := range ends {
		if days := b.step / (24 * time.Hour); b.step%(24*time.Hour) == 0 {
			// The same time of the day, whatever the clocks did.
			ends[k] = end.In(b.zone).AddDate(0, 0, -int(days)*(k+1)).UTC()
		} else {
			ends[k] = end.Add(-b.step * time.Duration(k+1))
		}
	}
	return ends
}

// Oldest is the beginning of the oldest window that the one with the given end is compared with.
func (a *Rate) Oldest(end time.Time) time.Time {
	periods := a.Periods(end)
	return periods[len(periods)-1].Add(-a.Window)
}

// Count is an event that a rate rule counts.
type Count struct {
	Rule  *Rule
	Batch int
	Event *pipeline.Event
	Role  Role
}

// Minute is the minute in which the event counts.
func (c Count) Minute() time.Time { return effective(c.Event).Truncate(time.Minute) }

// Minute is a minute of a tenant's time in which a rule counts.
type Minute struct {
	Metric string
	Tenant int32
	At     time.Time
}

// Counts are how many events a rate rule counted: denominator and numerator, and the same of those that arrived after
// their window was judged.
type Counts [4]int64

// Rollup adds what is counted to sums, by minute.
func Rollup(sums map[Minute]Counts, all []Count) {
	for _, c := range all {
		i := 0
		if c.Role == Numerator {
			i = 1
		}
		if c.Event.LateBy() > c.Rule.Rate.Settle {
			i += 2
		}
		m := Minute{c.Rule.Rate.Metric, c.Event.Tenant, c.Minute()}
		sum := sums[m]
		sum[i]++
		sums[m] = sum
	}
}

// Recent is the beginning of what events have to tell about how late they arrive now: a week, or the baseline if that
// is shorter.
func (a *Rate) Recent(now time.Time) time.Time {
	oldest, week := a.Oldest(now), now.Add(-7*24*time.Hour)
	if oldest.Before(week) {
		return week
	}
	return oldest
}

// AppendLateness appends how late a stored event arrived, if the rule counts it.
func (s *Set) AppendLateness(late []time.Duration, r *Rule, ev pipeline.Event) []time.Duration {
	for _, c := range s.Revisit(r, []pipeline.Event{ev}).Counts {
		late = append(late, c.Event.LateBy())
	}
	return late
}

// fewLate is how many events have to be known before the slowest hundredth of them means anything.
const fewLate = 100

// SettlesEarly warns if a hundredth of the events that the rule counted arrived after their window was judged, which
// then looked like a drop. It sorts late, which is how late each of them arrived.
func (a *Rate) SettlesEarly(late []time.Duration) yamlfile.Faults {
	if len(late) < fewLate {
		return nil
	}
	slices.Sort(late)
	p99 := late[(len(late)*99+99)/100-1]
	if p99 <= a.Settle {
		return nil
	}
	enough := (p99 + time.Minute - 1).Truncate(time.Minute)
	warning := a.settlePlace
	warning.Message = fmt.Sprintf("windows are judged %s after their end, but of the stored events of the last days "+
		"that the rule counts, 1 in 100 arrives %s late or later (p99), which would look like a drop: set settle: %s",
		duration.Format(a.Settle), duration.Format(p99.Round(time.Second)), duration.Format(enough))
	return yamlfile.Faults{warning}
}

// rateRule reads what only rate rules have.
func (l *loader) rateRule(r *Rule, c *yamlfile.Section) {
	a := &Rate{}
	r.Rate = a
	minutes := func(key string, fallback, least time.Duration) time.Duration {
		d := c.Duration(key, fallback, least, maxDuration)
		if d%time.Minute != 0 {
			c.Fault(key, "%s is not a whole number of minutes; events are counted by the minute", duration.Format(d))
		}
		return d
	}
	a.Window = minutes("window", time.Hour, time.Minute)
	a.Every = minutes("every", 5*time.Minute, time.Minute)
	a.Settle = minutes("settle", 5*time.Minute, 0)
	place := c.Node()
	if n := c.Get("settle"); n != nil {
		place = n
	}
	a.settlePlace = yamlfile.Fault{File: l.src.Name, Line: place.Line, Column: place.Column, Where: c.At("settle")}
	a.repeat = c.Duration("repeat", 0, time.Minute, maxDuration)
	c.OneOf("no_data", "unknown")
	c.String("severity")
	l.counted(r, c)
	for _, t := range r.takes {
		a.Names = append(a.Names, t.on...)
	}
	if slices.Sort(a.Names); slices.Contains(a.Names, "*") {
		a.Names = nil
	}
	a.readBaseline(c)
	a.readMinimum(l.src.Name, c)
	a.readThresholds(c)
	if a.inhibitedBy = c.Strings("inhibited_by"); a.inhibitedBy != nil {
		a.section = c
	}
	if n := c.Get("payload"); n != nil {
		r.payload = l.scope(expr.Rate, nil).Template(l.src, n, c.At("payload"))
	}
	a.Metric = stateName(r, c, "numerator", "denominator", "count", "settle")
}

// counted reads what is counted.
func (l *loader) counted(r *Rule, c *yamlfile.Section) {
	r.Rate.Ratio = !c.Has("count")
	if !r.Rate.Ratio {
		for _, k := range []string{"numerator", "denominator"} {
			if c.Has(k) {
				c.Fault(k, "count stands alone; %s belongs to a ratio", k)
			}
		}
		r.takes = []take{l.side(r, c, "count", Numerator)}
		return
	}
	if !c.Has("numerator") && !c.Has("denominator") {
		l.src.Fault(c.Node(), c.Where, "missing what is counted: either count, or numerator and denominator")
		return
	}
	r.takes = []take{l.side(r, c, "numerator", Numerator), l.side(r, c, "denominator", Denominator)}
}

func (a *Rate) readBaseline(c *yamlfile.Section) {
	a.baseline = baseline{step: 7 * 24 * time.Hour, periods: 4, require: 3, zone: time.UTC}
	b := &a.baseline
	if s := c.Section("baseline", "step", "periods", "require", "timezone"); s != nil {
		b.step = s.Duration("step", b.step, time.Minute, maxDuration)
		b.periods = s.Int("periods", b.periods, 1, 52)
		b.require = s.Int("require", min(3, b.periods), 1, b.periods)
		if name := s.String("timezone"); name != "" {
			zone, err := time.LoadLocation(name)
			if err != nil {
				s.Fault("timezone", "%q is not a time zone; use a name such as Europe/Berlin", name)
			} else {
				b.zone = zone
			}
		}
	}
	if b.step < a.Window {
		c.Fault("baseline", "the step (%s) is shorter than the window (%s), which would be compared with itself",
			duration.Format(b.step), duration.Format(a.Window))
	}
}

func (a *Rate) readMinimum(file string, c *yamlfile.Section) {
	a.MinExpected = 10
	known := []string{"expected"}
	if a.Ratio {
		a.MinDenominator = 200
		known = []string{"denominator", "expected_numerator"}
	}
	place := c.Node()
	if s := c.Section("minimum", known...); s != nil {
		place = s.Node()
		a.MinDenominator = float64(s.Int("denominator", int(a.MinDenominator), 1, 1e9))
		a.MinExpected = float64(s.Int(known[len(known)-1], int(a.MinExpected), 1, 1e9))
	}
	a.MinimumPlace = yamlfile.Fault{File: file, Line: place.Line, Column: place.Column, Where: c.At("minimum")}
}

func (a *Rate) readThresholds(c *yamlfile.Section) {
	a.z = 3
	fire := readThreshold(c, "fire", &a.fire, "z")
	if fire != nil {
		a.z = fire.Float("z", a.z, 0, 20)
	}
	a.clear = threshold{a.fire.change / 2, a.fire.times}
	if !c.Has("clear") {
		return
	}
	section := readThreshold(c, "clear", &a.clear)
	if a.clear.change*a.fire.change < 0 || math.Abs(a.clear.change) >= math.Abs(a.fire.change) {
		c.File().Fault(section.Node(), section.Where,
			"clear has to be nearer to the baseline than fire, and in the same direction, or the rule would flap")
	}
}

// readThreshold reads a section like {drop: 30%, for: 3}; nil where it is missing.
func readThreshold(c *yamlfile.Section, key string, t *threshold, more ...string) *yamlfile.Section {
	if !c.Require(key, "how far from the baseline") {
		return nil
	}
	s := c.Section(key, append(more, "drop", "rise", "for")...)
	*t = threshold{times: s.Int("for", 1, 1, 1000)}
	if s.Has("drop") == s.Has("rise") {
		s.File().Fault(s.Node(), s.Where, "expected either drop or rise, as a percentage such as 30%%")
	}
	if drop := percentage(s, "drop", 100); drop > 0 {
		t.change = -drop
	}
	if rise := percentage(s, "rise", 100_000); rise > 0 {
		t.change = rise
	}
	return s
}

// percentage reads 30% as 0.3; 0 where the key is not there.
func percentage(s *yamlfile.Section, key string, most float64) float64 {
	text := s.String(key)
	if text == "" {
		return 0
	}
	number, ok := strings.CutSuffix(text, "%")
	p, err := strconv.ParseFloat(number, 64)
	if !ok || err != nil || !(p > 0 && p <= most) {
		s.Fault(key, "expected a percentage such as 30%%, at most %g%%, got %q", most, text)
		return 0
	}
	return p / 100
}
