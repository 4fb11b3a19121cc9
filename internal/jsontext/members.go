package jsontext

import "bytes"

// What is wrong with text that goes on wrongly, wherever that is noticed.
const (
	wantName     = "a name in double quotes should begin here"
	wantColon    = `":" should follow the name of a member`
	afterMember  = `"," or "}" should follow a member of an object`
	afterElement = `"," or "]" should follow an element of an array`
)

// NextMember walks over what follows a member of an object that ended at i. It returns the index of the next member
// and true, or the index after the object and false.
func (s *Scanner) NextMember(i int) (next int, more bool) {
	return s.after(i, '}', afterMember)
}

// NextElement walks over what follows an element of an array that ended at i. It returns the index of the next element
// and true, or the index after the array and false.
func (s *Scanner) NextElement(i int) (next int, more bool) {
	return s.after(i, ']', afterElement)
}

func (s *Scanner) after(i int, end byte, want string) (next int, more bool) {
	i = s.Space(i)
	if i < len(s.Text) {
		switch s.Text[i] {
		case ',':
			return s.Space(i + 1), true
		case end:
			return i + 1, false
		}
	}
	return s.Fail(i, want), false
}

// Member is one member of an object.
type Member struct {
	// Begin is where the member begins, with its name's quote; At and End are where its value begins and ends.
	Begin, At, End int
	// Escaped reports whether the value is a string that holds escapes.
	Escaped bool
	// NameFlaw is the first flaw of the name, and Flaw that of the value.
	NameFlaw, Flaw Flaw
	// FlawAt is where the first of the two flaws is.
	FlawAt int

	// Indexes instead of slices, and no pointer that changes with each member: this is the innermost loop.
	text    []byte
	nameEnd int
	name    []byte // where it held escapes
}

// Name is the name without its escapes. It lies in Text, unless it held some.
func (m *Member) Name() []byte {
	if m.name != nil {
		return m.name
	}
	return m.text[m.Begin+1 : m.nameEnd]
}

// Head is the member as it was written up to its value: the quoted name and the colon. It lies in Text.
func (m *Member) Head() []byte { return m.text[m.Begin:m.At] }

// Raw is the value as it was written. It lies in Text. It is empty in a Member that was never set.
func (m *Member) Raw() []byte { return m.text[m.At:m.End] }

// Members walks over the members of an object one by one:
//
//	members := s.Members(i)
//	for members.Next() {
//		use(&members.Member)
//	}
//	i = members.After // -1 after a fault
//
// Between two calls of Next the text of members that were passed may be changed, since it is not read again.
type Members struct {
	Member
	// After is the index after the object once Next has returned false, or -1 when the text is not JSON.
	After int

	s *Scanner
}

// Members begins to walk over the object whose opening brace is at i.
func (s *Scanner) Members(i int) Members {
	return Members{Member: Member{text: s.Text}, After: i, s: s}
}

// Next goes on to the next member, and returns false where there is none. It clears the Scanner's flaw. It calls
// neither NextMember nor Key, which would cost an event of ten fields a tenth more.
func (m *Members) Next() bool {
	s, b := m.s, m.text
	i := m.End
	if i == 0 {
		if i = s.Space(m.After + 1); i < len(b) && b[i] == '}' {
			m.After = i + 1
			return false
		}
	} else {
		switch i = s.Space(i); {
		case i < len(b) && b[i] == ',':
			i = s.Space(i + 1)
		case i < len(b) && b[i] == '}':
			m.After = i + 1
			return false
		default:
			m.After = s.Fail(i, afterMember)
			return false
		}
	}
	if m.After = -1; i >= len(b) || b[i] != '"' {
		s.Fail(i, wantName)
		return false
	}
	s.Flaw, m.Escaped = FlawNone, false
	end, escaped := s.String(i)
	if end < 0 {
		return false
	}
	value := s.Space(end)
	if value >= len(b) || b[value] != ':' {
		s.Fail(value, wantColon)
		return false
	}
	value = s.Space(value + 1)
	m.Begin, m.nameEnd, m.At = i, end-1, value
	m.NameFlaw, m.FlawAt = s.Flaw, s.FlawAt
	if escaped || m.name != nil {
		m.setName(escaped && s.Flaw == FlawNone)
	}
	s.Flaw = FlawNone
	if value < len(b) && b[value] == '"' {
		i, m.Escaped = s.String(value)
	} else {
		i = s.Value(value)
	}
	if i < 0 {
		return false
	}
	m.End, m.Flaw = i, s.Flaw
	if m.NameFlaw == FlawNone {
		m.FlawAt = s.FlawAt
	}
	return true
}

// setName resolves the escapes of the name, in a copy.
func (m *Member) setName(escaped bool) {
	m.name = nil
	if escaped {
		m.name = bytes.Clone(m.text[m.Begin+1 : m.nameEnd])
		m.name = m.name[:Unescape(m.name)]
	}
}
