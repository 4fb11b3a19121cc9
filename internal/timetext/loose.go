package timetext

import (
	"bytes"
	"strconv"
	"time"
)

// Loose reads what SDKs write besides RFC 3339, and what the makers of those SDKs take:
//
//	2026-11-30T11:22Z            without seconds, or without minutes and seconds of the offset: +02, +0200
//	2026-11-30T11:22:33,5+02:00  a comma before the fraction
//	2026-11-30T11:22:33:Z        a colon too many
//	2026-11-30 11:22:33          without an offset, or any time: UTC
//	1796037753.123               seconds, milliseconds, microseconds or nanoseconds since 1970, by their size
//	Mon, 30 Nov 2026 11:22:33 GMT, and what JavaScript's Date prints
func Loose(b []byte) (time.Time, bool) {
	if t, ok := RFC3339(b); ok {
		return t, true
	}
	b = bytes.TrimSpace(b)
	if t, ok := iso(b); ok {
		return t, true
	}
	if t, ok := epoch(b); ok {
		return t, true
	}
	return mail(string(b))
}

// iso reads ISO 8601 with hyphens and colons, without parts that RFC 3339 requires.
func iso(b []byte) (t time.Time, ok bool) {
	if len(b) < 10 || b[4] != '-' || b[7] != '-' {
		return t, false
	}
	century, year, month, day := two(b), two(b[2:]), two(b[5:]), two(b[8:])
	if min(century, year) < 0 || month < 1 || month > 12 || day < 1 || day > days(century*100+year, month) {
		return t, false
	}
	date := time.Date(century*100+year, time.Month(month), day, 0, 0, 0, 0, time.UTC)
	if len(b) == 10 {
		return date, true
	}
	if b[10] != 'T' && b[10] != 't' && b[10] != ' ' {
		return t, false
	}
	clock, rest, ok := clock(b[11:])
	if !ok {
		return t, false
	}
	east, ok := offset(rest)
	return date.Add(clock - east), ok
}

// clock reads 11:22, 11:22:33 or 11:22:33.5, and a colon after it that nothing follows but the offset.
func clock(b []byte) (d time.Duration, rest []byte, ok bool) {
	if len(b) < 5 || b[2] != ':' {
		return 0, nil, false
	}
	hour, minute := two(b), two(b[3:])
	if hour < 0 || hour > 23 || minute < 0 || minute > 59 {
		return 0, nil, false
	}
	d, b = time.Duration(hour)*time.Hour+time.Duration(minute)*time.Minute, b[5:]
	if len(b) >= 3 && b[0] == ':' && two(b[1:]) >= 0 {
		second := two(b[1:])
		if second > 60 {
			return 0, nil, false
		}
		d, b = d+time.Duration(second)*time.Second, b[3:]
		if len(b) >= 2 && (b[0] == '.' || b[0] == ',') {
			n := 1
			for n < len(b) && b[n] >= '0' && b[n] <= '9' {
				n++
			}
			if n == 1 {
				return 0, nil, false
			}
			d, b = d+time.Duration(scaled(b[1:n], 6))*time.Microsecond, b[n:]
		}
	}
	return d, bytes.TrimPrefix(b, []byte(":")), true
}

// offset reads how far east of UTC a time is; none is UTC.
func offset(b []byte) (time.Duration, bool) {
	b = bytes.TrimPrefix(b, []byte(" "))
	switch string(b) {
	case "", "Z", "z", "UTC", "GMT":
		return 0, true
	}
	sign := time.Duration(1)
	if b[0] == '-' {
		sign = -1
	} else if b[0] != '+' {
		return 0, false
	}
	b = b[1:]
	if len(b) == 5 && b[2] == ':' {
		b = []byte{b[0], b[1], b[3], b[4]}
	}
	if len(b) != 2 && len(b) != 4 {
		return 0, false
	}
	hour, minute := two(b), 0
	if len(b) == 4 {
		minute = two(b[2:])
	}
	if hour < 0 || hour > 23 || minute < 0 || minute > 59 {
		return 0, false
	}
	return sign * (time.Duration(hour)*time.Hour + time.Duration(minute)*time.Minute), true
}

// epoch reads a number of seconds, or of their thousandths, millionths or billionths, since 1970. Nine digits are
// the fewest: of seconds they are 1973 to 2001.
func epoch(b []byte) (time.Time, bool) {
	if bytes.ContainsAny(b, "eE") {
		f, err := strconv.ParseFloat(string(b), 64)
		if err != nil {
			return time.Time{}, false
		}
		b = strconv.AppendFloat(nil, f, 'f', 6, 64)
	}
	whole, fraction, point := bytes.Cut(b, []byte("."))
	if len(whole) < 9 || len(whole) > 19 || point && len(fraction) == 0 {
		return time.Time{}, false
	}
	for _, digits := range [][]byte{whole, fraction} {
		for _, c := range digits {
			if c < '0' || c > '9' {
				return time.Time{}, false
			}
		}
	}
	n, err := strconv.ParseInt(string(whole), 10, 64)
	if err != nil {
		return time.Time{}, false
	}
	switch {
	case n < 1e11:
		return time.UnixMicro(n*1e6 + scaled(fraction, 6)).UTC(), true
	case n < 1e14:
		return time.UnixMicro(n*1e3 + scaled(fraction, 3)).UTC(), true
	case n < 1e17:
		return time.UnixMicro(n).UTC(), true
	}
	return time.UnixMicro(n / 1e3).UTC(), true
}

// scaled returns the digits after a point in units of the last of a number of places: 5 is 500,000 of six.
func scaled(digits []byte, places int) (n int64) {
	for i := range places {
		n *= 10
		if i < len(digits) {
			n += int64(digits[i] - '0')
		}
	}
	return n
}

// mail reads the form of mail and HTTP headers, and that of JavaScript's Date.
func mail(s string) (time.Time, bool) {
	if i := len(s) - 1; i > 0 && s[i] == ')' { // ... GMT+0200 (Central European Summer Time)
		for i > 0 && s[i] != '(' {
			i--
		}
		s = s[:max(i-1, 0)]
	}
	for _, layout := range []string{
		"Mon, 02 Jan 2006 15:04:05 GMT", time.RFC1123Z, "Mon Jan 02 2006 15:04:05 GMT-0700",
	} {
		if t, err := time.Parse(layout, s); err == nil {
			return t.UTC().Truncate(time.Microsecond), true
		}
	}
	return time.Time{}, false
}
