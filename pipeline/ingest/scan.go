package ingest

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

// scanner walks over JSON text once and tells two kinds of fault apart. Text that is not JSON (RFC 8259) ends the
// walk: err and errAt say why and where. Well-formed text that PostgreSQL's jsonb cannot hold is a flaw: the walk goes
// on, so that the rest of the request can be used, and flaw keeps the first one since it was last cleared.
//
// Raw control characters inside strings count as flaws too: they are not JSON, but where the string ends is not in
// doubt, so that they need not cost the neighbours.
//
// Nothing here allocates, but for one word per 64 levels of nesting.
type scanner struct {
	b        []byte
	maxDepth int

	err   string
	errAt int

	flaw   flaw
	flawAt int

	// Which of the open containers are objects, beyond the innermost 64.
	outer []uint64
}

type flaw uint8

const (
	flawNone flaw = iota
	flawNUL
	flawSurrogate
	flawUTF8
	flawControl
	flawNumber
	flawDepth
)

// reason completes "properties ...".
func (f flaw) reason() string {
	switch f {
	case flawNUL:
		return `holds the character U+0000 (\u0000), which PostgreSQL cannot store`
	case flawSurrogate:
		return `holds one half of a UTF-16 surrogate pair (\ud800 to \udfff) without the other, which is no character`
	case flawUTF8:
		return "holds bytes that are not valid UTF-8"
	case flawControl:
		return `holds a control character that is not escaped (write a line break as \n)`
	case flawNumber:
		return "holds a number outside PostgreSQL's range (131072 digits before the decimal point, 16383 after it)"
	case flawDepth:
		return "is nested too deeply (ingest.max-depth)"
	}
	return ""
}

func (s *scanner) reset(b []byte) {
	s.b, s.err, s.errAt, s.flaw, s.flawAt = b, "", 0, flawNone, 0
}

// fail ends the walk; its result is what every method returns for malformed text.
func (s *scanner) fail(at int, what string) int {
	if at >= len(s.b) {
		at, what = len(s.b), "the text ends too early"
	}
	s.err, s.errAt = what, at
	return -1
}

func (s *scanner) flawed(at int, f flaw) {
	if s.flaw == flawNone {
		s.flaw, s.flawAt = f, at
	}
}

// space gives the index of the first byte from i on that is no white space; it may be len(b).
func (s *scanner) space(i int) int {
	for i < len(s.b) {
		switch s.b[i] {
		case ' ', '\n', '\r', '\t':
			i++
		default:
			return i
		}
	}
	return i
}

// value walks over the value that begins at i, and gives the index after it, or -1. Containers inside the value count
// their depth from 1.
func (s *scanner) value(i int) int {
	var (
		b     = s.b
		depth int
		top   uint64 // the innermost 64 containers, 1 for an object
	)
	s.outer = s.outer[:0]
value:
	if i >= len(b) {
		return s.fail(i, "")
	}
	switch c := b[i]; {
	case c == '"':
		if i, _ = s.str(i); i < 0 {
			return -1
		}
	case c == '{' || c == '[':
		if depth&63 == 0 && depth > 0 {
			s.outer = append(s.outer, top)
		}
		depth++
		if depth == s.maxDepth+1 {
			s.flawed(i, flawDepth)
		}
		top <<= 1
		if c == '{' {
			top |= 1
		}
		i = s.space(i + 1)
		if i < len(b) && b[i] == c+2 { // '}' or ']'
			i++
			goto pop
		}
		if c == '{' {
			goto key
		}
		goto value
	case c == '-' || c >= '0' && c <= '9':
		if i = s.number(i); i < 0 {
			return -1
		}
	case c == 't':
		if i = s.literal(i, "true"); i < 0 {
			return -1
		}
	case c == 'f':
		if i = s.literal(i, "false"); i < 0 {
			return -1
		}
	case c == 'n':
		if i = s.literal(i, "null"); i < 0 {
			return -1
		}
	default:
		return s.fail(i, "a JSON value should begin here")
	}
after:
	if depth == 0 {
		return i
	}
	i = s.space(i)
	if i >= len(b) {
		return s.fail(i, "")
	}
	if top&1 == 1 {
		switch b[i] {
		case ',':
			i = s.space(i + 1)
			goto key
		case '}':
			i++
			goto pop
		}
		return s.fail(i, `"," or "}" should follow a member of an object`)
	}
	switch b[i] {
	case ',':
		i = s.space(i + 1)
		goto value
	case ']':
		i++
		goto pop
	}
	return s.fail(i, `"," or "]" should follow an element of an array`)
pop:
	depth--
	top >>= 1
	if depth&63 == 0 && depth > 0 {
		top = s.outer[len(s.outer)-1]
		s.outer = s.outer[:len(s.outer)-1]
	}
	goto after
key:
	if i, _ = s.key(i); i < 0 {
		return -1
	}
	goto value
}

