package jsontext

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

// Scanner walks JSON text once. Text that is not JSON (RFC 8259) ends the walk: Fault and FaultAt say why and where.
// Well-formed text that PostgreSQL's jsonb cannot hold is a flaw: the walk goes on, so that the rest of a request can
// be used, and Flaw keeps the first one since it was last cleared.
//
// Raw control characters inside strings count as flaws as well. They are not JSON, but it is clear where the string
// ends, so they need not cost the neighbours.
//
// Methods take the index at which something begins and return the index after it, or -1 once Fault is set. They
// allocate one word for each 64 levels of nesting and nothing else. A Scanner belongs to one goroutine.
type Scanner struct {
	// Text is what is scanned. It is borrowed and never changed.
	Text []byte
	// MaxDepth is how deep containers inside one value may be nested before it has FlawDepth.
	MaxDepth int
	// MaxDigits is with how many digits PostgreSQL may print a number before it has FlawDigits.
	MaxDigits int
	// Grown is how many bytes more PostgreSQL prints for the numbers of Text that were walked over than they have.
	Grown int

	// Fault says why Text is not JSON, "" while it is; FaultAt is the index of the offending byte.
	Fault   string
	FaultAt int

	// Flaw is the first flaw since Flaw was last FlawNone, and FlawAt where it is.
	Flaw   Flaw
	FlawAt int

	// Which open containers are objects, beyond the innermost 64.
	outer []uint64
}

// Flaw is why PostgreSQL cannot store a well-formed value as jsonb.
type Flaw uint8

// The flaws.
const (
	FlawNone      Flaw = iota
	FlawNUL            // the character U+0000
	FlawSurrogate      // one half of a surrogate pair without the other
	FlawUTF8           // bytes that are not UTF-8
	FlawControl        // a control character that is not escaped
	FlawNumber         // a number beyond PostgreSQL's numeric
	FlawDigits         // a number of more digits than MaxDigits
	FlawDepth          // deeper than MaxDepth
)

// Reset begins anew with another text.
func (s *Scanner) Reset(text []byte) {
	s.Text, s.Grown = text, 0
	s.Fault, s.FaultAt = "", 0
	s.Flaw, s.FlawAt = FlawNone, 0
}

// Fail ends the walk: it records what should have been at an index, and returns -1 as every method does then.
func (s *Scanner) Fail(at int, what string) int {
	if at >= len(s.Text) {
		at, what = len(s.Text), "the text ends too early"
	}
	s.Fault, s.FaultAt = what, at
	return -1
}

func (s *Scanner) flawed(at int, f Flaw) {
	if s.Flaw == FlawNone {
		s.Flaw, s.FlawAt = f, at
	}
}

// Space returns the index of the first byte from i on that is not white space; it may be len(Text).
func (s *Scanner) Space(i int) int {
	if i < len(s.Text) && s.Text[i] > ' ' { // nearly always
		return i
	}
	return s.space(i)
}

func (s *Scanner) space(i int) int {
	for i < len(s.Text) {
		switch s.Text[i] {
		case ' ', '\n', '\r', '\t':
			i++
		default:
			return i
		}
	}
	return i
}

// Value walks over the value that begins at i. Containers inside it count their depth from 1.
func (s *Scanner) Value(i int) int {
	var (
		b     = s.Text
		depth int
		top   uint64 // the innermost 64 containers, 1 for an object
	)
	s.outer = s.outer[:0]
value:
	if i >= len(b) {
		return s.Fail(i, "")
	}
	switch c := b[i]; {
	case c == '"':
		if i, _ = s.String(i); i < 0 {
			return -1
		}
	case c == '{' || c == '[':
		if depth&63 == 0 && depth > 0 {
			s.outer = append(s.outer, top)
		}
		depth++
		if depth == s.MaxDepth+1 {
			s.flawed(i, FlawDepth)
		}
		top <<= 1
		if c == '{' {
			top |= 1
		}
		i = s.Space(i + 1)
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
		return s.Fail(i, "a JSON value should begin here")
	}
after:
	if depth == 0 {
		return i
	}
	i = s.Space(i)
	if i >= len(b) {
		return s.Fail(i, "")
	}
	if top&1 == 1 {
		switch b[i] {
		case ',':
			i = s.Space(i + 1)
			goto key
		case '}':
			i++
			goto pop
		}
		return s.Fail(i, afterMember)
	}
	switch b[i] {
	case ',':
		i = s.Space(i + 1)
		goto value
	case ']':
		i++
		goto pop
	}
	return s.Fail(i, afterElement)
pop:
	depth--
	top >>= 1
	if depth&63 == 0 && depth > 0 {
		top = s.outer[len(s.outer)-1]
		s.outer = s.outer[:len(s.outer)-1]
	}
	goto after
key:
	if i, _ = s.Key(i); i < 0 {
		return -1
	}
	goto value
}

