package rules

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"sluice.example/sluice/internal/jsontext"
	"sluice.example/sluice/internal/yamlfile"
	"sluice.example/sluice/pipeline"
)

// Test is a test that stands in a rule: events on a virtual clock, and the messages that they lead to. Package replay
// runs it.
type Test struct {
	Rule *Rule
	Name string
	// Events are what happens, by when they are received.
	Events []pipeline.Event
	// Until is when the test ends, counted from TestStart; 0 once nothing more can come of the last event.
	Until  time.Duration
	Expect []Expectation

	// Place is where the test stands.
	Place yamlfile.Fault
}

// Expectation is what is wanted of one message; what is not said does not matter.
type Expectation struct {
	// Texts are wanted of the parts that ExpectedTexts lists.
	Texts map[string]string
	// At is when it is decided, counted from TestStart; nil for any time.
	At *time.Duration
	// Due is when it may be sent, counted like At: after a grace, or when the limits over several rules have room.
	Due *time.Duration
	// Payload is JSON that the message's payload has to contain; nil for any.
	Payload []byte
	// Place is where the expectation stands.
	Place yamlfile.Fault
}

// ExpectedTexts are the parts of a message that an expectation can ask for as text, beside at and payload.
var ExpectedTexts = []string{"key", "reason", "send_to", "status", "subject"}

// TestStart is when every test begins.
var TestStart = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func (l *loader) tests(r *Rule, c *yamlfile.Section) {
	n := c.Get("tests")
	if n == nil {
		return
	}
	for i, item := range l.src.Items(n, c.At("tests"), "a list of tests") {
		where := fmt.Sprintf("%s[%d]", c.At("tests"), i)
		s := l.src.Section(item, where, "name", "events", "until", "expect")
		t := &Test{Rule: r, Name: s.String("name"), Place: l.place(item, where)}
		t.Until = s.Duration("until", 0, 0, maxDuration)
		s.Require("name", "what the test shows")
		if s.Require("events", "what happens") {
			at := time.Duration(0)
			for j, e := range l.src.Items(s.Get("events"), s.At("events"), "a list of events") {
				made := l.testEvents(r, e, fmt.Sprintf("%s.events[%d]", where, j), &at, len(t.Events))
				t.Events = append(t.Events, made...)
			}
		}
		if s.Require("expect", "the messages that it leads to; [] for none") {
			for j, e := range l.src.Items(s.Get("expect"), s.At("expect"), "a list of messages") {
				t.Expect = append(t.Expect, l.expectation(e, where, j))
			}
		}
		r.Tests = append(r.Tests, t)
	}
}

func (l *loader) place(n *yaml.Node, where string) yamlfile.Fault {
	return yamlfile.Fault{File: l.src.Name, Line: n.Line, Column: n.Column, Where: where}
}

const (
	// maxRepeat bounds the events that one line of a test stands for.
	maxRepeat = 100_000
	// maxTestEvents bounds those of all tests of a file: they are made when it is read.
	maxTestEvents = 500_000
)

// testEvents reads an event of a test: at is when it is received, counted from the start of the test, and stays the
// same as for the event before; late is by how much earlier it occurred. With repeat and every it stands for many.
func (l *loader) testEvents(r *Rule, n *yaml.Node, where string, at *time.Duration, made int) []pipeline.Event {
	s := l.src.Section(n, where, "at", "late", "repeat", "every", "event_name", "anonymous_id", "user_id", "session_id",
		"page_url", "referrer", "user_agent", "properties")
	*at = s.Duration("at", *at, 0, maxDuration)
	s.Require("event_name", "what happens")
	ev := pipeline.Event{
		Tenant:      1,
		Name:        s.String("event_name"),
		AnonymousID: s.String("anonymous_id"),
		UserID:      s.String("user_id"),
		SessionID:   s.String("session_id"),
		PageURL:     s.String("page_url"),
		Referrer:    s.String("referrer"),
		UserAgent:   s.String("user_agent"),
	}
	if len(r.Tenants) > 0 {
		ev.Tenant = r.Tenants[0]
	}
	if p := s.Get("properties"); p != nil {
		ev.Properties = yamlJSON(nil, p)
	}
	repeat := s.Int("repeat", 1, 1, maxRepeat)
	every := s.Duration("every", 0, 0, maxDuration)
	late := s.Duration("late", 0, 0, maxDuration)
	if l.testEventsMade += repeat; l.testEventsMade > maxTestEvents {
		s.Fault("repeat", "the tests of this file have more than %d events here; repeat less", maxTestEvents)
		return nil
	}
	events := make([]pipeline.Event, repeat)
	for i := range events {
		events[i] = ev
		events[i].ID = pipeline.HashUUID(fmt.Sprint(made + i))
		events[i].ReceivedAt = TestStart.Add(*at + time.Duration(i)*every)
		events[i].OccurredAt = events[i].ReceivedAt.Add(-late)
	}
	return events
}

func (l *loader) expectation(n *yaml.Node, test string, i int) Expectation {
	s := l.src.Section(n, fmt.Sprintf("%s.expect[%d]", test, i), append(ExpectedTexts, "at", "due", "payload")...)
	e := Expectation{Place: l.place(n, test), Texts: map[string]string{}}
	for _, name := range ExpectedTexts {
		if s.Has(name) {
			e.Texts[name] = strings.Join(s.Strings(name), ",")
		}
	}
	if s.Has("at") {
		at := s.Duration("at", 0, 0, maxDuration)
		e.At = &at
	}
	if s.Has("due") {
		due := s.Duration("due", 0, 0, maxDuration)
		e.Due = &due
	}
	if p := s.Get("payload"); p != nil {
		e.Payload = yamlJSON(nil, p)
	}
	return e
}

// yamlJSON appends a YAML value as JSON; numbers keep their digits.
func yamlJSON(dst []byte, n *yaml.Node) []byte {
	switch n = yamlfile.Resolve(n); n.Kind {
	case yaml.MappingNode:
		dst = append(dst, '{')
		for i := 0; i+1 < len(n.Content); i += 2 {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = yamlJSON(append(jsontext.AppendString(dst, n.Content[i].Value), ':'), n.Content[i+1])
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
	return jsontext.AppendString(dst, n.Value)
}
