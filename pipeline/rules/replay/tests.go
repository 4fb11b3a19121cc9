package replay

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"sluice.example/sluice/internal/yamlfile"
	"sluice.example/sluice/pipeline"
	"sluice.example/sluice/pipeline/rules"
)

// Load is rules.Load, and runs the tests that stand in the rules. One that fails is a fault like any other, so that
// such rules do not come into force.
func Load(path string, o rules.Options) (*rules.Set, error) {
	set, err := rules.Load(path, o)
	if err != nil {
		return nil, err
	}
	var faults yamlfile.Faults
	for _, r := range set.Rules() {
		for _, t := range r.Tests {
			if fault := run(set, t); fault != nil && !r.Off {
				faults = append(faults, *fault)
			}
		}
	}
	if err := faults.Err(); err != nil {
		return nil, err
	}
	return set, nil
}

// TestResult is what became of one test.
type TestResult struct {
	Rule, Name string
	// Failure is empty if the test passed, otherwise the place and the reason.
	Failure string
}

// Test runs the tests of all rules. Those of rules that are off pass.
func Test(set *rules.Set) []TestResult {
	var out []TestResult
	for _, r := range set.Rules() {
		for _, t := range r.Tests {
			res := TestResult{Rule: r.Name, Name: t.Name}
			if fault := run(set, t); fault != nil {
				res.Failure = fault.String()
			}
			out = append(out, res)
		}
	}
	return out
}

// run returns nil if the rule does what the test expects.
func run(set *rules.Set, t *rules.Test) *yamlfile.Fault {
	if t.Rule.Off {
		return nil
	}
	r := New(set, rules.TestStart)
	r.reviewed = true // a test shows those who review what the rule will do
	r.play(t)
	got := r.messages(t.Rule)
	for i, want := range t.Expect {
		if i >= len(got) {
			return r.fault(t, want.Place, "message %d was not made; there were %d in all", i+1, len(got))
		}
		if diff := differs(&want, got[i]); diff != "" {
			return r.fault(t, want.Place, "message %d: %s", i+1, diff)
		}
	}
	if len(got) > len(t.Expect) {
		d := got[len(t.Expect)]
		return r.fault(t, t.Place,
			"%d messages were made, %d expected; the first of the others: at %s, subject %q, key %q, payload %s",
			len(got), len(t.Expect), d.At.Sub(rules.TestStart), d.Subject, d.Key, d.Payload)
	}
	return nil
}

// play feeds the events of a test, those that are received together as one batch.
func (r *Run) play(t *rules.Test) {
	events := slices.Clone(t.Events)
	slices.SortStableFunc(events, func(a, b pipeline.Event) int { return a.ReceivedAt.Compare(b.ReceivedAt) })
	end := rules.TestStart
	for len(events) > 0 {
		n := 1
		for n < len(events) && events[n].ReceivedAt.Equal(events[0].ReceivedAt) {
			n++
		}
		end = events[0].ReceivedAt
		r.Feed(events[:n], end)
		events = events[n:]
	}
	if t.Until == 0 {
		end = end.Add(t.Rule.Settles())
	} else {
		end = rules.TestStart.Add(t.Until)
	}
	r.Advance(end)
}

// messages are those of one rule. A rule under test sends, also while it is a shadow.
func (r *Run) messages(of *rules.Rule) []*Decided {
	var got []*Decided
	for _, d := range r.decided {
		if d.Rule == of.Name && d.Suppressed == "" {
			if d.Skipped == "shadow" {
				d.Skipped = ""
			}
			got = append(got, d)
		}
	}
	return got
}

func (r *Run) fault(t *rules.Test, place yamlfile.Fault, format string, args ...any) *yamlfile.Fault {
	place.Message = fmt.Sprintf("test %q failed: ", t.Name) + fmt.Sprintf(format, args...)
	for _, f := range r.failures {
		if f.Rule == t.Rule.Name {
			place.Message += fmt.Sprintf("; the rule could not decide about an event: %v", f.Err)
			break
		}
	}
	return &place
}

// differs returns how a message differs from what is expected.
func differs(e *rules.Expectation, d *Decided) string {
	for _, name := range rules.ExpectedTexts {
		want, asked := e.Texts[name]
		if got := d.text(name); asked && got != want {
			return fmt.Sprintf("%s is %q, expected %q", name, got, want)
		}
	}
	if e.At != nil && d.At.Sub(rules.TestStart) != *e.At {
		return fmt.Sprintf("it was decided at %s, expected %s", d.At.Sub(rules.TestStart), *e.At)
	}
	if e.Due != nil && d.SendAt.Sub(rules.TestStart) != *e.Due {
		return fmt.Sprintf("it is due at %s, expected %s", d.SendAt.Sub(rules.TestStart), *e.Due)
	}
	if e.Payload != nil && !containsJSON(parseJSON(d.Payload), parseJSON(e.Payload)) {
		return fmt.Sprintf("payload is %s, expected %s", d.Payload, e.Payload)
	}
	return ""
}

// text is one of the parts that rules.ExpectedTexts lists.
func (d *Decided) text(name string) string {
	switch name {
	case "subject":
		return d.Subject
	case "key":
		return d.Key
	case "send_to":
		return strings.Join(d.Destinations, ",")
	case "reason":
		return d.Skipped
	}
	if d.Skipped != "" {
		return "skipped"
	}
	return "sent"
}

func parseJSON(b []byte) (v any) {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	_ = dec.Decode(&v) // ours, so valid
	return v
}

// containsJSON reports whether got has everything that want asks for; of objects, that is the members that want names.
func containsJSON(got, want any) bool {
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		for k, v := range w {
			if gv, has := g[k]; !ok || !has || !containsJSON(gv, v) {
				return false
			}
		}
		return ok
	case []any:
		g, ok := got.([]any)
		return ok && slices.EqualFunc(g, w, containsJSON)
	case json.Number:
		g, ok := got.(json.Number)
		return ok && sameNumber(g, w)
	}
	return got == want
}

// sameNumber compares whole numbers by their digits, and others by their value.
func sameNumber(a, b json.Number) bool {
	whole := func(n json.Number) bool { return !strings.ContainsAny(string(n), ".eE") }
	if a == b || whole(a) && whole(b) {
		return a == b
	}
	af, aerr := a.Float64()
	bf, berr := b.Float64()
	return aerr == nil && berr == nil && af == bf
}