// Key walks over the name of a member that begins at i, and the colon after it. It returns the index of the value, and
// whether the name holds escapes.
func (s *Scanner) Key(i int) (value int, escaped bool) {
	if i >= len(s.Text) || s.Text[i] != '"' {
		return s.Fail(i, wantName), false
	}
	i, escaped = s.String(i)
	if i < 0 {
		return -1, false
	}
	i = s.Space(i)
	if i >= len(s.Text) || s.Text[i] != ':' {
		return s.Fail(i, wantColon), false
	}
	return s.Space(i + 1), escaped
}

const (
	lows  = 0x0101010101010101
	highs = 0x8080808080808080
)

// String walks over the string whose opening quote is at i. It returns the index after its closing quote, and whether
// it holds escapes.
func (s *Scanner) String(i int) (end int, escaped bool) {
	b := s.Text
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
			return s.Fail(i, ""), false
		}
		switch c := b[i]; {
		case c == '"':
			if wide && !utf8.Valid(b[start:i]) {
				s.flawed(start-1, FlawUTF8)
			}
			return i + 1, escaped
		case c == '\\':
			escaped = true
			if i = s.escape(i); i < 0 {
				return -1, false
			}
		case c < 0x20:
			if c == 0 {
				s.flawed(i, FlawNUL)
			} else {
				s.flawed(i, FlawControl)
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
func (s *Scanner) escape(i int) int {
	if i+1 >= len(s.Text) {
		return s.Fail(len(s.Text), "")
	}
	switch s.Text[i+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return i + 2
	case 'u':
		r := hex4(s.Text, i+2)
		switch {
		case r < 0:
			return s.Fail(min(i+2, len(s.Text)), `four hexadecimal digits should follow "\u"`)
		case r == 0:
			s.flawed(i, FlawNUL)
		case r >= 0xdc00 && r < 0xe000:
			s.flawed(i, FlawSurrogate)
		case r >= 0xd800 && r < 0xdc00:
			if i+7 < len(s.Text) && s.Text[i+6] == '\\' && s.Text[i+7] == 'u' {
				if low := hex4(s.Text, i+8); low >= 0xdc00 && low < 0xe000 {
					return i + 12
				}
			}
			s.flawed(i, FlawSurrogate)
		}
		return i + 6
	}
	return s.Fail(i, "a backslash should begin an escape that JSON knows")
}

func (s *Scanner) literal(i int, want string) int {
	if len(s.Text)-i < len(want) || string(s.Text[i:i+len(want)]) != want {
		for j := range want {
			if i+j >= len(s.Text) || s.Text[i+j] != want[j] {
				return s.Fail(i+j, "a JSON value should begin here")
			}
		}
	}
	return i + len(want)
}

// number walks over the number that begins at i.
func (s *Scanner) number(i int) int {
	b, start := s.Text, i
	if b[i] == '-' {
		i++
	}
	switch {
	case i < len(b) && b[i] == '0':
		i++
	case i < len(b) && b[i] >= '1' && b[i] <= '9':
		i = s.digits(i)
	default:
		return s.Fail(i, "a digit should follow here")
	}
	exponent := false
	if i < len(b) && b[i] == '.' {
		if i++; i >= len(b) || b[i] < '0' || b[i] > '9' {
			return s.Fail(i, "a digit should follow the decimal point")
		}
		i = s.digits(i)
	}
	if i < len(b) && b[i]|0x20 == 'e' {
		exponent = true
		if i++; i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		if i >= len(b) || b[i] < '0' || b[i] > '9' {
			return s.Fail(i, "a digit should follow in the exponent")
		}
		i = s.digits(i)
	}
	if exponent || i-start > min(s.MaxDigits, numericScale) {
		s.measure(start, i)
	}
	return i
}

// measure looks at what PostgreSQL makes of a number.
func (s *Scanner) measure(start, end int) {
	switch digits, printed, ok := numeric(s.Text[start:end]); {
	case !ok:
		s.flawed(start, FlawNumber)
	case digits > s.MaxDigits:
		s.flawed(start, FlawDigits)
	default:
		s.Grown += max(0, printed-(end-start))
	}
}

func (s *Scanner) digits(i int) int {
	for i < len(s.Text) && s.Text[i] >= '0' && s.Text[i] <= '9' {
		i++
	}
	return i
}
