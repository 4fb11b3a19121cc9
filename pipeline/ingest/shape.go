package ingest

import (
	"bytes"
	"fmt"
	"strings"
	"unsafe"

	"github.com/valyala/fasthttp"

	"sluice.example/sluice/internal/jsontext"
	"sluice.example/sluice/pipeline"
)

// shape is how a kind of client writes its events and reads its answers.
type shape struct {
	// decode turns a body into events. kind is what the path says about them.
	decode func(d *decoder, kind string, b []byte, h *fasthttp.RequestHeader) *malformed
	// media says whether a Content-Type is one that these clients send, and whether it means NDJSON.
	media func(contentType []byte) (lines, ok bool)
	// head opens the answer to events that were taken.
	head string
	// status is the status code that makes such a client do what ours would make others do.
	status func(int) int
	// keyInBody and keyInQuery: a write key may also stand there, in the query as access_token.
	keyInBody, keyInQuery bool
	// sniffs: a body may be gzip without saying so.
	sniffs bool
	// holds: such a client loses events that are refused, and keeps those that were not answered. So a request waits
	// for room, and is hung up on where there is none.
	holds bool
}

// route is what a path stands for.
type route struct {
	shape *shape
	kind  string
}

// routes by path, without a slash at the end.
var routes = func() map[string]route {
	m := map[string]route{"/v1/events": {&native, ""}, "/v1/stream": {&native, "stream"}, "/v1/cloudevents": {&cloudevents, ""}}
	for path, kind := range segmentPaths {
		m[path] = route{&segment, kind}
	}
	for path, kind := range posthogPaths {
		m[path] = route{&posthog, kind}
	}
	return m
}()

var native = shape{
	decode: func(d *decoder, kind string, b []byte, _ *fasthttp.RequestHeader) *malformed {
		if kind == "lines" {
			return d.lines(b)
		}
		return d.json(b)
	},
	media:  mediaType,
	head:   `{`,
	status: func(status int) int { return status },
}

// exchange is a request and its answer, and whose.
type exchange struct {
	*fasthttp.RequestCtx
	shape *shape
}

// member is one member of an object. Its bytes lie in the body.
type member struct {
	name []byte        // without escapes
	head []byte        // the name, quoted, up to its value
	raw  []byte        // the value
	flaw jsontext.Flaw // of the name or the value
	at   int           // where that is
}

// walk calls f with each member of the object at i, and gives the index after it, or -1.
func (d *decoder) walk(i int, f func(member)) int {
	b := d.s.Text
	i = d.s.Space(i + 1)
	if i < len(b) && b[i] == '}' {
		return i + 1
	}
	for {
		d.s.Flaw = jsontext.FlawNone
		start := i
		value, escaped := d.s.Key(i)
		if value < 0 {
			return -1
		}
		name := b[start+1 : start+bytes.LastIndexByte(b[start:value], '"')]
		if escaped && d.s.Flaw == jsontext.FlawNone {
			name = bytes.Clone(name)
			name = name[:jsontext.Unescape(name)]
		}
		if i = d.s.Value(value); i < 0 {
			return -1
		}
		f(member{name, b[start:value], b[value:i], d.s.Flaw, d.s.FlawAt})
		i = d.s.Space(i)
		if i < len(b) && b[i] == ',' {
			i = d.s.Space(i + 1)
			continue
		}
		if i < len(b) && b[i] == '}' {
			return i + 1
		}
		return d.s.Fail(i, `"," or "}" should follow a member of an object`)
	}
}

// draft is an event of another system on its way to being one of ours.
type draft struct {
	e pipeline.Event
	// The event's id and time, and what the client calls them.
	id, when         []byte
	idName, whenName string
	bad              refusal
	// properties is an object whose members become the event's properties, beside one object of the name inside, in which
	// all else is kept that the client sent.
	properties []byte
	inside     string
}

