package expr

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"sluice.example/sluice/internal/yamlfile"
	"sluice.example/sluice/pipeline"
)

// scalar reads a YAML file that is nothing but a value.
func scalar(t testing.TB, text string) (*yamlfile.File, *yaml.Node) {
	t.Helper()
	f := yamlfile.Parse("f.yaml", []byte(text))
	if err := f.Err(); err != nil {
		t.Fatal(err)
	}
	return f, f.Root()
}

func declared(t testing.TB, pairs ...string) Properties {
	t.Helper()
	props := Properties{}
	for i := 0; i < len(pairs); i += 2 {
		var ok bool
		if props[pairs[i]], ok = TypeNamed(pairs[i+1]); !ok {
			t.Fatalf("%s is not a type", pairs[i+1])
		}
	}
	return props
}

func varsOf(properties string) *Vars {
	v := &Vars{}
	v.SetEvent(&pipeline.Event{
		ID: pipeline.HashUUID("e1"), ClientID: "e1", Tenant: 1, Name: "x", UserID: "u", Properties: []byte(properties),
		OccurredAt: time.Date(2026, 11, 30, 12, 0, 0, 5e8, time.UTC), ReceivedAt: time.Date(2026, 11, 30, 12, 0, 1, 0,
			time.UTC),
	})
	return v
}

// TestTemplates: the payload that a value of the rules file stands for.
func TestTemplates(t *testing.T) {
	check := func(template, properties, want string) {
		t.Helper()
		f, n := scalar(t, template)
		tpl := NewScope(Event, nil).Template(f, n, "payload")
		if err := f.Err(); err != nil {
			t.Fatalf("%s: %v", template, err)
		}
		got, err := tpl.Append(nil, varsOf(properties), 1000)
		if err != nil {
			got = []byte("error: " + err.Error())
		}
		if string(got) != want {
			t.Errorf("%s on %s:\n got %s\nwant %s", template, properties, got, want)
		}
	}
	// The shape is the file's.
	check(`{}`, ``, `{}`)
	check(`[]`, ``, `[]`)
	check(`{b: {c: [1, [2]]}, a: event.user_id}`, ``, `{"b":{"c":[1,[2]]},"a":"u"}`)
	check(`{"q\"uote": '"x"'}`, ``, `{"q\"uote":"x"}`)
	check(`{a: &x {n: 1}, b: *x}`, ``, `{"a":{"n":1},"b":{"n":1}}`)
	// A value of the event is passed on as the client wrote it.
	check(`event.properties.n`, `{"n": 1.50}`, `1.50`)
	check(`event.properties.o`, `{"o": {"a" : [1, 2.0]}}`, `{"a" : [1, 2.0]}`)
	check(`event.properties`, ``, `{}`)
	check(`{n: event.properties.n}`, `{"n":null}`, `{"n":null}`)
	check(`{n: event.properties.n}`, `{}`, `error: the event has no "properties.n"`)
	check(`event`, `{"a":1}`,
		`{"event_id":"e1","event_name":"x","occurred_at":"2026-11-30T12:00:00.5Z","user_id":"u","properties":{"a":1}}`)
	// What is worked out has JSON's types.
	check(`[event.occurred_at, event.received_at - event.occurred_at, b"ab", 1u, 2.5, true, 'null']`, ``,
		`["2026-11-30T12:00:00.5Z","500ms","YWI=",1,2.5,true,null]`)
	check(`'{"b": 1, "a": [event.user_id]}'`, ``, `{"a":["u"],"b":1}`)
	check(`'{1: "x"}'`, ``, `error: a map whose keys are not strings can't be written as JSON`)
	check(`1.0 / 0.0`, ``, `error: +Inf can't be written as JSON`)
	check(`'"line\n<b>é"'`, ``, `"line\n<b>é"`)
	check(`event.user_id + event.properties.a`, `{"a":"b"}`, `"ub"`)
}

