package ingest

import (
	"bytes"
	"fmt"
	"time"
	"unicode/utf8"
	"unsafe"

	"sluice.example/sluice/internal/jsontext"
	"sluice.example/sluice/pipeline"
)

// decoder turns one body into events. It is reused: only what take returns outlives the next reset. Until take, the
// strings of the events lie in the body itself, where escapes are resolved in place.
type decoder struct {
	cfg    *Config
	tenant int32
	now    time.Time // when the request was read
	oldest time.Time
	newest time.Time

	s jsontext.Scanner
	// count is how many events the body holds so far: the index of the next.
	count    int
	events   []pipeline.Event
	rejected []rejection // by index, ascending

	// key is the write key that a body held, and sent when its client sent it, by that client's clock.
	// keyed: an event was seen that may have held one.
	key   string
	keyed bool
	sent  []byte
	// traced: the traces of events are kept (ingest.trace-context).
	traced bool
	// copied is how many bytes of what stands beside the events were copied into them.
	copied int
	// from is where the scanned text stands in the body.
	from origin
	// passed is how far an event was decoded, and its text perhaps changed, that turned out not to be JSON.
	passed int

	// What keep has put by of the event at hand, and where properties are put together with it.
	unknown []byte
	names   [][]byte
	moved   []byte
}

// rejection is an event that never becomes one.
type rejection struct {
	index         int
	field, reason string
	// cause is the reason in one word, for the metric.
	cause string
}

// origin is where a text that is scanned stands in the body, which it is where both are 0: byte i of the text is byte
// i+shift of the body, and what lies before byte first is from elsewhere.
type origin struct{ shift, first int }

// at says where byte i of the text is.
func (o origin) at(i int) string {
	if i < o.first {
		return ""
	}
	return fmt.Sprintf(", at byte %d of the body", i+o.shift)
}

// malformed is why a whole body can't be used.
type malformed struct {
	status int
	// offset into the decompressed body, -1 where it is not known.
	offset int
	detail string
}

func (d *decoder) reset(cfg *Config, tenant int32, now time.Time) {
	now = now.UTC().Truncate(time.Microsecond)
	d.cfg, d.tenant, d.now, d.traced = cfg, tenant, now, cfg.TraceContext
	d.oldest, d.newest = now.Add(-cfg.MaxAge), now.Add(cfg.MaxAhead)
	d.s.MaxDepth, d.s.MaxDigits = maxDepth, jsontext.MaxDigits
	d.count = 0
	clear(d.events) // they point into the body of an earlier request
	d.events = d.events[:0]
	clear(d.rejected)
	d.rejected = d.rejected[:0]
	d.moved, d.key, d.keyed, d.sent, d.copied, d.passed = nil, "", false, nil, 0, 0
	d.from = origin{}
}

// drop lets go of the body.
func (d *decoder) drop() {
	clear(d.events)
	clear(d.rejected)
	clear(d.names[:cap(d.names)])
	d.events, d.rejected, d.moved = d.events[:0], d.rejected[:0], nil
	d.key, d.sent, d.s.Text = "", nil, nil
}

// byteOrderMark stands before what some editors and libraries write (RFC 8259, 8.1).
var byteOrderMark = []byte("\xef\xbb\xbf")

// begin returns where text begins from i on: after white space, and after a byte order mark at i itself.
func (d *decoder) begin(i int) int {
	if bytes.HasPrefix(d.s.Text[i:], byteOrderMark) {
		i += len(byteOrderMark)
	}
	return d.s.Space(i)
}

// open returns where the only JSON value of a body begins.
func (d *decoder) open(b []byte) (int, *malformed) {
	d.s.Reset(b)
	i := d.begin(0)
	if i == len(b) {
		return i, &malformed{400, i, "the body is empty; send one event as a JSON object, or an array of them"}
	}
	return i, nil
}

// close reports what is wrong after the body's value, which ended at i, or with it, where i is -1.
func (d *decoder) close(i int) *malformed {
	if i < 0 {
		return d.syntax()
	}
	if i = d.s.Space(i); i < len(d.s.Text) {
		return &malformed{400, i, "nothing should follow the end of the JSON text; " +
			"send one event a line with Content-Type: application/x-ndjson"}
	}
	return nil
}

// json decodes one object, an array of objects, or {"events": [...]}.
func (d *decoder) json(b []byte) *malformed {
	i, m := d.open(b)
	if m != nil {
		return m
	}
	switch b[i] {
	case '{':
		i, m = d.object(i)
	case '[':
		i, m = d.elements(i, d.element)
	default:
		at := i
		if i = d.s.Value(i); i >= 0 {
			return &malformed{400, at, "an object or an array of objects should begin here"}
		}
	}
	if m != nil {
		return m
	}
	return d.close(i)
}

func (d *decoder) syntax() *malformed { return &malformed{400, d.s.FaultAt, d.s.Fault} }

// lines decodes NDJSON. A line that is not a JSON object costs only itself. A byte order mark may stand before any
// line, since files that begin with one are put together.
func (d *decoder) lines(b []byte) *malformed {
	for start := 0; start < len(b); {
		end := bytes.IndexByte(b[start:], '\n')
		if end < 0 {
			end = len(b)
		} else {
			end += start
		}
		// The scanner sees the line's end as the text's, but counts from the body's beginning.
		d.s.Reset(b[:end])
		i := d.begin(start)
		if i == end {
			start = end + 1
			continue
		}
		if m := d.tooMany(i); m != nil {
			return m
		}
		if d.one(i, end) < 0 {
			d.broken("line")
		}
		start = end + 1
	}
	return nil
}

