package evaluate

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"sluice.example/sluice/internal/yamlfile"
	"sluice.example/sluice/pipeline"
)

// inlineTest is a test that stands in a rule: events on a virtual clock, and the messages that they lead to.
type inlineTest struct {
	rule   *rule
	src    *yamlfile.File
	node   *yaml.Node
	where  string
	name   string
	events []pipeline.Event
	until  time.Duration
	expect []expectation
}

// expectation is what is wanted of one message; what is not said does not matter.
type expectation struct {
	node    *yaml.Node
	texts   map[string]string
	at      *time.Duration
	payload []byte
}

// TestResult is what became of one test.
type TestResult struct {
	Rule, Name string
	// Failure is empty if the test passed, and otherwise says where and why.
	Failure string
}

// testStart is when every test begins.
var testStart = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// Test runs the tests of all rules that are not off.
func (s *Set) Test() []TestResult {
	var out []TestResult
	for _, r := range s.rules {
		for _, t := range r.tests {
			res := TestResult{Rule: r.name, Name: t.name}
			if !r.off {
				if fault := t.run(s); fault != nil {
					res.Failure = fault.String()
				}
			}
			out = append(out, res)
		}
	}
	return out
}

func (l *loader) tests(r *rule, c *yamlfile.Section) {
	n := c.Get("tests")
	if n == nil {
		return
	}
	for i, item := range l.src.Items(n, c.At("tests"), "a list of tests") {
		where := fmt.Sprintf("%s[%d]", c.At("tests"), i)
		s := l.src.Section(item, where, "name", "events", "until", "expect")
		t := &inlineTest{rule: r, src: l.src, node: item, where: where, name: s.String("name")}
		t.until = s.Duration("until", 0, 0, maxDuration)
		s.Require("name", "what the test shows")
		if s.Require("events", "what happens") {
			at := time.Duration(0)
			for j, e := range l.src.Items(s.Get("events"), s.At("events"), "a list of events") {
				made := l.testEvents(r, e, fmt.Sprintf("%s.events[%d]", where, j), &at, len(t.events))
				t.events = append(t.events, made...)
			}
		}
		if s.Require("expect", "the messages that it leads to; [] for none") {
			for j, e := range l.src.Items(s.Get("expect"), s.At("expect"), "a list of messages") {
				t.expect = append(t.expect, l.expectation(e, fmt.Sprintf("%s.expect[%d]", where, j)))
			}
		}
		r.tests = append(r.tests, t)
	}
}

// maxRepeat bounds the events that one line of a test stands for.
const maxRepeat = 100_000

// testEvents reads an event of a test: at is when it is received, counted from the start of the test, and stays the
// same as for the event before; late is by how much earlier it occurred. With repeat and every it stands for many.
func (l *loader) testEvents(r *rule, n *yaml.Node, where string, at *time.Duration, made int) []pipeline.Event {
	s := l.src.Section(n, where, "at", "late", "repeat", "every", "event_name", "anonymous_id", "user_id", "session_id", "page_url", "referrer", "user_agent", "properties")
	*at = s.Duration("at", *at, 0, maxDuration)
	s.Require("event_name", "what happens")
	ev := pipeline.Event{Tenant: 1, Name: s.String("event_name"), AnonymousID: s.String("anonymous_id"), UserID: s.String("user_id"),
		SessionID: s.String("session_id"), PageURL: s.String("page_url"), Referrer: s.String("referrer"), UserAgent: s.String("user_agent")}
	if len(r.tenants) > 0 {
		ev.Tenant = r.tenants[0]
	}
	if p := s.Get("properties"); p != nil {
		ev.Properties = yamlJSON(nil, p)
	}
	repeat := s.Int("repeat", 1, 1, maxRepeat)
	every := s.Duration("every", 0, 0, maxDuration)
	late := s.Duration("late", 0, 0, maxDuration)
	events := make([]pipeline.Event, repeat)
	for i := range events {
		events[i] = ev
		events[i].ID = pipeline.HashUUID(fmt.Sprint(made + i))
		events[i].ReceivedAt = testStart.Add(*at + time.Duration(i)*every)
		events[i].OccurredAt = events[i].ReceivedAt.Add(-late)
	}
	return events
}

// expectedTexts are the parts of a message that a test can ask for, beside at and payload.
var expectedTexts = map[string]func(*Decided) string{
	"subject": func(d *Decided) string { return d.Subject },
	"key":     func(d *Decided) string { return d.Key },
	"send_to": func(d *Decided) string { return strings.Join(d.Destinations, ",") },
	"status":  func(d *Decided) string { return status(d) },
	"reason":  func(d *Decided) string { return d.Skipped },
}

func status(d *Decided) string {
	if d.Skipped != "" {
		return "skipped"
	}
	return "sent"
}

