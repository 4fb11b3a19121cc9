package backtest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"sluice.example/sluice/pipeline/rules/replay"
)

// Report is what a backtest found.
type Report struct {
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
	// RememberedFrom is where the replay began, so that the rules knew at From what they would have remembered.
	RememberedFrom time.Time `json:"remembered_from"`
	// Events are those that the rules listen to. MaxLate, if any, is how late the latest of them was at most.
	Events  int64         `json:"events"`
	MaxLate string        `json:"max_late,omitempty"`
	Rules   []*RuleReport `json:"rules"`
	Against *Comparison   `json:"against,omitempty"`
}

// RuleReport is what one rule would have decided.
type RuleReport struct {
	Rule string `json:"rule"`
	// State is the rule's, or limit where it is the digest of a limit.
	State   string       `json:"state"`
	Days    []*DayReport `json:"days"`
	Samples []Sample     `json:"samples"`
	Errors  []Failure    `json:"errors"`
}

// DayReport counts the decisions of a day, in UTC: messages, matches that made none, by why, and failures.
type DayReport struct {
	Day       string `json:"day"`
	Messages  int    `json:"messages"`
	Duplicate int    `json:"duplicate"`
	Cooldown  int    `json:"cooldown"`
	Cap       int    `json:"cap"`
	Skipped   int    `json:"skipped"`
	Errors    int    `json:"errors"`
}

// Sample is a message that would have been sent.
type Sample struct {
	At      time.Time       `json:"at"`
	Rule    string          `json:"rule"`
	Subject string          `json:"subject"`
	Key     string          `json:"key"`
	Payload json.RawMessage `json:"payload"`
}

// Failure is one of the kinds of errors that a rule had, with an event that it had it with.
type Failure struct {
	Kind  string `json:"kind"`
	Event string `json:"event"`
	Error string `json:"error"`
}

// Comparison counts the messages of both rule sets, and shows some that only one of them would have sent.
type Comparison struct {
	Both       int      `json:"both"`
	OnlyThese  int      `json:"only_these"`
	OnlyOthers int      `json:"only_others"`
	These      []Sample `json:"only_these_samples"`
	Others     []Sample `json:"only_others_samples"`
}

func (b *backtest) report() *Report {
	out := &Report{From: b.From, To: b.To, RememberedFrom: b.start, Events: b.total}
	if b.MaxLate > 0 {
		out.MaxLate = b.MaxLate.String()
	}
	byName := map[string]*RuleReport{}
	for _, r := range b.Set.Rules() {
		rule := newRuleReport(r.Name, r.State())
		byName[r.Name] = rule
		out.Rules = append(out.Rules, rule)
	}
	named := func(name string) *RuleReport {
		if byName[name] == nil { // the digest of a limit
			byName[name] = newRuleReport(name, "limit")
			out.Rules = append(out.Rules, byName[name])
		}
		return byName[name]
	}
	for _, d := range b.inPeriod(b.replays[0]) {
		named(d.Rule).add(d, b.Samples)
	}
	for _, f := range b.replays[0].Failed() {
		if f.At.Before(b.From) {
			continue
		}
		rule := named(f.Rule)
		rule.on(f.At).Errors++
		if !slices.ContainsFunc(rule.Errors, func(o Failure) bool { return o.Kind == f.Kind }) {
			rule.Errors = append(rule.Errors, Failure{f.Kind, f.Event.String(), f.Err.Error()})
		}
	}
	for _, rule := range out.Rules {
		slices.SortFunc(rule.Days, func(a, b *DayReport) int { return cmp.Compare(a.Day, b.Day) })
	}
	if b.Other != nil {
		out.Against = b.compare()
	}
	return out
}

func newRuleReport(name, state string) *RuleReport {
	return &RuleReport{Rule: name, State: state, Days: []*DayReport{}, Samples: []Sample{}, Errors: []Failure{}}
}

// add counts a decision, and keeps its message as a sample while there is room.
func (r *RuleReport) add(d replay.Decided, samples int) {
	day := r.on(d.At)
	switch {
	case d.Suppressed == "duplicate":
		day.Duplicate++
	case d.Suppressed == "cooldown":
		day.Cooldown++
	case d.Suppressed == "cap", d.Suppressed == "limit":
		day.Cap++
	case d.Skipped != "" && d.Skipped != "shadow":
		day.Skipped += len(d.Destinations)
	default:
		day.Messages += len(d.Destinations)
		if len(r.Samples) < samples {
			r.Samples = append(r.Samples, sampleOf(d))
		}
	}
}

