package jsontext

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"sluice.example/sluice/internal/jsontext/hostile"
)

func TestMembers(t *testing.T) {
	for _, tt := range []struct {
		text string
		want string
		end  int
	}{
		{`{}`, "", 2},
		{`{ } x`, "", 3},
		{`{"a":1}`, `a=1@1,5`, 7},
		{` { "a" : [1, 2] , "\u0062\n":"x\ty" } `[1:], "a=[1, 2]@2,8 b\n=\"x\\ty\"e@17,28", 36},
		{`{"a":"\u0000","\ud800":2,"c":"\u0000","d":4}`,
			`a="\u0000"!1@1,5 \ud800=2?2@14,23 c="\u0000"!1@25,29 d=4@38,42`, 44},
		{`{"a":1,}`, `a=1@1,5`, -1},
		{`{"a":1`, `a=1@1,5`, -1},
		{`{"a":1;"b":2}`, `a=1@1,5`, -1},
		{`{"a"`, ``, -1},
		{`{`, ``, -1},
		{`{a:1}`, ``, -1},
		{`{"a":tru}`, ``, -1},
	} {
		s := Scanner{MaxDepth: 10, MaxDigits: MaxDigits}
		s.Reset([]byte(tt.text))
		members := s.Members(0)
		var got []string
		for members.Next() {
			m := fmt.Sprintf("%s=%s", members.Name(), members.Raw())
			if members.Escaped {
				m += "e"
			}
			if members.NameFlaw != FlawNone {
				m += fmt.Sprintf("?%d", members.NameFlaw)
			}
			if members.Flaw != FlawNone {
				m = strings.TrimSuffix(m, "e") + fmt.Sprintf("!%d", members.Flaw)
			}
			got = append(got, fmt.Sprintf("%s@%d,%d", m, members.Begin, members.At))
			if head := string(members.Head()) + string(members.Raw()); !strings.HasPrefix(tt.text[members.Begin:], head) {
				t.Errorf("%s: head and value %q are not at %d", tt.text, head, members.Begin)
			}
		}
		if got := strings.Join(got, " "); got != tt.want || members.After != tt.end || (s.Fault == "") != (tt.end >= 0) {
			t.Errorf("%s: members %s, end %d, fault %q; want %s and %d", tt.text, got, members.After, s.Fault, tt.want, tt.end)
		}
	}
}

// FuzzMembers holds the walk against the scan of the whole, and against encoding/json.
func FuzzMembers(f *testing.F) {
	for _, text := range hostile.Texts {
		f.Add([]byte(text))
		f.Add([]byte(`{"a":` + text + `,"` + strings.ReplaceAll(text, `"`, "") + `":1}`))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) == 0 || text[0] != '{' {
			return
		}
		whole := Scanner{MaxDepth: 100, MaxDigits: MaxDigits}
		whole.Reset(text)
		end := whole.Value(0)
		s := Scanner{MaxDepth: 100, MaxDigits: MaxDigits}
		s.Reset(text)
		members := s.Members(0)
		last, flaw := map[string]string{}, FlawNone
		for members.Next() {
			last[string(members.Name())] = string(members.Raw())
			flaw = max(flaw, members.NameFlaw, members.Flaw)
		}
		if members.After != end || s.Fault != whole.Fault || s.FaultAt != whole.FaultAt {
			t.Fatalf("%q: the walk ends at %d: %q at %d; the scan at %d: %q at %d",
				text, members.After, s.Fault, s.FaultAt, end, whole.Fault, whole.FaultAt)
		}
		if end < 0 || flaw != FlawNone || whole.Flaw != FlawNone {
			return // encoding/json takes other views of flaws
		}
		var want map[string]json.RawMessage
		if err := json.Unmarshal(text[:end], &want); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		if len(want) != len(last) {
			t.Fatalf("%q: members %q; want %q", text, last, want)
		}
		for name, raw := range want {
			if last[name] != string(raw) {
				t.Fatalf("%q: member %q = %q; want %q", text, name, last[name], raw)
			}
		}
	})
}