// one decodes the only value between i and the end of a line. It returns -1 where that is not JSON.
func (d *decoder) one(i, end int) int {
	events, rejected, count := len(d.events), len(d.rejected), d.count
	i = d.element(i)
	if i >= 0 {
		if i = d.s.Space(i); i < end {
			i = d.s.Fail(i, "nothing should follow the JSON object on its line")
		}
	}
	if i < 0 {
		d.events, d.rejected, d.count = d.events[:events], d.rejected[:rejected], count
	}
	return i
}

func (d *decoder) tooMany(at int) *malformed {
	if d.count < d.cfg.MaxEvents {
		return nil
	}
	return &malformed{413, at,
		fmt.Sprintf("a request may hold %d events (ingest.max-events); send the rest in another", d.cfg.MaxEvents)}
}

// broken rejects a line or an element that is not JSON.
func (d *decoder) broken(what string) {
	d.reject("", fmt.Sprintf("the %s is not JSON: at byte %d of the body, %s", what, d.s.FaultAt+d.from.shift, d.s.Fault),
		causeMalformed)
	d.s.Fault = ""
}

// elements decodes the array at i, each element by one. It returns the index after it, or -1. An element that is not
// JSON costs only itself where it is clear where it ends.
func (d *decoder) elements(i int, one func(i int) int) (int, *malformed) {
	i = d.s.Space(i + 1)
	if i < len(d.s.Text) && d.s.Text[i] == ']' {
		return i + 1, nil
	}
	for more := true; more; {
		if m := d.tooMany(i); m != nil {
			return -1, m
		}
		end := one(i)
		if end < 0 {
			if end = d.s.Cut(i, d.passed); end < 0 {
				return -1, nil
			}
			d.broken("element")
		}
		i, more = d.s.NextElement(end)
	}
	return i, nil
}

// element decodes what should be one event.
func (d *decoder) element(i int) int {
	if i < len(d.s.Text) && d.s.Text[i] == '{' {
		i, _ = d.event(i, false)
		return i
	}
	at := i
	if i = d.s.Value(i); i >= 0 {
		d.reject("", "an event must be a JSON object, not "+given(d.s.Text[at:i]), causeType)
	}
	return i
}

// object decodes {"events": [...]} or one event.
func (d *decoder) object(i int) (int, *malformed) {
	first := d.s.Space(i + 1)
	if !bytes.HasPrefix(d.s.Text[first:], []byte(`"events"`)) {
		return d.event(i, true)
	}
	at, _ := d.s.Key(first)
	if at < 0 || at >= len(d.s.Text) || d.s.Text[at] != '[' {
		return d.event(i, true)
	}
	end, m := d.elements(at, d.element)
	if end < 0 {
		return -1, m
	}
	next, more := d.s.NextMember(end)
	if more {
		if at, _ = d.s.Key(next); at < 0 {
			return -1, nil
		}
		return -1, besideEvents(next, d.s.Text[next:at])
	}
	return next, nil
}

// besideEvents is what is wrong with an object that holds events and, at an index, another member.
func besideEvents(at int, head []byte) *malformed {
	name := head[1:bytes.LastIndexByte(head, '"')]
	return &malformed{400, at,
		fmt.Sprintf(`nothing may stand beside "events" in its object, but %q does; put it into the events`, cut(name))}
}

func (d *decoder) reject(field, reason, cause string) {
	d.rejected = append(d.rejected, rejection{index: d.count, field: field, reason: reason, cause: cause})
	d.count++
}

// take returns the events in the order of the request, without the rejected ones. They belong to d's tenant. Their
// strings and bytes lie in one array of their own, which is the caller's.
func (d *decoder) take() []pipeline.Event {
	if len(d.events) == 0 {
		return nil
	}
	size := 0
	for i := range d.events {
		e := &d.events[i]
		size += len(e.ClientID) + len(e.Name) + len(e.AnonymousID) + len(e.UserID) + len(e.SessionID) +
			len(e.PageURL) + len(e.Referrer) + len(e.UserAgent) + len(e.Properties)
	}
	own := make([]byte, 0, size)
	move := func(s *string) {
		if n := len(*s); n > 0 {
			own = append(own, *s...)
			*s = unsafe.String(&own[len(own)-n], n)
		}
	}
	events := make([]pipeline.Event, len(d.events))
	copy(events, d.events)
	for i := range events {
		e := &events[i]
		e.Tenant = d.tenant
		move(&e.Name)
		move(&e.ClientID)
		move(&e.AnonymousID)
		move(&e.UserID)
		move(&e.SessionID)
		move(&e.PageURL)
		move(&e.Referrer)
		move(&e.UserAgent)
		if n := len(e.Properties); n > 0 {
			own = append(own, e.Properties...)
			e.Properties = own[len(own)-n : len(own) : len(own)]
		}
	}
	return events
}

// cut shortens what a client sent to what fits into a message.
func cut(b []byte) string {
	const most = 64
	if len(b) <= most {
		return string(b)
	}
	b = b[:most]
	for i := 0; i < utf8.UTFMax && len(b) > 0; i++ {
		if r, n := utf8.DecodeLastRune(b); r != utf8.RuneError || n != 1 {
			break
		}
		b = b[:len(b)-1]
	}
	return string(b) + "..."
}

// given names a JSON value for a message.
func given(raw []byte) string {
	switch raw[0] {
	case '"':
		return "the string " + cut(raw)
	case '{':
		return "the object " + cut(raw)
	case '[':
		return "the array " + cut(raw)
	case 't', 'f', 'n':
		return string(raw)
	}
	return "the number " + cut(raw)
}
