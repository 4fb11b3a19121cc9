package duration

import (
	"flag"
	"io"
	"math"
	"strings"
	"testing"
	"time"
)

const day = 24 * time.Hour

func TestParse(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"0": 0, "-0": 0, "0s": 0, "0.0d": 0,
		"1ns": 1, "250us": 250 * time.Microsecond, "250µs": 250 * time.Microsecond, "250μs": 250 * time.Microsecond,
		"500ms": 500 * time.Millisecond, "30s": 30 * time.Second, "15m": 15 * time.Minute, "24h": day,
		"7d": 7 * day, "2w": 14 * day, "1.5h": 90 * time.Minute, ".5m": 30 * time.Second, "1.5d": 36 * time.Hour,
		"0.1s": 100 * time.Millisecond, "1.1d": 26*time.Hour + 24*time.Minute,
		"7d12h": 7*day + 12*time.Hour, "1w1d1h1m1s1ms": 8*day + time.Hour + time.Minute + time.Second + time.Millisecond,
		"1h30m": 90 * time.Minute, "30m1h": 90 * time.Minute, "-1d12h": -36 * time.Hour, "+3s": 3 * time.Second,
		"9223372036854775807ns": math.MaxInt64, "106751d": 106751 * day,
	} {
		if got, err := Parse(text); err != nil || got != want {
			t.Errorf("Parse(%q) = %s, %v; want %s", text, got, err, want)
		}
	}
}

func TestParseNamesTheFault(t *testing.T) {
	for text, want := range map[string]string{
		"": "is not a duration", "soon": "is not a duration", "-": "is not a duration", "1 h": "is not a duration",
		"1y": "is not a duration", "h": "is not a duration", ".s": "is not a duration", "1h-1m": "is not a duration",
		"--1h": "is not a duration", "1e3s": "is not a duration", "1,5h": "is not a duration", " 1h": "is not a duration",
		"30": "has no unit", "1h30": "has no unit", "1.5": "has no unit",
		"9223372036854775808ns": "too long", "106752d": "too long", "99999999999999999999s": "too long",
		"106751d24h": "too long", "20000w": "too long",
	} {
		got, err := Parse(text)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), `"`+text+`"`) {
			t.Errorf("Parse(%q) = %s, %v; want an error with the text and %q", text, got, err, want)
		}
	}
}

func TestFormat(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", time.Second: "1s", 5 * time.Minute: "5m", 2 * time.Hour: "2h", 90 * time.Minute: "1h30m",
		36 * time.Hour: "36h", day: "1d", 14 * day: "14d", -day: "-1d", 1500 * time.Millisecond: "1.5s",
	} {
		if got := Format(d); got != want {
			t.Errorf("Format(%d) = %q, want %q", d, got, want)
		}
	}
}

// FuzzParse holds Parse against Format and against time.Duration.
func FuzzParse(f *testing.F) {
	f.Add(int64(0))
	f.Add(int64(-1))
	f.Add(int64(math.MaxInt64))
	f.Add(int64(90 * time.Minute))
	f.Fuzz(func(t *testing.T, n int64) {
		if n == math.MinInt64 {
			t.Skip("has no positive form")
		}
		d := time.Duration(n)
		for _, text := range []string{Format(d), d.String()} {
			got, err := Parse(text)
			if err != nil || got != d {
				t.Errorf("Parse(%q) = %s, %v; want %s", text, got, err, d)
			}
		}
	})
}

func TestFlag(t *testing.T) {
	fs := flag.NewFlagSet("", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	d := Flag(fs, "older", day, "how old")
	if *d != day || fs.Lookup("older").DefValue != "1d" {
		t.Errorf("default %s, shown as %q; want 1d", *d, fs.Lookup("older").DefValue)
	}
	if err := fs.Parse([]string{"--older", "1w2d"}); err != nil || *d != 9*day {
		t.Errorf("--older 1w2d is %s, %v; want 9 days", *d, err)
	}
	if err := fs.Parse([]string{"--older", "9"}); err == nil || *d != 9*day {
		t.Errorf("--older 9 gives %v and leaves %s; want an error, and the value as it was", err, *d)
	}
}
