// Package duration is the one grammar of lengths of time: for flags, the environment, configuration files and rules.
//
// A duration is a sum of numbers with units, such as 90s, 1.5h, 7d12h or 2w. The units are ns, us (or µs), ms, s, m, h,
// d and w; a day has 24 hours and a week seven days. A sign may stand in front. 0 needs no unit.
package duration

import (
	"errors"
	"flag"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// units are ordered so that no unit is found where a longer one stands.
var units = []struct {
	name string
	size time.Duration
}{
	{"ns", time.Nanosecond}, {"us", time.Microsecond}, {"µs", time.Microsecond}, {"μs", time.Microsecond},
	{"ms", time.Millisecond}, {"s", time.Second}, {"m", time.Minute}, {"h", time.Hour},
	{"d", 24 * time.Hour}, {"w", 7 * 24 * time.Hour},
}

var (
	errForm = errors.New("is not a duration such as 500ms, 30s, 2h or 7d")
	errUnit = errors.New("has no unit; write a duration such as 500ms, 30s, 2h or 7d")
	errLong = errors.New("is too long a duration")
)

// Parse reads a duration. The error names the text and shows what is expected.
func Parse(text string) (time.Duration, error) {
	d, err := parse(text)
	if err != nil {
		return 0, fmt.Errorf("%q %w", text, err)
	}
	return d, nil
}

func parse(text string) (time.Duration, error) {
	rest, negative := strings.CutPrefix(text, "-")
	if !negative {
		rest = strings.TrimPrefix(rest, "+")
	}
	if rest == "0" {
		return 0, nil
	}
	if rest == "" {
		return 0, errForm
	}
	var sum time.Duration
	for rest != "" {
		part, tail, err := term(rest)
		if err != nil {
			return 0, err
		}
		if part > math.MaxInt64-sum {
			return 0, errLong
		}
		sum, rest = sum+part, tail
	}
	if negative {
		sum = -sum
	}
	return sum, nil
}

// term reads one number with its unit.
func term(text string) (d time.Duration, rest string, err error) {
	whole, text := digits(text)
	fraction := ""
	if tail, dotted := strings.CutPrefix(text, "."); dotted {
		fraction, text = digits(tail)
	}
	if whole+fraction == "" {
		return 0, "", errForm
	}
	if text == "" {
		return 0, "", errUnit
	}
	for _, u := range units {
		tail, ok := strings.CutPrefix(text, u.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt("0"+whole, 10, 64)
		if err != nil || n > int64(math.MaxInt64/u.size) {
			return 0, "", errLong
		}
		d = time.Duration(n) * u.size
		share := 0.0
		for i := len(fraction) - 1; i >= 0; i-- {
			share = (share + float64(fraction[i]-'0')) / 10
		}
		part := time.Duration(math.Round(share * float64(u.size)))
		if part > math.MaxInt64-d {
			return 0, "", errLong
		}
		return d + part, tail, nil
	}
	return 0, "", errForm
}

func digits(text string) (number, rest string) {
	i := 0
	for i < len(text) && '0' <= text[i] && text[i] <= '9' {
		i++
	}
	return text[:i], text[i:]
}

// Format writes a duration in a form that Parse reads: in days where they are whole, otherwise as time.Duration does,
// without idle zeros. So 5m and not 5m0s.
func Format(d time.Duration) string {
	if d != 0 && d%(24*time.Hour) == 0 {
		return fmt.Sprintf("%dd", d/(24*time.Hour))
	}
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// Value is a flag.Value over a duration.
type Value time.Duration

// Set parses text; on a failure the value keeps what it had.
func (v *Value) Set(text string) error {
	d, err := Parse(text)
	if err == nil {
		*v = Value(d)
	}
	return err
}

func (v *Value) String() string {
	if v == nil {
		return ""
	}
	return Format(time.Duration(*v))
}

// Flag defines a flag of this grammar, as flag.FlagSet.Duration does for its own.
func Flag(fs *flag.FlagSet, name string, value time.Duration, usage string) *time.Duration {
	fs.Var((*Value)(&value), name, usage)
	return &value
}
