package ingest

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"sluice.example/sluice/internal/jsontext"
	"sluice.example/sluice/internal/spell"
)

// Each unknown field of an event is compared with those before it.
const maxUnknown = 64

// keep deals with a field that events do not have: it rejects it, with the field that may have been meant, or puts
// it by for properties.
func (d *decoder) keep(dr *draft, m *jsontext.Member) {
	if !d.cfg.KeepUnknownFields {
		reason := "no such field"
		if meant := suggest(string(m.Name())); meant != "" {
			reason += fmt.Sprintf("; did you mean %q?", meant)
		} else {
			reason += "; put it into properties, or set ingest.keep-unknown-fields"
		}
		dr.reject(cut(m.Name()), reason, causeUnknownField)
		return
	}
	if m.Flaw != jsontext.FlawNone {
		dr.flawed(m)
		return
	}
	for _, n := range d.names {
		if bytes.Equal(n, m.Name()) {
			dr.reject(cut(m.Name()), "appears twice in this event", causeDuplicateField)
			return
		}
	}
	if len(d.names) == maxUnknown {
		dr.reject(cut(m.Name()), fmt.Sprintf("is one unknown field more than the %d that can be kept; "+
			"put them into properties", maxUnknown), causeUnknownField)
		return
	}
	d.names = append(d.names, m.Name())
	d.putBy(m.Head(), m.Raw())
}

// putBy keeps a member for properties.
func (d *decoder) putBy(head, raw []byte) {
	d.unknown = append(append(append(d.unknown, head...), raw...), ',')
}

// yield moves what a client calls by the name of the adapter's own object into that object, so that it neither replaces
// it nor is taken for it.
func (d *decoder) yield(dr *draft) {
	p, name := dr.properties, dr.inside
	// A name can hide in an escape.
	if !bytes.Contains(p, []byte(name)) && !bytes.Contains(p, []byte(`\u`)) || search(p, [8]string{name})[0] == nil {
		return
	}
	rest := []byte{'{'}
	s := jsontext.Scanner{Text: p, MaxDepth: 1 << 30}
	for members := s.Members(0); members.Next(); {
		if m := &members.Member; string(m.Name()) == name {
			d.putBy(m.Head(), m.Raw())
		} else {
			rest = append(append(append(rest, m.Head()...), m.Raw()...), ',')
		}
	}
	dr.properties = append(bytes.TrimSuffix(rest, []byte(",")), '}')
}

// merge puts the fields that keep put by before the members of properties, so that of two with one name the one in
// properties, being the last, is what jsonb keeps. No value is written anew, so numbers keep their digits.
func (d *decoder) merge(properties []byte) []byte {
	inner := d.unknown[:len(d.unknown)-1] // without the last comma
	if len(properties) > 0 {
		if rest := bytes.TrimLeft(properties[1:], " \t\r\n"); rest[0] != '}' {
			inner = d.unknown
		}
	} else {
		properties = []byte("{}")
	}
	// An array that is too small stays with the events that lie in it.
	if need := len(inner) + len(properties) + 1; cap(d.moved)-len(d.moved) < need {
		d.moved = make([]byte, 0, max(need, 4096))
	}
	start := len(d.moved)
	d.moved = append(append(append(d.moved, '{'), inner...), properties[1:]...)
	return d.moved[start:len(d.moved):len(d.moved)]
}

var fieldNames = []string{"event_id", "event_name", "occurred_at", "anonymous_id", "user_id", "session_id", "page_url",
	"referrer", "user_agent", "properties"}

// plainNames are fieldNames without their underscores, by the same index.
var plainNames = strings.Split(strings.ReplaceAll(strings.Join(fieldNames, " "), "_", ""), " ")

// What other systems call our fields, in lower case and without separators.
var otherNames = map[string]string{
	"id": "event_id", "uuid": "event_id", "messageid": "event_id", "insertid": "event_id", "eventuuid": "event_id",
	"event": "event_name", "name": "event_name", "type": "event_name", "eventtype": "event_name",
	"timestamp": "occurred_at", "time": "occurred_at", "ts": "occurred_at", "date": "occurred_at",
	"originaltimestamp": "occurred_at", "createdat": "occurred_at", "eventtime": "occurred_at", "sentat": "occurred_at",
	"deviceid": "anonymous_id", "distinctid": "anonymous_id", "visitorid": "anonymous_id", "clientid": "anonymous_id",
	"userid": "user_id", "customerid": "user_id", "session": "session_id", "url": "page_url", "page": "page_url",
	"referer": "referrer", "useragent": "user_agent", "ua": "user_agent",
	"props": "properties", "data": "properties", "payload": "properties", "params": "properties",
	"attributes": "properties",
}

// suggest returns the field that was probably meant, or "".
func suggest(name string) string {
	if len(name) > 32 {
		return ""
	}
	plain := strings.Map(func(r rune) rune {
		switch {
		case r == '_' || r == '-' || r == '$' || r == ' ' || r == '.':
			return -1
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return r
	}, name)
	if meant, ok := otherNames[plain]; ok {
		return meant
	}
	if i := slices.Index(plainNames, spell.Nearest(plain, plainNames, 2)); i >= 0 {
		return fieldNames[i]
	}
	return ""
}