// on is the day of a time.
func (r *RuleReport) on(at time.Time) *DayReport {
	name := at.Format(time.DateOnly)
	for _, d := range r.Days {
		if d.Day == name {
			return d
		}
	}
	d := &DayReport{Day: name}
	r.Days = append(r.Days, d)
	return d
}

func sampleOf(d replay.Decided) Sample {
	return Sample{d.At, d.Rule, d.Subject, d.Key, d.Payload}
}

// compare finds what only one of the two rule sets would have sent.
func (b *backtest) compare() *Comparison {
	type message struct{ rule, key, event string }
	sent := func(r *replay.Run) (map[message]bool, []replay.Decided) {
		found, order := map[message]bool{}, []replay.Decided{}
		for _, d := range b.inPeriod(r) {
			if m := (message{d.Rule, d.Key, d.Event.String()}); d.Suppressed == "" && d.Skipped == "" && !found[m] {
				found[m] = true
				order = append(order, d)
			}
		}
		return found, order
	}
	mine, mineOrder := sent(b.replays[0])
	theirs, theirsOrder := sent(b.replays[1])
	only := func(order []replay.Decided, notIn map[message]bool) (n int, samples []Sample) {
		samples = []Sample{}
		for _, d := range order {
			if !notIn[message{d.Rule, d.Key, d.Event.String()}] {
				if n++; n <= b.Samples {
					samples = append(samples, sampleOf(d))
				}
			}
		}
		return n, samples
	}
	c := &Comparison{}
	c.OnlyThese, c.These = only(mineOrder, theirs)
	c.OnlyOthers, c.Others = only(theirsOrder, mine)
	c.Both = len(mine) - c.OnlyThese
	return c
}

func (b *backtest) inPeriod(r *replay.Run) []replay.Decided {
	return slices.DeleteFunc(r.Decided(), func(d replay.Decided) bool { return d.At.Before(b.From) })
}

// Print writes the report for people.
func (r *Report) Print(out io.Writer) error {
	fmt.Fprintf(out, "%d events that the rules listen to, from %s to %s; %s before that to know what the rules would "+
		"have remembered.\n",
		r.Events, r.From.Format(time.RFC3339), r.To.Format(time.RFC3339), r.From.Sub(r.RememberedFrom))
	if r.MaxLate != "" {
		fmt.Fprintf(out, "Left out: events that happened more than %s (--max-late) before that.\n", r.MaxLate)
	}
	fmt.Fprintln(out)
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "RULE\tDAY\tMESSAGES\tDUPLICATE\tCOOLDOWN\tCAP\tSKIPPED\tERRORS")
	for _, rule := range r.Rules {
		if rule.State == "off" {
			fmt.Fprintf(table, "%s\toff\n", rule.Rule)
			continue
		}
		for _, d := range rule.Days {
			fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\n", rule.Rule, d.Day, d.Messages, d.Duplicate, d.Cooldown, d.Cap,
				d.Skipped, d.Errors)
		}
		if len(rule.Days) == 0 {
			fmt.Fprintf(table, "%s\t-\t0\t0\t0\t0\t0\t0\n", rule.Rule)
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, rule := range r.Rules {
		printSamples(out, "\n"+rule.Rule+", the first messages:\n", rule.Samples)
	}
	for _, rule := range r.Rules {
		for _, f := range rule.Errors {
			fmt.Fprintf(out, "\n%s could not decide (%s), for example about event %s: %s\n", rule.Rule, f.Kind, f.Event, f.Error)
		}
	}
	if c := r.Against; c != nil {
		fmt.Fprintf(out, "\nCompared: %d messages by both, %d only by these rules, %d only by the others.\n", c.Both,
			c.OnlyThese, c.OnlyOthers)
		printSamples(out, "Only by these rules:\n", c.These)
		printSamples(out, "Only by the others:\n", c.Others)
	}
	return nil
}

func printSamples(out io.Writer, title string, list []Sample) {
	if len(list) == 0 {
		return
	}
	fmt.Fprint(out, title)
	for _, d := range list {
		payload := string(d.Payload)
		if len(payload) > 200 {
			payload = payload[:200] + "..."
		}
		fmt.Fprintf(out, "  %s  %s  subject %q  key %q  %s\n", d.At.Format(time.RFC3339), d.Rule, d.Subject, d.Key, payload)
	}
}