// key walks over the name of a member that begins at i, and the colon after it. It gives the index of the value, and
// whether the name holds escapes.
func (s *scanner) key(i int) (next int, escaped bool) {
	if i >= len(s.b) || s.b[i] != '"' {
		return s.fail(i, "a name in double quotes should begin here"), false
	}
	i, escaped = s.str(i)
	if i < 0 {
		return -1, false
	}
	i = s.space(i)
	if i >= len(s.b) || s.b[i] != ':' {
		return s.fail(i, `":" should follow the name of a member`), false
	}
	return s.space(i + 1), escaped
}

const (
	lows  = 0x0101010101010101
	highs = 0x8080808080808080
)

// str walks over the string whose opening quote is at i, and gives the index after its closing quote, and whether it
// holds escapes.
func (s *scanner) str(i int) (end int, escaped bool) {
	b := s.b
	start := i + 1
	wide := false
	i = start
	for {
		// Eight bytes at a time to the next one that is not plain: a quote, a backslash, a control character or the
		// beginning of a longer UTF-8 sequence. Each test may also mark bytes above a true mark, never below it.
		for i+8 <= len(b) {
			w := binary.LittleEndian.Uint64(b[i:])
			q := w ^ '"'*lows
			e := w ^ '\\'*lows
			m := ((q-lows)&^q | (e-lows)&^e | (w-0x20*lows)&^w | w) & highs
			if m != 0 {
				i += bits.TrailingZeros64(m) >> 3
				break
			}
			i += 8
		}
		if i >= len(b) {
			return s.fail(i, ""), false
		}
		switch c := b[i]; {
		case c == '"':
			if wide && !utf8.Valid(b[start:i]) {
				s.flawed(start-1, flawUTF8)
			}
			return i + 1, escaped
		case c == '\\':
			escaped = true
			if i = s.escape(i); i < 0 {
				return -1, false
			}
		case c < 0x20:
			if c == 0 {
				s.flawed(i, flawNUL)
			} else {
				s.flawed(i, flawControl)
			}
			i++
		case c >= 0x80:
			wide = true
			for i++; i < len(b) && b[i] >= 0x80; i++ {
			}
		default:
			i++
		}
	}
}

// escape walks over the escape whose backslash is at i, and over the second half of a surrogate pair.
func (s *scanner) escape(i int) int {
	if i+1 >= len(s.b) {
		return s.fail(len(s.b), "")
	}
	switch s.b[i+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return i + 2
	case 'u':
		r := s.hex4(i + 2)
		switch {
		case r < 0:
			return s.fail(min(i+2, len(s.b)), `four hexadecimal digits should follow "\u"`)
		case r == 0:
			s.flawed(i, flawNUL)
		case r >= 0xdc00 && r < 0xe000:
			s.flawed(i, flawSurrogate)
		case r >= 0xd800 && r < 0xdc00:
			if i+7 < len(s.b) && s.b[i+6] == '\\' && s.b[i+7] == 'u' {
				if low := s.hex4(i + 8); low >= 0xdc00 && low < 0xe000 {
					return i + 12
				}
			}
			s.flawed(i, flawSurrogate)
		}
		return i + 6
	}
	return s.fail(i, "a backslash should begin an escape that JSON knows")
}