// TestTemplateIsBounded: a payload stops to grow once it is too large.
func TestTemplateIsBounded(t *testing.T) {
	f, n := scalar(t, `{a: event.properties.a, b: event.properties.a, c: event.properties.a}`)
	tpl := NewScope(Event, nil).Template(f, n, "payload")
	v := varsOf(`{"a":"` + strings.Repeat("x", 100) + `"}`)
	if got, err := tpl.Append(nil, v, 150); !errors.Is(err, ErrTooLarge) || len(got) > 300 {
		t.Errorf("%d bytes, %v; want ErrTooLarge after the second value", len(got), err)
	}
	if _, err := tpl.Append(nil, v, 400); err != nil {
		t.Errorf("with room for all: %v", err)
	}
	deep := strings.Repeat("[", maxNesting+2) + "1" + strings.Repeat("]", maxNesting+2)
	f, n = scalar(t, deep)
	NewScope(Event, nil).Template(f, n, "payload")
	if err := f.Err(); err == nil || !strings.Contains(err.Error(), "nested 10 deep at most") {
		t.Errorf("%s: %v", deep, err)
	}
}

func TestKeys(t *testing.T) {
	wrongType := errors.New("an error of its own")
	check := func(expression, properties, want string, wantErr error) {
		t.Helper()
		f, n := scalar(t, expression)
		p := NewScope(Event, nil).Key(f, n, "key")
		if err := f.Err(); err != nil {
			t.Fatalf("%s: %v", expression, err)
		}
		got, err := p.Text(varsOf(properties))
		if wantErr == wrongType && err != nil && !errors.Is(err, ErrNoKey) && !errors.Is(err, ErrLongKey) {
			wantErr = err
		}
		if got != want || !errors.Is(err, wantErr) {
			t.Errorf("%s on %s is %q, %v; want %q, %v", expression, properties, got, err, want, wantErr)
		}
	}
	check("event.user_id", "", "u", nil)
	check("event.event_id", "", "e1", nil)
	check("event.session_id", "", "", ErrNoKey)
	check("event.properties.a", `{"a":7}`, "7", nil)
	check("event.properties.a", `{"a":-9007199254740993}`, "-9007199254740993", nil)
	check("event.properties.a", `{"a":18446744073709551615}`, "18446744073709551615", nil)
	check("event.properties.a", `{"a":"x"}`, "x", nil)
	check("event.properties.a", `{"a":""}`, "", ErrNoKey)
	check("event.properties.a", `{"a":null}`, "", ErrNoKey)
	check("event.properties.a", `{"a":"`+strings.Repeat("x", MaxKeyBytes)+`"}`, strings.Repeat("x", MaxKeyBytes), nil)
	check("event.properties.a", `{"a":"`+strings.Repeat("x", MaxKeyBytes+1)+`"}`, "", ErrLongKey)
	check("event.properties.a", `{"a":1.5}`, "", wrongType)
	check("event.properties.a", `{"a":[1]}`, "", wrongType)
	check("event.properties.a", `{}`, "", wrongType)
	check(`event.user_id + "/" + string(event.properties.a)`, `{"a":7}`, "u/7", nil)
}

// TestScopes: each kind of expression names its own things and no others.
func TestScopes(t *testing.T) {
	names := map[About]string{Event: "event.event_name", Timer: "trigger.event_name", Digest: "digest.subject",
		Rate: "rate.state"}
	for about := range names {
		for of, expression := range names {
			f, n := scalar(t, expression)
			NewScope(about, nil).Key(f, n, "key")
			if err := f.Err(); (err == nil) != (of == about) {
				t.Errorf("%s in a scope of kind %d: %v", expression, about, err)
			}
		}
	}
	f, n := scalar(t, `[string(since), key]`)
	tpl := NewScope(Timer, nil).Template(f, n, "payload")
	var v Vars
	v.SetTimer(&pipeline.Event{Name: "x"}, "k", time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC))
	if got, err := tpl.Append(nil, &v, 100); err != nil || string(got) != `["2026-11-30T12:00:00Z","k"]` {
		t.Errorf("key and since of a timer are %s, %v", got, err)
	}
}

