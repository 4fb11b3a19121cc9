package cli

import (
	"testing"
	"time"
)

func TestParseValue(t *testing.T) {
	var d time.Duration
	var n int
	for text, want := range map[string]time.Duration{"1d12h": 36 * time.Hour, "2w": 14 * 24 * time.Hour,
		"90s": 90 * time.Second} {
		if err := ParseValue(&d, "", text); err != nil || d != want {
			t.Errorf("ParseValue(%q) = %v, %v; want %v", text, d, err, want)
		}
		if err := ParseValue(&d, "", FormatValue(&d, "")); err != nil || d != want {
			t.Errorf("%v written as %q is read as %v, %v", want, FormatValue(&want, ""), d, err)
		}
	}
	for text, want := range map[string]int{"65536": 65536, "64KiB": 65536, "256 MiB": 256 << 20, "1GB": 1e9, "8B": 8,
		"1_000": 1000} {
		if err := ParseValue(&n, "bytes", text); err != nil || n != want {
			t.Errorf("parseValue(%q) = %v, %v; want %v", text, n, err, want)
		}
	}
	for _, text := range []string{"", "1.5MiB", "9999999999GiB", "MiB", "64 apples"} {
		if err := ParseValue(&n, "bytes", text); err == nil {
			t.Errorf("parseValue(%q) = %d; want an error", text, n)
		}
	}
	if err := ParseValue(&n, "events", "64KiB"); err == nil {
		t.Error("a count of events took 64KiB")
	}
	if err := ParseValue(&d, "", "3 days"); err == nil {
		t.Errorf("ParseValue took 3 days for %v", d)
	}
}
