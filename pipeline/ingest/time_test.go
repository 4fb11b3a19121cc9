package ingest

import (
	"strings"
	"testing"
	"time"
)

func TestParseTime(t *testing.T) {
	for _, text := range []string{
		"2026-01-31T23:59:59Z", "2026-01-31t23:59:59z", "2026-01-31 23:59:59+02:00",
		"2024-02-29T00:00:00-11:30", "2026-01-31T23:59:59.1Z", "2026-01-31T23:59:59.123456789Z",
		"2026-01-31T23:59:59.1234567890123Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z",
	} {
		got, ok := parseTime([]byte(text))
		want, err := time.Parse(time.RFC3339, strings.ToUpper(strings.Replace(text, " ", "T", 1)))
		if err != nil {
			t.Fatal(err)
		}
		if want = want.UTC().Truncate(time.Microsecond); !ok || got != want {
			t.Errorf("parseTime(%q) = %v, %v; want %v", text, got, ok, want)
		}
	}
	leap, ok := parseTime([]byte("2016-12-31T23:59:60Z"))
	if !ok || !leap.Equal(time.Date(2017, 1, 1, 0, 0, 0, 0, time.UTC)) {
		t.Errorf("a leap second is %v, %v; want the second after it", leap, ok)
	}
	for _, text := range []string{
		"", "2026-01-31", "2026-01-31T23:59:59", "2026-02-29T00:00:00Z", "2026-13-01T00:00:00Z",
		"2026-00-01T00:00:00Z", "2026-01-00T00:00:00Z", "2026-01-32T00:00:00Z", "2026-01-31T24:00:00Z",
		"2026-01-31T23:60:00Z", "2026-01-31T23:59:61Z", "2026-01-31T23:59:59.Z", "2026-01-31T23:59:59.5",
		"2026-01-31T23:59:59+0200", "2026-01-31T23:59:59+24:00", "2026-01-31T23:59:59,5Z",
		"2026-01-31T23:59:59Zx", "2026-1-31T23:59:59Z00", "+026-01-31T23:59:59Z", "2026-01-31T2 :59:59Z",
		"1900-02-29T00:00:00Z",
	} {
		if got, ok := parseTime([]byte(text)); ok {
			t.Errorf("parseTime(%q) = %v; want none", text, got)
		}
	}
}

// BenchmarkTime compares our parser with the standard library's on what clients send.
func BenchmarkTime(b *testing.B) {
	for _, tt := range []struct{ name, text string }{
		{"millis", "2026-11-30T11:22:33.123Z"},
		{"seconds", "2026-11-30T11:22:33Z"},
		{"micros", "2026-11-30T11:22:33.123456Z"},
		{"offset", "2026-11-30T11:22:33.123456+02:00"},
	} {
		text := []byte(tt.text)
		b.Run(tt.name+"/ours", func(b *testing.B) {
			for b.Loop() {
				if _, ok := parseTime(text); !ok {
					b.Fatal(tt.text)
				}
			}
		})
		b.Run(tt.name+"/library", func(b *testing.B) {
			for b.Loop() {
				if _, err := time.Parse(time.RFC3339, tt.text); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
