package ingest

import (
	"bytes"
	"fmt"
	"time"
	"unsafe"

	"sluice.example/sluice/internal/jsontext"
	"sluice.example/sluice/pipeline"
)

// The fields of an event, as bits of what has been seen.
const (
	fieldID = 1 << iota
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

// field tells which field a name is, its bit, and the most bytes that it may have.
func field(name []byte) (bit uint, most int) {
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
	return 0, 0
}

// event decodes the object at i into one more event or one more refusal, and gives the index after it, or -1. An
// object that is no event, but holds an array named "events", is told by envelope.
func (d *decoder) event(i int) (end int, envelope bool) {
	var (
		b     = d.s.Text
		begin = i
		e     = pipeline.Event{ReceivedAt: d.now}
		seen  uint
		when  []byte
		id    []byte
		bad   refusal // the first fault; the rest is only walked over
		array bool
	)
	d.unknown, d.names = d.unknown[:0], d.names[:0]
	i = d.s.Space(i + 1)
	if i < len(b) && b[i] == '}' {
		i++
		goto done
	}
	for {
		d.s.Flaw = jsontext.FlawNone
		start := i
		value, escaped := d.s.Key(i)
		if value < 0 {
			return -1, false
		}
		name := b[start+1 : start+bytes.LastIndexByte(b[start:value], '"')]
		if escaped && d.s.Flaw == jsontext.FlawNone {
			name = bytes.Clone(name)
			name = name[:jsontext.Unescape(name)]
		}
		nameFlaw := d.s.Flaw
		d.s.Flaw = jsontext.FlawNone
		bit, most := field(name)
		isString := value < len(b) && b[value] == '"'
		if isString {
			i, escaped = d.s.String(value)
		} else {
			i = d.s.Value(value)
		}
		if i < 0 {
			return -1, false
		}
		raw := b[value:i]
		array = array || string(name) == "events" && raw[0] == '['
		switch {
		case bad.reason != "":
		case nameFlaw != jsontext.FlawNone:
			bad = refusal{field: cut(name), reason: "the name of the field " + flawReason(nameFlaw), cause: flawCause(nameFlaw)}
		case bit == 0:
			bad = d.keep(b[start:value], name, raw)
		case seen&bit != 0:
			bad = refusal{field: string(name), reason: "appears twice in this event", cause: "duplicate_field"}
		case raw[0] == 'n':
			seen |= bit // null is as good as absent
		case d.s.Flaw != jsontext.FlawNone:
			bad = refusal{field: string(name), reason: fmt.Sprintf("%s, at byte %d of the body", flawReason(d.s.Flaw), d.s.FlawAt), cause: flawCause(d.s.Flaw)}
		case bit == fieldProperties:
			seen |= bit
			if raw[0] != '{' {
				bad = refusal{field: "properties", reason: "must be a JSON object, not " + given(raw), cause: "type"}
				break
			}
			e.Properties = raw
		case !isString:
			bad = refusal{field: string(name), reason: "must be a string, not " + given(raw), cause: "type"}
		default:
			seen |= bit
			text := raw[1 : len(raw)-1]
			if escaped {
				text = text[:jsontext.Unescape(text)]
			}
			if len(text) > most {
				bad = refusal{field: string(name), reason: fmt.Sprintf("is %d bytes long; %d are allowed", len(text), most), cause: "too_long"}
				break
			}
			if len(text) == 0 {
				if bit == fieldName || bit == fieldTime {
					bad = refusal{field: string(name), reason: "must not be empty", cause: "missing"}
				}
				break
			}
			switch s := unsafe.String(&text[0], len(text)); bit {
			case fieldID:
				id = text
			case fieldName:
				e.Name = s
			case fieldTime:
				when = text
			case fieldAnonymous:
				e.AnonymousID = s
			case fieldUser:
				e.UserID = s
			case fieldSession:
				e.SessionID = s
			case fieldPage:
				e.PageURL = s
			case fieldReferrer:
				e.Referrer = s
			case fieldAgent:
				e.UserAgent = s
			}
		}
		i = d.s.Space(i)
		if i < len(b) && b[i] == ',' {
			i = d.s.Space(i + 1)
			continue
		}
		if i < len(b) && b[i] == '}' {
			i++
			break
		}
		return d.s.Fail(i, `"," or "}" should follow a member of an object`), false
	}
done:
	if array && seen&fieldName == 0 {
		return i, true
	}
	if bad.reason == "" && i-begin > d.cfg.MaxEventBytes {
		bad = refusal{reason: fmt.Sprintf("the event is %d bytes of JSON; %d are allowed (ingest.max-event-bytes)", i-begin, d.cfg.MaxEventBytes), cause: "too_long"}
	}
	if bad.reason == "" && e.Name == "" {
		bad = refusal{field: "event_name", reason: "is required", cause: "missing"}
	}
	if bad.reason == "" {
		bad = d.identify(&e, id, when, "event_id", "occurred_at")
	}
	if bad.reason != "" {
		d.refuse(bad.field, bad.reason, bad.cause)
		return i, false
	}
	if len(d.unknown) > 0 {
		e.Properties = d.merge(e.Properties)
	}
	d.events = append(d.events, e)
	d.count++
	return i, false
}

// identify sets the event's id and time, which together are its key: a retry has to come to the same. idName and whenName
// are what the client calls them.
func (d *decoder) identify(e *pipeline.Event, id, when []byte, idName, whenName string) refusal {
	var known bool // whether the id holds a time
	var inside time.Time
	if len(id) == 0 {
		e.ID = pipeline.NewUUIDv7(d.now)
	} else {
		s := unsafe.String(&id[0], len(id))
		var isUUID bool
		if e.ID, isUUID = pipeline.ParseUUID(s); isUUID {
			inside, known = e.ID.Time()
		} else {
			e.ID, e.ClientID = pipeline.HashUUID(s), s
		}
	}
	if len(when) > 0 {
		t, ok := parseTime(when)
		if !ok {
			return refusal{field: whenName, cause: "time",
				reason: fmt.Sprintf("must be a time as in RFC 3339 with its offset, like 2026-01-31T23:59:59.123Z or 2026-01-31T23:59:59+02:00, not %q", cut(when))}
		}
		e.OccurredAt = t
		return d.checkTime(whenName, t)
	}
	switch {
	case len(id) == 0:
		e.OccurredAt = d.now
	case known && inside.After(d.newest):
		// Taken as unknown now, its time would be known to a retry after the clock has caught up: two keys.
		return refusal{field: idName, cause: "time",
			reason: fmt.Sprintf("holds the time %s (UUID version 7), which is more than %s ahead (ingest.max-ahead); send %s", inside.Format(time.RFC3339), d.cfg.MaxAhead, whenName)}
	case known && !inside.Before(d.oldest):
		e.OccurredAt = inside
	default:
		e.OccurredAt, e.TimeUnknown = d.now, true
	}
	return refusal{}
}

func (d *decoder) checkTime(name string, t time.Time) refusal {
	switch {
	case t.Before(d.oldest):
		return refusal{field: name, cause: "time",
			reason: fmt.Sprintf("is %s, more than %s ago (ingest.max-age)", t.Format(time.RFC3339), d.cfg.MaxAge)}
	case t.After(d.newest):
		return refusal{field: name, cause: "time",
			reason: fmt.Sprintf("is %s, more than %s ahead (ingest.max-ahead)", t.Format(time.RFC3339), d.cfg.MaxAhead)}
	}
	return refusal{}
}