func (dr *draft) refuse(field, reason, cause string) {
	if dr.bad.reason == "" {
		dr.bad = refusal{field: field, reason: reason, cause: cause}
	}
}

// check refuses what can't be stored, and says whether the member has a value at all.
func (d *decoder) check(dr *draft, m member) bool {
	if m.flaw != jsontext.FlawNone {
		dr.refuse(cut(m.name), fmt.Sprintf("%s, at byte %d of the body", flawReason(m.flaw), m.at), flawCause(m.flaw))
	}
	return m.flaw == jsontext.FlawNone && m.raw[0] != 'n'
}

// text gives the text of a member. Numbers and truth values, which loosely typed clients send as ids, are taken as they
// are written. The body is left as it is.
func (d *decoder) text(dr *draft, m member, most int) string {
	if !d.check(dr, m) {
		return ""
	}
	t, ok := plainText(m.raw)
	switch {
	case !ok:
		dr.refuse(string(m.name), "must be a string, not "+given(m.raw), "type")
		return ""
	case len(t) > most:
		dr.refuse(string(m.name), fmt.Sprintf("is %d bytes long; %d are allowed", len(t), most), "too_long")
		return ""
	}
	return t
}

// plainText gives the text of a scalar that has no flaw.
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

// object keeps a member that should be an object, and gives nil where it is none.
func (d *decoder) objectOf(dr *draft, m member) []byte {
	if !d.check(dr, m) {
		return nil
	}
	if m.raw[0] != '{' {
		dr.refuse(string(m.name), "must be a JSON object, not "+given(m.raw), "type")
		return nil
	}
	return m.raw
}

// rest keeps a member that no column holds.
func (d *decoder) rest(dr *draft, m member) {
	if m.flaw != jsontext.FlawNone {
		d.check(dr, m)
		return
	}
	d.unknown = append(append(append(d.unknown, m.head...), m.raw...), ',')
}

// lookup gives the text at a path of names inside an object without flaws, or "" where there is none.
func lookup(object []byte, path ...string) string {
	for _, name := range path {
		if len(object) == 0 || object[0] != '{' {
			return ""
		}
		object = search(object, [8]string{name})[0]
	}
	return columnText(object)
}

// pick gives the texts of several members of an object without flaws, "" where there is none.
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
	in := decoder{s: jsontext.Scanner{Text: object, MaxDepth: 1 << 30}}
	in.walk(0, func(m member) {
		for i, name := range names {
			if string(m.name) == name {
				raw[i] = m.raw
			}
		}
	})
	return raw
}

// columnText gives the text of a value, or "" where it is none, or too long for a column; it is kept in properties then.
func columnText(raw []byte) string {
	if len(raw) == 0 || len(raw) > maxText {
		return ""
	}
	t, _ := plainText(raw)
	return t
}

// finish makes the draft an event, or a refusal. size is how long it is as JSON.
func (d *decoder) finish(dr *draft, size int) {
	if size > d.cfg.MaxEventBytes {
		dr.refuse("", fmt.Sprintf("the event is %d bytes of JSON; %d are allowed (ingest.max-event-bytes)", size, d.cfg.MaxEventBytes), "too_long")
	}
	if dr.bad.reason == "" {
		dr.bad = d.identify(&dr.e, dr.id, dr.when, dr.idName, dr.whenName)
	}
	if dr.bad.reason != "" {
		d.refuse(dr.bad.field, dr.bad.reason, dr.bad.cause)
		return
	}
	dr.e.ReceivedAt = d.now
	dr.e.Properties = dr.properties
	if n := len(d.unknown); n > 0 {
		var b strings.Builder
		b.Grow(n + len(dr.inside) + 8)
		b.WriteString(`"` + dr.inside + `":{`)
		b.Write(d.unknown[:n-1])
		b.WriteString("},")
		d.unknown = append(d.unknown[:0], b.String()...)
		dr.e.Properties = d.merge(dr.properties)
	}
	d.events = append(d.events, dr.e)
	d.count++
}
