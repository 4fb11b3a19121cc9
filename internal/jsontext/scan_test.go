package jsontext

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"sluice.example/sluice/internal/jsontext/hostile"
)

// scanWhole scans a text that should be one value.
func scanWhole(text []byte, depth int) *Scanner {
	s := &Scanner{MaxDepth: depth, MaxDigits: numericDigits + numericScale}
	s.Reset(text)
	if i := s.Value(s.Space(0)); i >= 0 {
		if i = s.Space(i); i < len(text) {
			s.Fail(i, "more follows")
		}
	}
	return s
}

func TestScanTellsMalformedFromUnstorable(t *testing.T) {
	for _, tt := range []struct {
		text string
		at   int // of malformed text, else -1
		flaw Flaw
	}{
		{`{"a":[1,2.5e3,"x",null,true,false,{}]}`, -1, FlawNone},
		{`"C:\\u0000dir"`, -1, FlawNone},
		{`"\\\\u0000"`, -1, FlawNone},
		{`"\\\u0000"`, -1, FlawNUL},
		{`{"k\u0000":1}`, -1, FlawNUL},
		{"\"a\x00b\"", -1, FlawNUL},
		{"\"a\tb\"", -1, FlawControl},
		{`"\ud83d\ude00"`, -1, FlawNone},
		{`"\ud83d"`, -1, FlawSurrogate},
		{`"\ude00"`, -1, FlawSurrogate},
		{`"\ud83d\ud83d\ude00"`, -1, FlawSurrogate},
		{`"\ud83d\\ude00"`, -1, FlawSurrogate},
		{"\"plain text \xff\"", -1, FlawUTF8},
		{"\"\xed\xa0\x80\"", -1, FlawUTF8},
		{`1e131071`, -1, FlawNone},
		{`1e131072`, -1, FlawNumber},
		{`[[[[1]]]]`, -1, FlawDepth},
		{`[[[1]]]`, -1, FlawNone},
		{`[1,]`, 3, FlawNone},
		{`{"a":1,}`, 7, FlawNone},
		{`{"a" 1}`, 5, FlawNone},
		{`01`, 1, FlawNone},
		{`-`, 1, FlawNone},
		{`nul`, 3, FlawNone},
		{`nuxl`, 2, FlawNone},
		{`"\x"`, 1, FlawNone},
		{`"\u12G4"`, 3, FlawNone},
		{`"abc`, 4, FlawNone},
		{`[[}]`, 2, FlawNone},
		{`{"a":1} x`, 8, FlawNone},
	} {
		s := scanWhole([]byte(tt.text), 3)
		at := -1
		if s.Fault != "" {
			at = s.FaultAt
		}
		if at != tt.at || s.Flaw != tt.flaw && tt.at < 0 {
			t.Errorf("%q: malformed at %d (%s), flaw %d; want %d and %d", tt.text, at, s.Fault, s.Flaw, tt.at, tt.flaw)
		}
	}
}

// TestScanKeepsContainersApart nests deeper than one word of the stack of containers.
func TestScanKeepsContainersApart(t *testing.T) {
	for depth := 1; depth < 300; depth++ {
		var open, shut strings.Builder
		closers := make([]byte, depth)
		for i := range depth {
			if i*i%3 == 1 {
				open.WriteString(`{"a":`)
				closers[depth-1-i] = '}'
			} else {
				open.WriteString(`[`)
				closers[depth-1-i] = ']'
			}
		}
		shut.Write(closers)
		text := open.String() + "1" + shut.String()
		if s := scanWhole([]byte(text), 1000); s.Fault != "" || s.Flaw != FlawNone {
			t.Fatalf("depth %d: %s at %d, flaw %d; want neither", depth, s.Fault, s.FaultAt, s.Flaw)
		}
		for i := range closers {
			wrong := []byte(text)
			at := len(text) - 1 - i
			wrong[at] ^= ']' ^ '}'
			if s := scanWhole(wrong, 1000); s.FaultAt != at || s.Fault == "" {
				t.Fatalf("depth %d, wrong bracket at %d: error %q at %d", depth, at, s.Fault, s.FaultAt)
			}
		}
	}
}

func TestUnescape(t *testing.T) {
	for _, text := range []string{`a\n\t\"\\\/\b\f\r`, `\u0041\u00e9\u20ac\ud83d\ude00z`, `\\u0000`, `é\u00e9`, ``} {
		var want string
		if err := json.Unmarshal([]byte(`"`+text+`"`), &want); err != nil {
			t.Fatal(err)
		}
		b := []byte(text)
		if got := string(b[:Unescape(b)]); got != want {
			t.Errorf("Unescape(%q) = %q; want %q", text, got, want)
		}
	}
}

func FuzzScan(f *testing.F) {
	for _, text := range hostile.Texts {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		s := scanWhole(text, 100)
		if s.FaultAt < 0 || s.FaultAt > len(text) {
			t.Fatalf("%q: offset %d lies outside", text, s.FaultAt)
		}
		if s.Flaw != FlawNone && bytes.ContainsFunc(text, func(r rune) bool { return r < ' ' }) {
			return // perhaps a raw control character in a string: a flaw here, malformed there
		}
		if bytes.Count(text, []byte("["))+bytes.Count(text, []byte("{")) > 9000 {
			return // encoding/json gives up at a depth of 10,000
		}
		if want := json.Valid(text); want != (s.Fault == "") {
			t.Fatalf("%q: error %q at %d, flaw %d; encoding/json says valid = %v", text, s.Fault, s.FaultAt, s.Flaw, want)
		}
	})
}

func FuzzUnescape(f *testing.F) {
	for _, text := range hostile.Texts {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		s := scanWhole(text, 100)
		if s.Fault != "" || s.Flaw != FlawNone || len(text) < 2 || text[0] != '"' || text[len(text)-1] != '"' {
			return
		}
		var want string
		if err := json.Unmarshal(text, &want); err != nil {
			t.Fatalf("%q: scanned, but %v", text, err)
		}
		b := append([]byte{}, text[1:len(text)-1]...)
		if got := string(b[:Unescape(b)]); got != want {
			t.Fatalf("Unescape(%q) = %q; want %q", text, got, want)
		}
	})
}

// sampleEvents makes n events of about 450 bytes.
func sampleEvents(n int) []string {
	events := make([]string, n)
	for i := range events {
		events[i] = fmt.Sprintf(`{"event_id":"019ad4d0-6b00-7abc-8def-%012x","event_name":"page_viewed",`+
			`"occurred_at":"2026-11-30T11:%02d:%02d.123Z","anonymous_id":"anon-%d","session_id":"sess-%d",`+
			`"page_url":"https://shop.example.com/products/%d?ref=home","referrer":"https://www.example.org/search",`+
			`"user_agent":"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36","properties":{"price_cents":%d,`+
			`"currency":"EUR","title":"Blue chair no. %d","in_stock":true,"tags":["home","chair"]}}`,
			i, i/60%60, i%60, i%1000, i%5000, i, 1000+i*7, i)
	}
	return events
}

func BenchmarkScan(b *testing.B) {
	text := []byte(fmt.Sprintf("[%s]", strings.Join(sampleEvents(100), ",")))
	s := &Scanner{MaxDepth: 100, MaxDigits: MaxDigits}
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		s.Reset(text)
		if s.Value(0) != len(text) {
			b.Fatal(s.Fault)
		}
	}
}
