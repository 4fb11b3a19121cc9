package jsontext

// Cut returns where an element of an array ends that is not JSON: the index of the "," or "]" after it, or -1 where
// that is not clear. It looks at strings and brackets alone, and leaves Fault and FaultAt as they are.
//
// The element begins at i. Where passed is more than i, the element is an object whose members up to passed were read,
// and may have been changed since.
//
// It is strict, since an end at the wrong place would move the index of every element behind it: brackets match, a
// string or container begins only where a value may, and only what may follow a value follows one. A quote or a brace
// too many or too few therefore ends in -1. So does an element without a byte, as after a last comma.
func (s *Scanner) Cut(i, passed int) int {
	const value, bare = '"', 'x'
	var (
		b     = s.Text
		last  byte // what came last: a value, bare text, an opening bracket, "," or ":"; 0 is nothing
		depth int
		top   uint64 // the innermost 64 containers, 1 for an object
	)
	s.outer = s.outer[:0]
	if passed > i {
		i, depth, top, last = passed, 1, 1, value
	}
	for ; i < len(b); i++ {
		switch c := b[i]; c {
		case ' ', '\t', '\n', '\r':
		case '"':
			if last == value || last == bare {
				return -1
			}
			if i = closingQuote(b, i+1); i < 0 {
				return -1
			}
			last = value
		case '{', '[':
			if last == value || last == bare || depth > 0 && (top&1 == 1) != (last == ':') {
				return -1
			}
			if depth&63 == 0 && depth > 0 {
				s.outer = append(s.outer, top)
			}
			depth++
			if top <<= 1; c == '{' {
				top |= 1
			}
			last = c
		case '}', ']':
			if depth == 0 && c == ']' && last != 0 {
				return i
			}
			if depth == 0 || (top&1 == 1) != (c == '}') {
				return -1
			}
			depth--
			if top >>= 1; depth&63 == 0 && depth > 0 {
				top = s.outer[len(s.outer)-1]
				s.outer = s.outer[:len(s.outer)-1]
			}
			last = value
		case ',', ':':
			if depth == 0 && c == ',' && last != 0 {
				return i
			}
			if depth == 0 || (c == ':' && top&1 == 0) {
				return -1
			}
			last = c
		default:
			if last == value {
				return -1
			}
			last = bare
		}
	}
	return -1
}

// closingQuote returns the index of the quote that ends a string whose text begins at i, or -1.
func closingQuote(b []byte, i int) int {
	for ; i < len(b); i++ {
		switch b[i] {
		case '"':
			return i
		case '\\':
			i++
		}
	}
	return -1
}

// Past goes on after a fault in the array that is the value of the member of a name: it returns true where the array
// could be cut into elements, and Member then is that member. It is called once Next has returned false.
func (m *Members) Past(name string) bool {
	s := m.s
	if m.After >= 0 || m.At <= m.End || m.At >= len(s.Text) || s.Text[m.At] != '[' || string(m.Name()) != name {
		return false
	}
	fault, at := s.Fault, s.FaultAt
	i, more := s.Space(m.At+1), true
	for more {
		end := s.Value(i)
		if end < 0 {
			end = s.Cut(i, 0)
		}
		if end >= 0 {
			i, more = s.NextElement(end)
		}
		if end < 0 || i < 0 {
			s.Fault, s.FaultAt = fault, at // the first
			return false
		}
	}
	s.Fault, s.FaultAt = "", 0
	m.End, m.Flaw = i, FlawNone
	return true
}
