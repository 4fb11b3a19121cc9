package tracecontext

import (
	"strings"
	"testing"
)

const (
	trace = "4bf92f3577b34da6a3ce929d0e0e4736"
	span  = "00f067aa0ba902b7"
)

func TestParent(t *testing.T) {
	for _, tt := range []struct {
		header, want string
		sampled, ok  bool
	}{
		{"00-" + trace + "-" + span + "-01", "00-" + trace + "-" + span + "-01", true, true},
		{"00-" + trace + "-" + span + "-00", "00-" + trace + "-" + span + "-00", false, true},
		{"00-" + trace + "-" + span + "-03", "00-" + trace + "-" + span + "-03", true, true},
		{"00-" + trace + "-" + span + "-02", "00-" + trace + "-" + span + "-02", false, true},
		{"00-" + trace + "-" + span + "-ff", "00-" + trace + "-" + span + "-ff", true, true},
		{"cc-" + trace + "-" + span + "-01", "00-" + trace + "-" + span + "-01", true, true},
		{"cc-" + trace + "-" + span + "-02-what the future has", "00-" + trace + "-" + span + "-00", false, true},
		{"cc-" + trace + "-" + span + "-03-what\r\nX-Evil: 1", "00-" + trace + "-" + span + "-01", true, true},
		{header: ""}, {header: "00"}, {header: strings.Repeat("a", 10_000)},
		{header: "ff-" + trace + "-" + span + "-01"},
		{header: "cc-" + trace + "-" + span + "-01.more"},
		{header: "00-" + trace + "-" + span + "-01-more"},
		{header: "00-" + trace + "-" + span + "-01 "}, {header: " 00-" + trace + "-" + span + "-01"},
		{header: "00-" + trace + "-" + span + "-01\r\nX-Evil: 1"},
		{header: "00-" + strings.ToUpper(trace) + "-" + span + "-01"},
		{header: "00-" + trace + "-" + span + "-0A"}, {header: "00-" + trace + "-" + span + "-1"},
		{header: "0G-" + trace + "-" + span + "-01"}, {header: "00-" + trace + "-" + span + ".01"},
		{header: "00-" + trace + "_" + span + "-01"},
		{header: "00-" + strings.Repeat("0", 32) + "-" + span + "-01"},
		{header: "00-" + trace + "-" + strings.Repeat("0", 16) + "-01"},
		{header: "00-" + trace[:31] + "\n-" + span + "-01"},
	} {
		got, sampled, ok := Parent(tt.header)
		if !ok {
			got, sampled = "", false
		}
		if got != tt.want || sampled != tt.sampled || ok != tt.ok {
			t.Errorf("%q: %q, %v, %v; want %q, %v, %v", tt.header, got, sampled, ok, tt.want, tt.sampled, tt.ok)
		}
	}
	if id := TraceID("00-" + trace + "-" + span + "-01"); id != trace {
		t.Errorf("the trace is %q, want %q", id, trace)
	}
	if id := TraceID("not-a-parent"); id != "" {
		t.Errorf("the trace of no parent is %q", id)
	}
}

func TestState(t *testing.T) {
	many := func(n int) string {
		var b strings.Builder
		for i := range n {
			b.WriteString("," + string(rune('a'+i/26)) + string(rune('a'+i%26)) + "=1")
		}
		return b.String()[1:]
	}
	for header, want := range map[string]string{
		"":                                   "",
		"rojo=00f067aa0ba902b7,congo=t61":    "rojo=00f067aa0ba902b7,congo=t61",
		" rojo=1 ,\t, congo=a b ":            "rojo=1,congo=a b",
		"0tenant@system=v":                   "0tenant@system=v",
		"a*/_-9=" + strings.Repeat("v", 256): "a*/_-9=" + strings.Repeat("v", 256),
		many(32):                             many(32),

		many(33): "", "a": "", "a=": "", "=v": "", "a=1,a=2": "", "A=1": "", "0a=1": "", "a=b=c": "", "a=\x00": "",
		"a=1\r\nX-Evil: 1": "", "a=ž": "", "a@=1": "", "@a=1": "", "a@0b=1": "", "a@b@c=1": "", "a b=1": "",
		"a@" + strings.Repeat("b", 15) + "=1":       "",
		"a=" + strings.Repeat("v", 257):             "",
		strings.Repeat("a", 257) + "=1":             "",
		"a=" + strings.Repeat("v", 10_000):          "",
		many(32) + ",a=" + strings.Repeat("v", 400): "",
	} {
		if got := State(header); got != want {
			t.Errorf("%q: %q, want %q", header, got, want)
		}
	}
}

// FuzzParent: what is passed on stays what it is, and fits into a header and into JSON.
func FuzzParent(f *testing.F) {
	f.Add("00-"+trace+"-"+span+"-01", "rojo=1,congo=2")
	f.Add("cc-"+trace+"-"+span+"-01-x", "a@b= c")
	f.Fuzz(func(t *testing.T, header, state string) {
		if parent, sampled, ok := Parent(header); ok {
			again, s, ok := Parent(parent)
			if !ok || again != parent || s != sampled || len(parent) != length {
				t.Errorf("%q becomes %q, and that %q, %v, %v", header, parent, again, s, ok)
			}
		}
		s := State(state)
		if State(s) != s || len(s) > MostState || strings.ContainsFunc(s, func(r rune) bool {
			return r < ' ' || r > '~'
		}) {
			t.Errorf("%q becomes %q", state, s)
		}
	})
}
