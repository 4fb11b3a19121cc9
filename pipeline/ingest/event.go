package ingest

import (
	"bytes"
	"fmt"
	"unsafe"

	"sluice.example/sluice/internal/jsontext"
)

// The fields of an event. What has been seen of them is kept in bits.
const (
	noField = iota
	fieldID
	fieldName
	fieldTime
	fieldAnonymous
	fieldUser
	fieldSession
	fieldPage
	fieldReferrer
	fieldAgent
	fieldProperties
)

// Most bytes of a text field. Ids are kept exactly, never cut, so a longer one is rejected.
const (
	maxName = 200
	maxID   = 512
	maxText = 8 << 10
)

// field returns which field a name is, and the most bytes that it may have.
func field(name []byte) (which, most int) {
	switch string(name) {
	case "event_id":
		return fieldID, maxID
	case "event_name":
		return fieldName, maxName
	case "occurred_at":
		return fieldTime, 64
	case "anonymous_id":
		return fieldAnonymous, maxID
	case "user_id":
		return fieldUser, maxID
	case "session_id":
		return fieldSession, maxID
	case "page_url":
		return fieldPage, maxText
	case "referrer":
		return fieldReferrer, maxText
	case "user_agent":
		return fieldAgent, maxText
	case "properties":
		return fieldProperties, 0
	}
	return noField, 0
}

// event decodes the object at i into one more event or one more rejection, and returns the index after it, or -1. Where
// the object is the whole body, one without a name that holds an array named "events" was meant to hold events and
// nothing else.
func (d *decoder) event(i int, whole bool) (end int, m *malformed) {
	d.unknown, d.names = d.unknown[:0], d.names[:0]
	dr := draft{idName: "event_id", whenName: "occurred_at", from: d.from}
	var seen uint
	var other []byte // the head of the first member that may not stand beside "events"
	otherAt, envelope := 0, false
	begin := i
	members := d.s.Members(i)
	for n := 0; members.Next(); n++ {
		m := &members.Member
		which, most := field(m.Name())
		if other == nil && (n == 1 || !bytes.HasPrefix(m.Head(), []byte(`"events"`))) {
			other, otherAt = m.Head(), m.Begin
		}
		envelope = envelope || which == noField && string(m.Name()) == "events" && m.Raw()[0] == '['
		switch {
		case dr.bad.reason != "": // the first fault is enough; the rest is only walked over
		case m.NameFlaw != jsontext.FlawNone:
			dr.flawed(m)
		case which == noField:
			d.keep(&dr, m)
		case seen&(1<<which) != 0:
			dr.reject(string(m.Name()), "appears twice in this event", causeDuplicateField)
		case m.Raw()[0] == 'n':
			seen |= 1 << which // null is as good as absent
		case m.Flaw != jsontext.FlawNone:
			dr.flawed(m)
		default:
			seen |= 1 << which
			dr.set(m, which, most)
		}
	}
	if i = members.After; i < 0 {
		d.passed = members.End
		return -1, nil
	}
	if whole && envelope && seen&(1<<fieldName) == 0 {
		return -1, besideEvents(otherAt, other)
	}
	d.finish(&dr, i-begin)
	return i, nil
}

// set sets a field to the member's value, which has no flaw and is not null. Escapes are resolved in place.
func (dr *draft) set(m *jsontext.Member, which, most int) {
	if which == fieldProperties {
		if m.Raw()[0] != '{' {
			dr.reject("properties", "must be a JSON object, not "+given(m.Raw()), causeType)
			return
		}
		dr.properties = m.Raw()
		return
	}
	if m.Raw()[0] != '"' {
		if which == fieldTime {
			dr.reject(dr.whenName, notATime+given(m.Raw()), causeType)
			return
		}
		dr.reject(string(m.Name()), "must be a string, not "+given(m.Raw()), causeType)
		return
	}
	text := m.Raw()[1 : len(m.Raw())-1]
	if m.Escaped {
		text = text[:jsontext.Unescape(text)]
	}
	switch {
	case len(text) > most:
		dr.reject(string(m.Name()), fmt.Sprintf("is %d bytes long; %d are allowed", len(text), most), causeTooLong)
		return
	case len(text) == 0 && (which == fieldName || which == fieldTime):
		dr.reject(string(m.Name()), "must not be empty", causeMissing)
		return
	case len(text) == 0:
		return
	}
	switch s := unsafe.String(&text[0], len(text)); which {
	case fieldID:
		dr.id = text
	case fieldName:
		dr.e.Name = s
	case fieldTime:
		dr.when = text
	case fieldAnonymous:
		dr.e.AnonymousID = s
	case fieldUser:
		dr.e.UserID = s
	case fieldSession:
		dr.e.SessionID = s
	case fieldPage:
		dr.e.PageURL = s
	case fieldReferrer:
		dr.e.Referrer = s
	case fieldAgent:
		dr.e.UserAgent = s
	}
}
