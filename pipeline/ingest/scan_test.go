package ingest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// hostile are texts that have broken decoders: seeds for the fuzz targets and for the comparison with PostgreSQL.
var hostile = []string{
	``, ` `, `{`, `}`, `[`, `]`, `[[`, `[]]`, `{}`, `[]`, `null`, `nul`, `nulll`, `true`, `truefalse`, `fals`, `"`, `"\`, `"\u`, `"\u00`, `"\u12`,
	`"a"`, `"\u0041"`, `"\u0000"`, `{"k\u0000":1}`, `{"k":"a\u0000b"}`, `"\\u0000"`, `"\\\u0000"`, `"\\\\u0000"`, `{"C:\\u0000dir":"C:\\u0000dir"}`, "\"a\x00b\"", "\"a\nb\"",
	`"\ud800"`, `"\udc00"`, `"\ud83d\ude00"`, `"\ud83d\ud83d\ude00"`, `"\ude00\ud83d"`, `"\ud83dx"`, `"\ud83d\n"`, `"\ud83d\u0041"`, `"\uD83D\uDE00"`, `"\ud83d\\ude00"`,
	"\"\xff\"", "\"\xc3\"", "\"\xc3\xa9\"", "\"\xed\xa0\x80\"", "\"\xf4\x90\x80\x80\"", "\"\xc0\x80\"", "\"\xf0\x9f\x98\x80\"", "\"\xef\xbf\xbf\"", "\xef\xbb\xbf{}",
	`0`, `-0`, `-`, `+1`, `01`, `-01`, `1.`, `.5`, `1.5`, `1e`, `1e+`, `1e5`, `1E-5`, `1.5e+10`, `0x10`, `NaN`, `Infinity`, `1e131071`, `9.99e131071`, `1e131072`, `10e131071`,
	`-1e131072`, `0.1e131072`, `0.01e131073`, `1e-16383`, `1e-16384`, `0e999999`, `0e-16384`, `0.0e5`, `0e1073741822`, `0e1073741823`, `1e99999999999999999999`, `0e-99999999999999999999`,
	`1e00000000000000000000000000000001`, `123456789012345678901234567890.123456789012345678901234567890`, `0.1e-16382`, `0.10e-16382`, `10e-16384`, `1.0e-16383`,
	strings.Repeat("9", 131072), strings.Repeat("9", 131073), strings.Repeat("0", 5), "0." + strings.Repeat("1", 16383), "0." + strings.Repeat("1", 16384), "1" + strings.Repeat("0", 131072) + "e-5",
	`{"a":1,}`, `[1,]`, `[,1]`, `{"a"}`, `{"a":}`, `{a:1}`, `{'a':1}`, `{"a":1 "b":2}`, `[1 2]`, `{"a":1}{"b":2}`, `{"a":1}x`, `//c`, `[1]/**/`, `{"a":1,"a":2}`, `{"":{"":""}}`,
	"\t\r\n [ 1 , 2 ] \n", "\f[]", "\u00a0[]", `"\x41"`, `"\a"`, `"\/\b\f\n\r\t\"\\"`, `["` + strings.Repeat("x", 5000) + `"]`, `{"` + strings.Repeat("k", 3000) + `":1}`,
	strings.Repeat("[", 99) + "1" + strings.Repeat("]", 99), strings.Repeat("[", 100) + strings.Repeat("]", 100), strings.Repeat("[", 101) + strings.Repeat("]", 101),
	strings.Repeat(`{"a":[`, 70) + "0" + strings.Repeat("]}", 70), strings.Repeat("[", 100000), strings.Repeat(`{"a":`, 5000) + "1" + strings.Repeat("}", 5000), strings.Repeat("[", 64) + "}" + strings.Repeat("]", 64),
	strings.Repeat("[", 129) + strings.Repeat("]", 128) + "}",
}

// scanWhole scans a text that should be one value.
func scanWhole(text []byte, depth int) *scanner {
	s := &scanner{maxDepth: depth}
	s.reset(text)
	if i := s.value(s.space(0)); i >= 0 {
		if i = s.space(i); i < len(text) {
			s.fail(i, "more follows")
		}
	}
	return s
}

