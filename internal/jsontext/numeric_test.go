package jsontext

import (
	"strings"
	"testing"
)

// TestNumberThatIsLongOncePrinted: nine bytes of JSON may be 131,072 digits for whoever reads them.
func TestNumberThatIsLongOncePrinted(t *testing.T) {
	for _, tt := range []struct {
		text string
		want Flaw
	}{
		{`1e131071`, FlawDigits},
		{`-1e131071`, FlawDigits},
		{`1e-16383`, FlawDigits},
		{`[1,{"n":[0.5E+400]}]`, FlawNone},
		{`[1,{"n":[0.5E+401]}]`, FlawDigits},
		{`1e399`, FlawNone},
		{`1e400`, FlawDigits},
		{`-1e399`, FlawNone},
		{`1e-399`, FlawNone},
		{`1e-400`, FlawDigits},
		{`0e400`, FlawNone},
		{`0e-400`, FlawDigits},
		{`1.7976931348623157e308`, FlawNone},
		{`-4.9406564584124654e-324`, FlawNone},
		{strings.Repeat("9", 400), FlawNone},
		{strings.Repeat("9", 401), FlawDigits},
		{"0." + strings.Repeat("1", 399), FlawNone},
		{"0." + strings.Repeat("1", 400), FlawDigits},
		{`1e131072`, FlawNumber},
	} {
		s := Scanner{Text: []byte(tt.text), MaxDepth: 10, MaxDigits: MaxDigits}
		if end := s.Value(0); end != len(tt.text) || s.Flaw != tt.want {
			t.Errorf("%.40s: ends at %d of %d with flaw %d; want %d", tt.text, end, len(tt.text), s.Flaw, tt.want)
		}
	}
}

func TestPrinted(t *testing.T) {
	for text, want := range map[string]string{
		`{"a":1,"b":[1,2],"c":"x,y: \"z\""}`: `{"a": 1, "b": [1, 2], "c": "x,y: \"z\""}`,
		" [ 1 ,\t2 ] \n":                     `[1, 2]`,
		`[1e3,-2.5e-3,1.50e9,0e-5,0.0]`:      `[1000, -0.0025, 1500000000, 0.00000, 0.0]`,
		`["\u0001",true,null,{}]`:            `["\u0001", true, null, {}]`,
		`1e399`:                              "1" + strings.Repeat("0", 399),
	} {
		if got := Printed([]byte(text)); got != len(want) {
			t.Errorf("Printed(%s) = %d; want %d", text, got, len(want))
		}
	}
}

func BenchmarkPrinted(b *testing.B) {
	text := []byte("[" + strings.Join(sampleEvents(100), ",") + "]")
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		Printed(text)
	}
}