// TestNothingLoopsOrReachesOutside: what the language leaves out.
func TestNothingLoopsOrReachesOutside(t *testing.T) {
	for _, expression := range []string{
		"[1, 2].all(x, x > 0)", "[1].map(x, x)", "[1].exists(x, true)", "[1].filter(x, true)", "event.properties.map(k, k)",
		"now()", "env('HOME')", "event{user_id: 'x'}.user_id == 'x'",
	} {
		f, n := scalar(t, "'"+strings.ReplaceAll(expression, "'", "''")+"'")
		p := NewScope(Event, nil).Condition(f, n, "match")
		if f.Err() == nil {
			if holds, err := p.Holds(varsOf("{}")); err == nil {
				t.Errorf("%s is %t; want a fault", expression, holds)
			}
		}
	}
}

// TestFaultsOfExpressions have the place of the word that is wrong, and the known one that was probably meant.
func TestFaultsOfExpressions(t *testing.T) {
	props := declared(t, "amount", "int", "list", "list")
	check := func(text, want string) {
		t.Helper()
		f, n := scalar(t, text)
		NewScope(Event, props).Condition(f, n, "match")
		if err := f.Err(); err == nil || !strings.HasPrefix(err.Error(), "f.yaml:"+want) {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
	check("event.propertis.amount > 1", `1:6: match: undefined field 'propertis'; did you mean "properties"?`)
	check("event.properties.amont > 1", `1:17: match: undefined field 'amont'; did you mean "amount"?`)
	check("evnt.user_id == ''", `1:1: match: undeclared reference to 'evnt'; did you mean "event"?`)
	check("|\n  true &&\n  event.user_id = 'x'", "3:17: match: Syntax error")
	check("'event.user_id.matchs(\"x\")'", `1:22: match: undeclared reference to 'matchs'`)
	check("event.user_id", "1:1: match: the expression is of type string, but has to be a condition (bool)")
	check("event.properties.amount == 'x'", "1:25: match: found no matching overload")
	check("[a, b]", "1:1: match: expected an expression, got a list")
	check("event.user_id.matches('[')", "1:23: match: error parsing regexp: missing closing ]")
	check("event.occurred_at > timestamp('today')", "1:31: match: invalid timestamp argument")
	check(strings.Repeat("event.user_id.matches('(a|b|c)+[xyz]*.*(foo|bar)') && ", 120)+"true",
		"1:1: match: the expression can cost up to")
}

// TestMergedDeclarations: what two kinds of events declare differently is only known when it is met.
func TestMergedDeclarations(t *testing.T) {
	props := declared(t, "a", "int", "b", "string")
	props.Merge(declared(t, "a", "double", "c", "bool", "b", "string"))
	f, n := scalar(t, `event.properties.a == "x" || event.properties.b == "x" || event.properties.c`)
	p := NewScope(Event, props).Condition(f, n, "match")
	if err := f.Err(); err != nil {
		t.Fatal(err)
	}
	if holds, err := p.Holds(varsOf(`{"a":"x"}`)); err != nil || !holds {
		t.Errorf("a text where one says int and one says double: %t, %v", holds, err)
	}
	f, n = scalar(t, "event.properties.d == 1")
	if NewScope(Event, props).Condition(f, n, "match"); f.Err() == nil {
		t.Error("a property that nobody declares is not a fault")
	}
}

func TestCoalesce(t *testing.T) {
	check := func(expression, properties, want string) {
		t.Helper()
		f, n := scalar(t, expression)
		tpl := NewScope(Event, nil).Template(f, n, "payload")
		if err := f.Err(); err != nil {
			t.Fatal(err)
		}
		if got, err := tpl.Append(nil, varsOf(properties), 100); err != nil || string(got) != want {
			t.Errorf("%s on %s is %s, %v; want %s", expression, properties, got, err, want)
		}
	}
	both := "coalesce(event.properties.a, event.properties.b)"
	check(both, `{"a":1,"b":2}`, "1")
	check(both, `{"b":2}`, "2")
	check(both, `{"a":null,"b":2}`, "2")
	check(both, `{"a":"","b":2}`, "2")
	check(both, `{"a":0,"b":2}`, "0")
	check(both, `{"a":false,"b":2}`, "false")
	check(both, `{}`, "null")
	check("coalesce(event.session_id, event.anonymous_id, event.user_id, 'nobody')", ``, `"u"`)
	check("coalesce(event.properties.a.b.c, 'none')", `{"a":{"b":1}}`, `"none"`)
}

// TestObjects: JSON objects compare, are searched and counted as CEL's maps.
func TestObjects(t *testing.T) {
	for expression, want := range map[string]bool{
		`event.properties == {"a": 1, "o": {"x": [1, 2]}}`: true,
		`event.properties.o == {"x": [1, 2.0]}`:            true,
		`event.properties.o == {"x": [2, 1]}`:              false,
		`event.properties.o == {}`:                         false,
		`"a" in event.properties`:                          true,
		`"b" in event.properties`:                          false,
		`size(event.properties) == 2`:                      true, // a key that is repeated counts once
		`event.properties["a"] == 1`:                       true,
		`type(event.properties.o) == map`:                  true,
		`event.properties.o.x[1] == 2`:                     true,
	} {
		f, n := scalar(t, "'"+expression+"'")
		p := NewScope(Event, nil).Condition(f, n, "match")
		if err := f.Err(); err != nil {
			t.Fatalf("%s: %v", expression, err)
		}
		if got, err := p.Holds(varsOf(`{"a":0,"o":{"x":[1,2]},"a":1}`)); err != nil || got != want {
			t.Errorf("%s is %t, %v; want %t", expression, got, err, want)
		}
	}
}

// TestVarsAreReused: what one event left behind is not seen of the next.
func TestVarsAreReused(t *testing.T) {
	f, n := scalar(t, "event.properties.a")
	tpl := NewScope(Event, nil).Template(f, n, "payload")
	var v Vars
	for i, properties := range []string{`{"a":1,"b":2,"c":3}`, `{"a":2}`, ``, `{"b":1}`, `{"a":3}`} {
		v.SetEvent(&pipeline.Event{Properties: []byte(properties)})
		got, err := tpl.Append(nil, &v, 100)
		want := map[int]string{0: "1", 1: "2", 4: "3"}[i]
		if string(got) != want || (err == nil) != (want != "") {
			t.Errorf("event %d: %s, %v; want %q", i, got, err, want)
		}
	}
	v.SetRate([]byte(`{"state":"firing","value":2}`))
	f, n = scalar(t, "rate.state + string(rate.value)")
	tpl = NewScope(Rate, nil).Template(f, n, "payload")
	if got, err := tpl.Append(nil, &v, 100); err != nil || string(got) != `"firing2"` {
		t.Errorf("a rate after events: %s, %v", got, err)
	}
}

func BenchmarkCondition(b *testing.B) {
	for _, expression := range []string{"event.properties.d == 4.5", "event.properties.d * 2.0 > 9.0"} {
		b.Run(fmt.Sprint(expression), func(b *testing.B) {
			f, n := scalar(b, "'"+expression+"'")
			p := NewScope(Event, nil).Condition(f, n, "match")
			v := varsOf(`{"a":1,"b":"two","c":true,"d":4.5}`)
			b.ReportAllocs()
			for b.Loop() {
				if holds, err := p.Holds(v); err != nil || holds != strings.Contains(expression, "==") {
					b.Fatal(holds, err)
				}
			}
		})
	}
}