func TestScanTellsMalformedFromUnstorable(t *testing.T) {
	for _, tt := range []struct {
		text string
		at   int // of malformed text, else -1
		flaw flaw
	}{
		{`{"a":[1,2.5e3,"x",null,true,false,{}]}`, -1, flawNone},
		{`"C:\\u0000dir"`, -1, flawNone},
		{`"\\\\u0000"`, -1, flawNone},
		{`"\\\u0000"`, -1, flawNUL},
		{`{"k\u0000":1}`, -1, flawNUL},
		{"\"a\x00b\"", -1, flawNUL},
		{"\"a\tb\"", -1, flawControl},
		{`"\ud83d\ude00"`, -1, flawNone},
		{`"\ud83d"`, -1, flawSurrogate},
		{`"\ude00"`, -1, flawSurrogate},
		{`"\ud83d\ud83d\ude00"`, -1, flawSurrogate},
		{`"\ud83d\\ude00"`, -1, flawSurrogate},
		{"\"plain text \xff\"", -1, flawUTF8},
		{"\"\xed\xa0\x80\"", -1, flawUTF8},
		{`1e131071`, -1, flawNone},
		{`1e131072`, -1, flawNumber},
		{`[[[[1]]]]`, -1, flawDepth},
		{`[[[1]]]`, -1, flawNone},
		{`[1,]`, 3, flawNone},
		{`{"a":1,}`, 7, flawNone},
		{`{"a" 1}`, 5, flawNone},
		{`01`, 1, flawNone},
		{`-`, 1, flawNone},
		{`nul`, 3, flawNone},
		{`nuxl`, 2, flawNone},
		{`"\x"`, 1, flawNone},
		{`"\u12G4"`, 3, flawNone},
		{`"abc`, 4, flawNone},
		{`[[}]`, 2, flawNone},
		{`{"a":1} x`, 8, flawNone},
	} {
		s := scanWhole([]byte(tt.text), 3)
		at := -1
		if s.err != "" {
			at = s.errAt
		}
		if at != tt.at || s.flaw != tt.flaw && tt.at < 0 {
			t.Errorf("%q: malformed at %d (%s), flaw %d; want %d and %d", tt.text, at, s.err, s.flaw, tt.at, tt.flaw)
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
		if s := scanWhole([]byte(text), 1000); s.err != "" || s.flaw != flawNone {
			t.Fatalf("depth %d: %s at %d, flaw %d; want neither", depth, s.err, s.errAt, s.flaw)
		}
		for i := range closers {
			wrong := []byte(text)
			at := len(text) - 1 - i
			wrong[at] ^= ']' ^ '}'
			if s := scanWhole(wrong, 1000); s.errAt != at || s.err == "" {
				t.Fatalf("depth %d, wrong bracket at %d: error %q at %d", depth, at, s.err, s.errAt)
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
		if got := string(b[:unescape(b)]); got != want {
			t.Errorf("unescape(%q) = %q; want %q", text, got, want)
		}
	}
}

func FuzzScan(f *testing.F) {
	for _, text := range hostile {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		s := scanWhole(text, 100)
		if s.errAt < 0 || s.errAt > len(text) {
			t.Fatalf("%q: offset %d lies outside", text, s.errAt)
		}
		if s.flaw != flawNone && bytes.ContainsFunc(text, func(r rune) bool { return r < ' ' }) {
			return // perhaps a raw control character in a string: a flaw here, malformed there
		}
		if bytes.Count(text, []byte("["))+bytes.Count(text, []byte("{")) > 9000 {
			return // encoding/json gives up at a depth of 10,000
		}
		if want := json.Valid(text); want != (s.err == "") {
			t.Fatalf("%q: error %q at %d, flaw %d; encoding/json says valid = %v", text, s.err, s.errAt, s.flaw, want)
		}
	})
}

func FuzzUnescape(f *testing.F) {
	for _, text := range hostile {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		s := scanWhole(text, 100)
		if s.err != "" || s.flaw != flawNone || len(text) < 2 || text[0] != '"' || text[len(text)-1] != '"' {
			return
		}
		var want string
		if err := json.Unmarshal(text, &want); err != nil {
			t.Fatalf("%q: scanned, but %v", text, err)
		}
		b := append([]byte{}, text[1:len(text)-1]...)
		if got := string(b[:unescape(b)]); got != want {
			t.Fatalf("unescape(%q) = %q; want %q", text, got, want)
		}
	})
}

func BenchmarkScan(b *testing.B) {
	text := []byte(fmt.Sprintf("[%s]", strings.Join(sampleEvents(100), ",")))
	s := &scanner{maxDepth: 100}
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		s.reset(text)
		if s.value(0) != len(text) {
			b.Fatal(s.err)
		}
	}
}
