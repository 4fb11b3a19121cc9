package ingest

import (
	"bytes"
	"fmt"
	"slices"
	"unsafe"

	"github.com/valyala/fasthttp"

	"sluice.example/sluice/internal/jsontext"
	"sluice.example/sluice/pipeline"
)

// shape is how a kind of client writes its events and reads its answers.
type shape struct {
	// decode turns a body into events.
	decode func(d *decoder, in input) *malformed
	// media reports whether a Content-Type is one that these clients send, and whether it means NDJSON.
	media func(contentType []byte) (lines, ok bool)
	// head opens the answer to events that were taken.
	head string
	// status is the status code that makes such a client do what ours would make others do.
	status func(int) int
	// copies is how often the text of a body is copied until it is events.
	copies int
	// keyInBody: a write key may also stand there.
	keyInBody bool
	// keyInQuery and sentInQuery are the names under which the query may hold a write key, and when the client sent the
	// request; "" is none.
	keyInQuery, sentInQuery string
	// sniffs: a body may be gzip without saying so.
	sniffs bool
	// holds: such a client loses events that are refused, and keeps those that were not answered. So a request waits
	// for room, and its connection is closed without an answer if there is none.
	holds bool
}

// input is one body on its way into a decoder.
type input struct {
	body   []byte
	lines  bool        // the Content-Type is NDJSON
	call   segmentCall // the route's
	header *fasthttp.RequestHeader
	sent   []byte // when the client sent it, by its own clock and as it says in the query
}

var native = shape{
	decode: func(d *decoder, in input) *malformed {
		if in.lines {
			return d.lines(in.body)
		}
		return d.json(in.body)
	},
	media:      mediaType,
	copies:     1,
	head:       `{`,
	status:     func(status int) int { return status },
	keyInQuery: "access_token", // for beacons, which have no headers of their own
}

// draft is an event of another system on its way to being one of ours.
type draft struct {
	e pipeline.Event
	// The event's id and time, and what the client calls them.
	id, when         []byte
	idName, whenName string
	bad              rejection
	from             origin
	// The member that the time was in, as it was sent.
	whenHead, whenRaw []byte
	// loose: the time may be written as the SDKs of that system do.
	loose bool
	// offset is how many milliseconds ago the event happened, and sent when the client sent the request, by its own
	// clock. Both may be empty.
	offset, sent []byte
	// properties is an object whose members become the event's properties, beside one object of the name inside, in which
	// all else is kept that the client sent.
	properties []byte
	inside     string
}

// reject keeps the first reason why the event can't be stored.
func (dr *draft) reject(field, reason, cause string) {
	if dr.bad.reason == "" {
		dr.bad = rejection{field: field, reason: reason, cause: cause}
	}
}

// flawed rejects a member whose name or value PostgreSQL cannot store.
func (dr *draft) flawed(m *jsontext.Member) {
	f, what := m.Flaw, ""
	if m.NameFlaw != jsontext.FlawNone {
		f, what = m.NameFlaw, "the name of the field "
	}
	dr.reject(cut(m.Name()), what+flawReason(f)+dr.from.at(m.FlawAt), flawCause(f))
}

// check rejects what can't be stored, and reports whether the member has a value at all.
func (dr *draft) check(m *jsontext.Member) bool {
	if m.NameFlaw != jsontext.FlawNone || m.Flaw != jsontext.FlawNone {
		dr.flawed(m)
		return false
	}
	return m.Raw()[0] != 'n'
}

// text returns the text of a member. Numbers and truth values, which loosely typed clients send as ids, are taken as
// they are written. The body is not changed.
func (dr *draft) text(m *jsontext.Member, most int) string {
	if !dr.check(m) {
		return ""
	}
	t, ok := plainText(m.Raw())
	switch {
	case !ok:
		dr.reject(string(m.Name()), "must be a string, not "+given(m.Raw()), causeType)
		return ""
	case len(t) > most:
		dr.reject(string(m.Name()), fmt.Sprintf("is %d bytes long; %d are allowed", len(t), most), causeTooLong)
		return ""
	}
	return t
}

// hint returns the text of a member that no event is rejected for: nil where it is not a scalar or has a flaw.
func hint(m *jsontext.Member) []byte {
	if m.NameFlaw != jsontext.FlawNone || m.Flaw != jsontext.FlawNone {
		return nil
	}
	t, _ := plainText(m.Raw())
	return []byte(t)
}