// hex4 gives the value of the four hexadecimal digits at i, or -1.
func (s *scanner) hex4(i int) rune {
	if i+4 > len(s.b) {
		return -1
	}
	var r rune
	for _, c := range s.b[i : i+4] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return -1
		}
		r = r<<4 | rune(c)
	}
	return r
}

func (s *scanner) literal(i int, want string) int {
	if len(s.b)-i < len(want) || string(s.b[i:i+len(want)]) != want {
		for j := range want {
			if i+j >= len(s.b) || s.b[i+j] != want[j] {
				return s.fail(i+j, "a JSON value should begin here")
			}
		}
	}
	return i + len(want)
}

// number walks over the number that begins at i.
func (s *scanner) number(i int) int {
	b, start := s.b, i
	if b[i] == '-' {
		i++
	}
	switch {
	case i < len(b) && b[i] == '0':
		i++
	case i < len(b) && b[i] >= '1' && b[i] <= '9':
		i = s.digits(i)
	default:
		return s.fail(i, "a digit should follow here")
	}
	exponent := false
	if i < len(b) && b[i] == '.' {
		if i++; i >= len(b) || b[i] < '0' || b[i] > '9' {
			return s.fail(i, "a digit should follow the decimal point")
		}
		i = s.digits(i)
	}
	if i < len(b) && b[i]|0x20 == 'e' {
		exponent = true
		if i++; i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		if i >= len(b) || b[i] < '0' || b[i] > '9' {
			return s.fail(i, "a digit should follow in the exponent")
		}
		i = s.digits(i)
	}
	if (exponent || i-start > numericScale) && !numericHolds(b[start:i]) {
		s.flawed(start, flawNumber)
	}
	return i
}

func (s *scanner) digits(i int) int {
	for i < len(s.b) && s.b[i] >= '0' && s.b[i] <= '9' {
		i++
	}
	return i
}

// PostgreSQL's numeric, in which jsonb keeps numbers: 32768 groups of four digits before the decimal point, and a
// 14-bit count of digits after it. Exponents from INT_MAX/2 on are refused as such.
const (
	numericDigits   = 131072
	numericScale    = 16383
	numericExponent = 1<<30 - 1
)

// numericHolds says whether PostgreSQL's numeric can hold the JSON number.
func numericHolds(num []byte) bool {
	var (
		whole, fraction int  // digits before and after the point
		lead            = -1 // digits before the first that is not zero
		exponent        int
		point           bool
	)
	for i := 0; i < len(num); i++ {
		switch c := num[i]; {
		case c >= '0' && c <= '9':
			if c != '0' && lead < 0 {
				lead = whole + fraction
			}
			if point {
				fraction++
			} else {
				whole++
			}
		case c == '.':
			point = true
		case c|0x20 == 'e':
			negative := false
			for _, c := range num[i+1:] {
				switch c {
				case '-':
					negative = true
				case '+':
				default:
					exponent = exponent*10 + int(c-'0')
					if exponent >= numericExponent {
						return false
					}
				}
			}
			if negative {
				exponent = -exponent
			}
			i = len(num)
		}
	}
	if fraction-exponent > numericScale {
		return false
	}
	return lead < 0 || whole-lead+exponent <= numericDigits
}

// unescape writes the value of an escaped string, given without its quotes, over itself, and gives how long it is. The
// string has passed str without a flaw.
func unescape(b []byte) int {
	s := scanner{b: b}
	w := 0
	for r := 0; r < len(b); {
		c := b[r]
		if c != '\\' {
			b[w] = c
			w, r = w+1, r+1
			continue
		}
		c = b[r+1]
		r += 2
		switch c {
		case 'b':
			c = '\b'
		case 'f':
			c = '\f'
		case 'n':
			c = '\n'
		case 'r':
			c = '\r'
		case 't':
			c = '\t'
		case 'u':
			u := s.hex4(r)
			r += 4
			if u >= 0xd800 && u < 0xdc00 {
				u = (u-0xd800)<<10 + (s.hex4(r+2) - 0xdc00) + 0x10000
				r += 6
			}
			w += utf8.EncodeRune(b[w:], u)
			continue
		}
		b[w] = c
		w++
	}
	return w
}
