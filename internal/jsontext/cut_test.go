package jsontext

import (
	"bytes"
	"strings"
	"testing"
)

// TestCut: what follows a "|" is where the element ends; without one, that is not clear.
func TestCut(t *testing.T) {
	for _, marked := range []string{
		// The element can be cut out.
		`NaN|]`,
		`-Infinity |,{}]`,
		`{"a":NaN}|,{"b":1}]`,
		`{"a":"\x00"}|]`,
		`{"a":"\x"}|,{"b":"]"}]`,
		`{"a":[1,2,NaN,{"b":"},{"}]}|,1]`,
		`{"a":1,}|,1]`,
		`{"a":01}|,1]`,
		`{"a":'x'}|,1]`,
		`{a:1}|,1]`,
		`{"a":"x\\"` + "\n" + `}|,1]`,
		`[` + strings.Repeat(`[`, 200) + `NaN` + strings.Repeat(`]`, 200) + `]|,1]`,
		// It can't: where one ends and the next begins is anybody's guess.
		``, `]`, `,1]`, `NaN`, `{"a":NaN`, `{"a":NaN]`, `{"a":[NaN}]`, `{"a":1,{"b":2}}]`, `[1 {"a":1}]]`,
		`{"a":"x"y"},{"a":"x"y"}]`, `{"p":"C:\","b":NaN},{"p":"C:\"}]`, `NaN {"b":1}]`, `NaN:1]`, `{"a":{"b":1}{"c":NaN}}]`,
		`{"a":"x`, `}]`,
	} {
		text := strings.Replace(marked, "|", "", 1)
		want := strings.IndexByte(marked, '|')
		s := &Scanner{Text: []byte(text)}
		if got := s.Cut(0, 0); got != want {
			t.Errorf("Cut(%q) is %d, want %d", text, got, want)
		}
		if s.Fault != "" {
			t.Errorf("Cut(%q) set the fault %q", text, s.Fault)
		}
	}
}

// TestCutGoesOnWhereMembersWerePassed: their text may have changed by then.
func TestCutGoesOnWhereMembersWerePassed(t *testing.T) {
	text := `{"a":"x"y"z","b":NaN},1]`
	s := &Scanner{Text: []byte(text)}
	if got, want := s.Cut(0, strings.Index(text, `,"b"`)), strings.Index(text, `,1]`); got != want {
		t.Errorf("Cut is %d, want %d", got, want)
	}
}

func TestMembersGoOnPastABrokenElement(t *testing.T) {
	for _, c := range []struct {
		text string
		past bool
	}{
		{`{"a":1,"batch":[1,NaN,{"x":"\x"},3],"b":2}`, true},
		{`{"batch":[NaN],"b":2}`, true},
		{`{"batch":[NaN,],"b":2}`, false},
		{`{"other":[NaN],"b":2}`, false},
		{`{"batch":{"x":NaN},"b":2}`, false},
		{`{"batch":[{"x":NaN],"b":2}`, false},
		{`{"batch":[1],"b":NaN}`, false},
	} {
		s := &Scanner{Text: []byte(c.text), MaxDepth: 100}
		members := s.Members(0)
		var last, batch string
		past := false
		for ok := true; ok; {
			if ok = members.Next(); !ok {
				ok = members.Past("batch")
				past = past || ok
			}
			if ok {
				last = string(members.Name())
			}
			if ok && last == "batch" {
				batch = string(members.Raw())
			}
		}
		if past != c.past || past && (members.After != len(c.text) || last != "b" || batch[len(batch)-1] != ']') {
			t.Errorf("%s: past is %t, want %t; it ended at %d with %q, batch %q", c.text, past, c.past, members.After, last,
				batch)
		}
		if !past && (s.Fault == "" || members.After >= 0) {
			t.Errorf("%s: the fault is %q and After %d", c.text, s.Fault, members.After)
		}
	}
}

// FuzzCut: an element that is JSON is cut where it ends, whatever is broken inside strings and brackets.
func FuzzCut(f *testing.F) {
	f.Add([]byte(`{"a":[1,"x\\",{"b":null}]}`))
	f.Add([]byte(`[[[{"a":{}}]]]`))
	f.Add([]byte(`-1e5`))
	f.Fuzz(func(t *testing.T, element []byte) {
		whole := scanWhole(element, 1<<20)
		text := append(bytes.Clone(element), `,{"next":1}]`...)
		s := &Scanner{Text: text, MaxDepth: 1 << 20}
		got := s.Cut(0, 0)
		if whole.Fault == "" && got != len(element) {
			t.Fatalf("Cut(%q) is %d, want %d", text, got, len(element))
		}
		if got >= 0 && text[got] != ',' && text[got] != ']' {
			t.Fatalf("Cut(%q) is %d, which is %q", text, got, text[got])
		}
	})
}