// plainText returns the text of a scalar that has no flaw.
func plainText(raw []byte) (string, bool) {
	switch raw[0] {
	case '{', '[', 'n':
		return "", false
	case '"':
		raw = raw[1 : len(raw)-1]
		if bytes.IndexByte(raw, '\\') >= 0 {
			raw = bytes.Clone(raw)
			raw = raw[:jsontext.Unescape(raw)]
		}
	}
	return unsafe.String(unsafe.SliceData(raw), len(raw)), true
}

// time keeps a member that holds the event's time.
func (dr *draft) time(m *jsontext.Member) {
	dr.when = []byte(dr.text(m, maxID))
	dr.whenName = string(m.Name())
	dr.whenHead, dr.whenRaw = m.Head(), m.Raw()
}

// object returns a member that should be an object, or nil where it is not one.
func (dr *draft) object(m *jsontext.Member) []byte {
	if !dr.check(m) {
		return nil
	}
	if m.Raw()[0] != '{' {
		dr.reject(string(m.Name()), "must be a JSON object, not "+given(m.Raw()), causeType)
		return nil
	}
	return m.Raw()
}

// rest keeps a member that no column holds.
func (d *decoder) rest(dr *draft, m *jsontext.Member) {
	if m.NameFlaw != jsontext.FlawNone || m.Flaw != jsontext.FlawNone {
		dr.flawed(m)
		return
	}
	d.putBy(m.Head(), m.Raw())
}

// lookup returns the text at a path of names inside an object without flaws, or "" if there is none.
func lookup(object []byte, path ...string) string {
	for _, name := range path {
		if len(object) == 0 || object[0] != '{' {
			return ""
		}
		object = search(object, [8]string{name})[0]
	}
	return columnText(object)
}

// pick returns the texts of several members of an object without flaws, "" for those that are missing.
func pick(object []byte, names [8]string) (texts [8]string) {
	if len(object) == 0 {
		return texts
	}
	for i, raw := range search(object, names) {
		texts[i] = columnText(raw)
	}
	return texts
}

func search(object []byte, names [8]string) (raw [8][]byte) {
	s := jsontext.Scanner{Text: object, MaxDepth: 1 << 30}
	for members := s.Members(0); members.Next(); {
		for i, name := range names {
			if string(members.Name()) == name {
				raw[i] = members.Raw()
			}
		}
	}
	return raw
}

// columnText returns the text of a scalar, or "" if the value is something else or too long for a column. Then it is
// only kept in properties.
func columnText(raw []byte) string {
	if len(raw) == 0 || len(raw) > maxText {
		return ""
	}
	t, _ := plainText(raw)
	return t
}

// finish makes the draft an event, or a rejection. size is how long it is as JSON, with all that it takes from around.
func (d *decoder) finish(dr *draft, size int) {
	if size > d.cfg.MaxEventBytes {
		dr.reject("", fmt.Sprintf("the event is %d bytes of JSON; %d are allowed (ingest.max-event-bytes)",
			size, d.cfg.MaxEventBytes), causeTooLong)
	}
	if dr.inside == "" && dr.e.Name == "" {
		dr.reject("event_name", "is required", causeMissing)
	}
	if dr.bad.reason == "" {
		d.identify(dr)
	}
	if dr.bad.reason == "" {
		d.gather(dr, size)
	}
	if dr.bad.reason != "" {
		d.reject(dr.bad.field, dr.bad.reason, dr.bad.cause)
		return
	}
	dr.e.ReceivedAt = d.now
	d.events = append(d.events, dr.e)
	d.count++
}

// gather puts the event's properties together. What they are once PostgreSQL prints them counts against the bound as
// well: 1e399 has five bytes, and 400 whenever it is read. Half of what was sent is what colons and commas may add.
func (d *decoder) gather(dr *draft, size int) {
	if dr.inside != "" {
		d.yield(dr)
	}
	dr.e.Properties = dr.properties
	if n := len(d.unknown); n > 0 {
		if dr.inside != "" {
			d.unknown = slices.Concat([]byte(`"`+dr.inside+`":{`), d.unknown[:n-1], []byte("},"))
		}
		dr.e.Properties = d.merge(dr.properties)
	}
	if size+size/2+d.s.Grown <= d.cfg.MaxEventBytes {
		return
	}
	if size += jsontext.Printed(dr.e.Properties) - len(dr.e.Properties); size > d.cfg.MaxEventBytes {
		dr.reject("properties", fmt.Sprintf("PostgreSQL would print the event as %d bytes of JSON; "+
			"%d are allowed (ingest.max-event-bytes)", size, d.cfg.MaxEventBytes), causeTooLong)
	}
}