func (l *loader) expectation(n *yaml.Node, where string) expectation {
	s := l.src.Section(n, where, append(slices.Collect(maps.Keys(expectedTexts)), "at", "payload")...)
	e := expectation{node: n, texts: map[string]string{}}
	for name := range expectedTexts {
		if s.Get(name) != nil {
			e.texts[name] = strings.Join(s.Strings(name), ",")
		}
	}
	if s.Get("at") != nil {
		at := s.Duration("at", 0, 0, maxDuration)
		e.at = &at
	}
	if p := s.Get("payload"); p != nil {
		e.payload = yamlJSON(nil, p)
	}
	return e
}

// run gives nil if the rule does what the test expects.
func (t *inlineTest) run(set *Set) *yamlfile.Fault {
	r := NewReplay(DefaultConfig(), set, testStart)
	events := slices.Clone(t.events)
	slices.SortStableFunc(events, func(a, b pipeline.Event) int { return a.ReceivedAt.Compare(b.ReceivedAt) })
	end := testStart
	for len(events) > 0 {
		n := 1
		for n < len(events) && events[n].ReceivedAt.Equal(events[0].ReceivedAt) {
			n++
		}
		end = events[0].ReceivedAt
		r.Feed(events[:n], end)
		events = events[n:]
	}
	if t.until == 0 {
		end = end.Add(t.rule.settles())
	} else {
		end = testStart.Add(t.until)
	}
	r.Advance(end)
	var got []*Decided
	for _, d := range r.decided {
		// A rule under test sends, also while it is a shadow.
		if d.Rule == t.rule.name && d.Suppressed == "" {
			if d.Skipped == "shadow" {
				d.Skipped = ""
			}
			got = append(got, d)
		}
	}
	fault := func(n *yaml.Node, format string, args ...any) *yamlfile.Fault {
		msg := fmt.Sprintf("test %q failed: ", t.name) + fmt.Sprintf(format, args...)
		for _, f := range r.failures {
			if f.Rule == t.rule.name {
				msg += fmt.Sprintf("; the rule could not decide about an event: %v", f.Err)
				break
			}
		}
		return &yamlfile.Fault{File: t.src.Name, Line: n.Line, Column: n.Column, Where: t.where, Message: msg}
	}
	for i, want := range t.expect {
		if i >= len(got) {
			return fault(want.node, "message %d was not made; there were %d in all", i+1, len(got))
		}
		if diff := want.differs(got[i]); diff != "" {
			return fault(want.node, "message %d: %s", i+1, diff)
		}
	}
	if len(got) > len(t.expect) {
		d := got[len(t.expect)]
		return fault(t.node, "%d messages were made, %d expected; the first of the others: at %s, subject %q, key %q, payload %s",
			len(got), len(t.expect), d.At.Sub(testStart), d.Subject, d.Key, d.Payload)
	}
	return nil
}

// settles is how long after the last event a rule may still decide because of it.
func (r *rule) settles() time.Duration {
	d := r.limits.digestAfter + time.Minute
	if a := r.absence; a != nil {
		d += a.Within + a.grace
	}
	if a := r.rate; a != nil {
		d += a.Window + a.Settle
	}
	return d
}

// differs says in which way a message is not as expected.
func (e expectation) differs(d *Decided) string {
	for _, name := range slices.Sorted(maps.Keys(e.texts)) {
		if got := expectedTexts[name](d); got != e.texts[name] {
			return fmt.Sprintf("%s is %q, expected %q", name, got, e.texts[name])
		}
	}
	if e.at != nil && d.At.Sub(testStart) != *e.at {
		return fmt.Sprintf("it was decided at %s, expected %s", d.At.Sub(testStart), *e.at)
	}
	if e.payload != nil && !containsJSON(parseJSON(d.Payload), parseJSON(e.payload)) {
		return fmt.Sprintf("payload is %s, expected %s", d.Payload, e.payload)
	}
	return ""
}

func parseJSON(b []byte) (v any) {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	_ = dec.Decode(&v) // ours, so valid
	return v
}

// containsJSON says whether got has everything that want asks for; of objects, that is the members that want names.
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
		gf, gerr := g.Float64()
		wf, werr := w.Float64()
		return ok && (g == w || gerr == nil && werr == nil && gf == wf && !(isWhole(string(g)) && isWhole(string(w))))
	}
	return got == want
}

// isWhole: whole numbers are compared by their digits, others by their value.
func isWhole(s string) bool { return !strings.ContainsAny(s, ".eE") }

// yamlJSON appends a YAML value as JSON; numbers keep their digits.
func yamlJSON(dst []byte, n *yaml.Node) []byte {
	switch n = yamlfile.Resolve(n); n.Kind {
	case yaml.MappingNode:
		dst = append(dst, '{')
		for i := 0; i+1 < len(n.Content); i += 2 {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = yamlJSON(append(appendString(dst, n.Content[i].Value), ':'), n.Content[i+1])
		}
		return append(dst, '}')
	case yaml.SequenceNode:
		dst = append(dst, '[')
		for i, item := range n.Content {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = yamlJSON(dst, item)
		}
		return append(dst, ']')
	}
	switch n.Tag {
	case "!!null":
		return append(dst, "null"...)
	case "!!bool", "!!int", "!!float":
		if json.Valid([]byte(n.Value)) {
			return append(dst, n.Value...)
		}
	}
	return appendString(dst, n.Value)
}
