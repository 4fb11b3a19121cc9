package backtest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
	"time"

	"sluice.example/sluice/pipeline/rules/replay"
)

// Report is what "rules backtest" found; --json prints it as it is.
type Report struct {
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
	// RememberedFrom is where the replay began, so that the rules knew at From what they would have remembered.
	RememberedFrom time.Time `json:"remembered_from"`
	// Events are those that the rules listen to. MaxLate, if any, is how late the latest of them was at most.
	Events  int64           `json:"events"`
	MaxLate string          `json:"max_late,omitempty"`
	Rules   []*ruleBacktest `json:"rules"`
	Against *comparison     `json:"against,omitempty"`
}

type ruleBacktest struct {
	Rule    string           `json:"rule"`
	State   string           `json:"state"`
	Days    []*dayBacktest   `json:"days"`
	Samples []sampleMessage  `json:"samples"`
	Errors  []sampleFailures `json:"errors"`
}

type dayBacktest struct {
	Day       string `json:"day"`
	Messages  int    `json:"messages"`
	Duplicate int    `json:"duplicate"`
	Cooldown  int    `json:"cooldown"`
	Cap       int    `json:"cap"`
	Skipped   int    `json:"skipped"`
	Errors    int    `json:"errors"`
}

type sampleMessage struct {
	At      time.Time       `json:"at"`
	Rule    string          `json:"rule"`
	Subject string          `json:"subject"`
	Key     string          `json:"key"`
	Payload json.RawMessage `json:"payload"`
}

type sampleFailures struct {
	Kind  string `json:"kind"`
	Event string `json:"event"`
	Error string `json:"error"`
}

type comparison struct {
	Both       int             `json:"both"`
	OnlyThese  int             `json:"only_these"`
	OnlyOthers int             `json:"only_others"`
	These      []sampleMessage `json:"only_these_samples"`
	Others     []sampleMessage `json:"only_others_samples"`
}

func (b *backtest) report(replays []*replay.Run) *Report {
	out := &Report{From: b.from, To: b.to}
	if b.maxLate > 0 {
		out.MaxLate = b.maxLate.String()
	}
	rules := map[string]*ruleBacktest{}
	for _, r := range b.set.Rules() {
		rules[r.Name] = &ruleBacktest{Rule: r.Name, State: r.State(), Days: []*dayBacktest{}, Samples: []sampleMessage{}, Errors: []sampleFailures{}}
		out.Rules = append(out.Rules, rules[r.Name])
	}
	days := map[string]map[string]*dayBacktest{}
	on := func(rule string, at time.Time) *dayBacktest {
		day := at.Format(time.DateOnly)
		if days[rule] == nil {
			days[rule] = map[string]*dayBacktest{}
		}
		if days[rule][day] == nil {
			days[rule][day] = &dayBacktest{Day: day}
		}
		return days[rule][day]
	}
	for _, d := range b.inPeriod(replays[0]) {
		day, rule := on(d.Rule, d.At), rules[d.Rule]
		switch {
		case d.Suppressed == "duplicate":
			day.Duplicate++
		case d.Suppressed == "cooldown":
			day.Cooldown++
		case d.Suppressed == "cap":
			day.Cap++
		case d.Skipped != "" && d.Skipped != "shadow":
			day.Skipped += len(d.Destinations)
		default:
			day.Messages += len(d.Destinations)
			if len(rule.Samples) < b.samples {
				rule.Samples = append(rule.Samples, sampleOf(d))
			}
		}
	}
	for _, f := range replays[0].Failed() {
		if f.At.Before(b.from) {
			continue
		}
		on(f.Rule, f.At).Errors++
		if rule := rules[f.Rule]; !slices.ContainsFunc(rule.Errors, func(o sampleFailures) bool { return o.Kind == f.Kind }) {
			rule.Errors = append(rule.Errors, sampleFailures{f.Kind, f.Event.String(), f.Err.Error()})
		}
	}
	for name, found := range days {
		rules[name].Days = slices.SortedFunc(maps.Values(found), func(a, b *dayBacktest) int { return cmp.Compare(a.Day, b.Day) })
	}
	if b.other != nil {
		out.Against = b.compare(replays)
	}
	return out
}

func sampleOf(d replay.Decided) sampleMessage {
	return sampleMessage{d.At, d.Rule, d.Subject, d.Key, d.Payload}
}

// compare finds what only one of the two rule sets would have sent.
func (b *backtest) compare(replays []*replay.Run) *comparison {
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
	mine, mineOrder := sent(replays[0])
	theirs, theirsOrder := sent(replays[1])
	only := func(order []replay.Decided, notIn map[message]bool) (n int, samples []sampleMessage) {
		samples = []sampleMessage{}
		for _, d := range order {
			if !notIn[message{d.Rule, d.Key, d.Event.String()}] {
				if n++; n <= b.samples {
					samples = append(samples, sampleOf(d))
				}
			}
		}
		return n, samples
	}
	c := &comparison{}
	c.OnlyThese, c.These = only(mineOrder, theirs)
	c.OnlyOthers, c.Others = only(theirsOrder, mine)
	c.Both = len(mine) - c.OnlyThese
	return c
}

func (b *backtest) inPeriod(r *replay.Run) []replay.Decided {
	return slices.DeleteFunc(r.Decided(), func(d replay.Decided) bool { return d.At.Before(b.from) })
}

// print writes the report for people.
func (r *Report) print(out io.Writer) error {
	fmt.Fprintf(out, "%d events that the rules listen to, from %s to %s; %s before that to know what the rules would have remembered.\n",
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
			fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\n", rule.Rule, d.Day, d.Messages, d.Duplicate, d.Cooldown, d.Cap, d.Skipped, d.Errors)
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
		fmt.Fprintf(out, "\nCompared: %d messages by both, %d only by these rules, %d only by the others.\n", c.Both, c.OnlyThese, c.OnlyOthers)
		printSamples(out, "Only by these rules:\n", c.These)
		printSamples(out, "Only by the others:\n", c.Others)
	}
	return nil
}

func printSamples(out io.Writer, title string, list []sampleMessage) {
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
