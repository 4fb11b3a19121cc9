package jsontext

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"sluice.example/sluice/internal/jsontext/hostile"
)

func TestAppendString(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"", `""`},
		{"plain", `"plain"`},
		{`a"b\c`, `"a\"b\\c"`},
		{"line\none\ttwo\r", `"line\none\ttwo\r"`},
		{"\x00\x1b[31m\x7f", `"\u0000\u001b[31m\u007f"`},
		{"<a href='x'>&</a>", `"<a href='x'>&</a>"`},
		{"é€😀\u2028", "\"é€😀\u2028\""},
		{"a\xffb\xc3", "\"a\ufffdb\ufffd\""},
		{"\xed\xa0\x80", "\"\ufffd\ufffd\ufffd\""},
	} {
		if got := string(AppendString([]byte("x"), tt.text)); got != "x"+tt.want {
			t.Errorf("AppendString(%q) = %s; want x%s", tt.text, got, tt.want)
		}
	}
}

func FuzzAppendString(f *testing.F) {
	for _, text := range hostile.Texts {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		quoted := AppendString(nil, text)
		if s := scanWhole(quoted, 1); s.Fault != "" || s.Flaw != FlawNone && s.Flaw != FlawNUL {
			t.Fatalf("AppendString(%q) = %q: %s, flaw %d", text, quoted, s.Fault, s.Flaw)
		}
		var got string
		if err := json.Unmarshal(quoted, &got); err != nil {
			t.Fatalf("AppendString(%q) = %q: %v", text, quoted, err)
		}
		want := text
		if !utf8.ValidString(text) {
			want = string([]rune(text)) // each wrong byte by itself becomes U+FFFD
		}
		if got != want {
			t.Fatalf("AppendString(%q) = %q, which means %q; want %q", text, quoted, got, want)
		}
	})
}

func BenchmarkAppendString(b *testing.B) {
	for _, tt := range []struct{ name, text string }{
		{"plain", strings.Repeat("https://shop.example.com/products/17?ref=home ", 4)},
		{"wide", strings.Repeat("Größe und Ähnliches 😀 ", 8)},
		{"escaped", strings.Repeat("say \"hello\"\n", 16)},
	} {
		b.Run(tt.name, func(b *testing.B) {
			dst := make([]byte, 0, 1024)
			b.SetBytes(int64(len(tt.text)))
			b.ReportAllocs()
			for b.Loop() {
				dst = AppendString(dst[:0], tt.text)
			}
		})
	}
}
