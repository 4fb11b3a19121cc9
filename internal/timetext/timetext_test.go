package timetext

import (
	"strings"
	"testing"
	"time"
)

func TestRFC3339(t *testing.T) {
	for _, text := range []string{
		"2026-01-31T23:59:59Z", "2026-01-31t23:59:59z", "2026-01-31 23:59:59+02:00",
		"2024-02-29T00:00:00-11:30", "2026-01-31T23:59:59.1Z", "2026-01-31T23:59:59.123456789Z",
		"2026-01-31T23:59:59.1234567890123Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z",
	} {
		got, ok := RFC3339([]byte(text))
		want, err := time.Parse(time.RFC3339, strings.ToUpper(strings.Replace(text, " ", "T", 1)))
		if err != nil {
			t.Fatal(err)
		}
		if want = want.UTC().Truncate(time.Microsecond); !ok || got != want {
			t.Errorf("RFC3339(%q) = %v, %v; want %v", text, got, ok, want)
		}
	}
	leap, ok := RFC3339([]byte("2016-12-31T23:59:60Z"))
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
		if got, ok := RFC3339([]byte(text)); ok {
			t.Errorf("RFC3339(%q) = %v; want none", text, got)
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
				if _, ok := RFC3339(text); !ok {
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

// TestTimesAsSDKsWriteThem has forms that clients were seen to send, and their neighbours.
func TestTimesAsSDKsWriteThem(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"2026-11-30T11:22:33.123Z", "2026-11-30T11:22:33.123Z"},
		{"2026-11-30T11:22Z", "2026-11-30T11:22:00Z"},
		{"2026-11-30T11:22:Z", "2026-11-30T11:22:00Z"},
		{"2026-11-30T11:22:33:Z", "2026-11-30T11:22:33Z"},
		{"2026-11-30T11:22:33.123:Z", "2026-11-30T11:22:33.123Z"},
		{"2026-11-30T11:22:33+0000", "2026-11-30T11:22:33Z"},
		{"2026-11-30T11:22:33.5-0530", "2026-11-30T16:52:33.5Z"},
		{"2026-11-30T11:22:33+00", "2026-11-30T11:22:33Z"},
		{"2026-11-30T11:22:33+02", "2026-11-30T09:22:33Z"},
		{"2026-11-30T00:22:33+02:00", "2026-11-29T22:22:33Z"},
		{"2026-11-30T11:22:33,123Z", "2026-11-30T11:22:33.123Z"},
		{"2026-11-30T11:22:33,123456789+01:00", "2026-11-30T10:22:33.123456Z"},
		{"2026-11-30T11:22:33", "2026-11-30T11:22:33Z"},
		{"2026-11-30T11:22:33.123456", "2026-11-30T11:22:33.123456Z"},
		{"2026-11-30 11:22:33", "2026-11-30T11:22:33Z"},
		{"2026-11-30 11:22:33 +0200", "2026-11-30T09:22:33Z"},
		{"2026-11-30 11:22:33 UTC", "2026-11-30T11:22:33Z"},
		{" 2026-11-30T11:22:33 ", "2026-11-30T11:22:33Z"},
		{"2026-11-30", "2026-11-30T00:00:00Z"},
		{"2024-02-29T11:22", "2024-02-29T11:22:00Z"},
		{"2016-12-31T23:59:60", "2017-01-01T00:00:00Z"},
		{"1796037753", "2026-11-30T11:22:33Z"},
		{"1796037753.5", "2026-11-30T11:22:33.5Z"},
		{"1796037753123", "2026-11-30T11:22:33.123Z"},
		{"1796037753123.75", "2026-11-30T11:22:33.12375Z"},
		{"1796037753123456", "2026-11-30T11:22:33.123456Z"},
		{"1796037753123456789", "2026-11-30T11:22:33.123456Z"},
		{"1.796037753123e12", "2026-11-30T11:22:33.123Z"},
		{"1.796037753E+9", "2026-11-30T11:22:33Z"},
		{"Mon, 30 Nov 2026 11:22:33 GMT", "2026-11-30T11:22:33Z"},
		{"Mon, 30 Nov 2026 11:22:33 +0200", "2026-11-30T09:22:33Z"},
		{"Mon Nov 30 2026 11:22:33 GMT+0200 (Eastern European Standard Time)", "2026-11-30T09:22:33Z"},
	} {
		got, ok := Loose([]byte(tt.text))
		if !ok || got.Format(time.RFC3339Nano) != tt.want || got.Location() != time.UTC {
			t.Errorf("Loose(%q) = %v, %v; want %s", tt.text, got, ok, tt.want)
		}
	}
	for _, text := range []string{
		"", " ", "yesterday", "17", "2026", "20261130", "12345678", "-1796037753", "1796037753.", "1e400", "NaN", "+Inf",
		"99999999999999999999", "2026-02-30", "2026-13-01T11:22:33", "2026-11-30T24:00", "2026-11-30T11:60", "2026-11-30T11",
		"2026-11-30T11:22:61", "2026-11-30T11:22:33.", "2026-11-30T11:22:33,", "2026-11-30T11:22:33::Z",
		"2026-11-30T11:22:33+2", "2026-11-30T11:22:33+02:0", "2026-11-30T11:22:33+24", "2026-11-30T11:22:33+0260",
		"2026-11-30T11:22:33 CET", "2026-11-30X11:22:33", "30.11.2026 11:22", "11/30/2026", "Mon, 30 Nov 2026 11:22:33 CET",
		")", "()",
	} {
		if got, ok := Loose([]byte(text)); ok {
			t.Errorf("Loose(%q) = %v; want none", text, got)
		}
	}
}

func FuzzLoose(f *testing.F) {
	for _, text := range []string{
		"2026-11-30T11:22:33,5+02", "1796037753.5", "1.7e12", "Mon, 30 Nov 2026 11:22:33 GMT", "(x)",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, ok := Loose([]byte(text))
		if ok && (got.Location() != time.UTC || got.Nanosecond()%1000 != 0 || got.Year() < 0) {
			t.Errorf("Loose(%q) = %v; want UTC to the microsecond", text, got)
		}
		if strict, isStrict := RFC3339([]byte(text)); isStrict && !strict.Equal(got) {
			t.Errorf("Loose(%q) = %v; RFC3339 reads %v", text, got, strict)
		}
	})
}
