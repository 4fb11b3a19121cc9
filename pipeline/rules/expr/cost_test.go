package expr

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"sluice.example/sluice/pipeline"
)

// TestExpensivePatterns: what a pattern may cost is bounded, by its size when it is compiled and by the text when it
// runs.
func TestExpensivePatterns(t *testing.T) {
	check := func(pattern, wantFault, wantWarning string) {
		t.Helper()
		f, n := scalar(t, fmt.Sprintf("'event.properties.text.matches(\"%s\")'", pattern))
		warning := ""
		sc := NewScope(Event, nil)
		sc.Warn = func(line, col int, where, message string) {
			warning = fmt.Sprintf("%d:%d: %s: %s", line, col, where, message)
		}
		sc.Condition(f, n, "match")
		fault := fmt.Sprint(f.Err())
		if wantFault == "" && f.Err() != nil || !strings.Contains(fault, wantFault) ||
			!strings.HasPrefix(warning, wantWarning) ||
			wantWarning == "" && warning != "" {
			t.Errorf("%s: fault %s, warning %q; want %q, %q", pattern, fault, warning, wantFault, wantWarning)
		}
	}
	check(".{1000}x.{900}y", "1:32: match: the pattern needs 1904 instructions, and at most 1000 are possible", "")
	check("[a-q][^u-z]{200}x", "", "1:32: match: the pattern is too expensive for texts of more than 19 KiB")
	check("(?i)bot|crawl|spider|slurp", "", "")
	check("^https://[a-z]+[.]example[.]com/", "", "")

	f, n := scalar(t, "event.user_id.matches(event.properties.pattern)")
	NewScope(Event, nil).Condition(f, n, "match")
	if err := f.Err(); err == nil || !strings.Contains(err.Error(), "or an event could choose it") {
		t.Errorf("a pattern that the event chooses: %v", err)
	}
}

// TestOneEventHasABudget: an expression that costs too much on a large event is an error of that event, within
// milliseconds; the same expression on others is not.
func TestOneEventHasABudget(t *testing.T) {
	big := strings.Repeat("a", 900_000)
	list := "[" + strings.TrimSuffix(strings.Repeat("1,", 300_000), ",") + "]"
	add := strings.Repeat("event.properties.text + ", 15) + `"" == "x"`
	for _, c := range []struct{ expression, large, small string }{
		{`event.properties.text.matches("[a-q][^u-z]{200}x")`, `{"text":"` + big + `"}`, `{"text":"abc"}`},
		{`event.properties.text.matches("(a|b)+c") || event.properties.text.matches("(a|b)+d")`, `{"text":"` + big + `"}`,
			`{"text":"abc"}`},
		{add, `{"text":"` + big + `"}`, `{"text":"abc"}`},
		{strings.Repeat(`2 in event.properties.list || `, 20) + "false", `{"list":` + list + `}`, `{"list":[1,2]}`},
		{strings.Repeat(`event.properties.list == [2] || `, 20) + "false", `{"list":` + list + `}`, `{"list":[1,2]}`},
	} {
		f, n := scalar(t, "'"+c.expression+"'")
		p := NewScope(Event, nil).Condition(f, n, "match")
		if err := f.Err(); err != nil {
			t.Fatalf("%.60s: %v", c.expression, err)
		}
		var v Vars
		large := pipeline.Event{Properties: []byte(c.large)}
		start := time.Now()
		for range 10 {
			v.SetEvent(&large)
			if _, err := p.Holds(&v); !errors.Is(err, ErrTooExpensive) && err != nil {
				t.Errorf("%.60s on %d bytes: %v", c.expression, len(c.large), err)
			}
		}
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("%.60s on ten events of %d bytes took %s", c.expression, len(c.large), took)
		}
		small := pipeline.Event{Properties: []byte(c.small)}
		v.SetEvent(&small)
		if _, err := p.Holds(&v); err != nil {
			t.Errorf("%.60s on %s after that: %v", c.expression, c.small, err)
		}
	}
}

// TestTooExpensive names the cases that have to end there.
func TestTooExpensive(t *testing.T) {
	big := pipeline.Event{Properties: []byte(`{"text":"` + strings.Repeat("a", 900_000) + `"}`)}
	for expression, want := range map[string]bool{
		`event.properties.text.matches("[a-q][^u-z]{200}x")`:             true,
		`event.properties.text.matches("^b")`:                            false, // as little as four steps a byte
		strings.Repeat("event.properties.text + ", 15) + `"" == "x"`:     true,
		`event.properties.text.startsWith("b")`:                          false,
		`event.properties.text.contains("b")`:                            false,
		`event.properties.text == "b"`:                                   false,
		`size(event.properties.text) > 1000000`:                          false,
		`true || event.properties.text.matches("[a-q][^u-z]{200}x")`:     false, // the other side decides
		`event.user_id == "" && event.properties.text.matches("^b[^c]")`: true,  // more than four million steps
	} {
		f, n := scalar(t, "'"+expression+"'")
		p := NewScope(Event, nil).Condition(f, n, "match")
		if err := f.Err(); err != nil {
			t.Fatalf("%.60s: %v", expression, err)
		}
		var v Vars
		v.SetEvent(&big)
		if _, err := p.Holds(&v); errors.Is(err, ErrTooExpensive) != want {
			t.Errorf("%.60s on 900 kB: %v, want too expensive: %t", expression, err, want)
		}
	}
}

// TestPlainExpressionsAreCheap: those whose cost is not estimated could not cost too much.
func TestPlainExpressionsAreCheap(t *testing.T) {
	sc := NewScope(Event, nil)
	plain := func(text string) (nodes int, most uint64) {
		t.Helper()
		checked, iss := sc.env.Compile(text)
		if iss.Err() != nil {
			t.Fatalf("%s: %v", text, iss.Err())
		}
		tree := checked.NativeRep()
		replaced(tree)
		est, err := sc.env.EstimateCost(checked, sizes{})
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		return plainNodes(tree.Expr()), est.Max
	}
	for _, text := range []string{
		"event.user_id", "event.properties.a", "event.properties", "event", "1", `"a" == event.properties.a`,
		"event.properties.a == event.properties.b", "event.properties == event.properties", "has(event.properties.a)",
		"event.properties.a < event.properties.b && event.properties != event.properties",
		"!has(event.properties.a) || event.properties.b >= 10 && event.user_id != event.session_id",
	} {
		nodes, most := plain(text)
		if nodes > maxPlainNodes {
			t.Errorf("%s is not plain", text)
		}
		if most > maxCost {
			t.Errorf("%s costs up to %d", text, most)
		}
	}
	for _, text := range []string{`event.user_id + "a"`, `event.user_id.matches("a")`, "event.user_id in [\"a\"]",
		"event.properties.a == [1]", `coalesce(event.user_id, "b")`, "event.properties.a.startsWith(\"b\")"} {
		if nodes, _ := plain(text); nodes <= maxPlainNodes {
			t.Errorf("%s is plain", text)
		}
	}
	// The longest ones.
	for _, term := range []string{"event.properties.a == event.properties.b", "event.user_id != event.session_id",
		"event.properties == event.properties"} {
		text := term
		for {
			longer := text + " && " + term
			nodes, most := plain(longer)
			if nodes > maxPlainNodes {
				break
			}
			if text = longer; most > maxCost {
				t.Fatalf("%s has %d parts and costs up to %d", text, nodes, most)
			}
		}
	}
}
