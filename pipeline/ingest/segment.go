package ingest

import (
	"github.com/valyala/fasthttp"

	"sluice.example/sluice/internal/jsontext"
)

// Segment's HTTP API, as @segment/analytics-node 3 and its kin speak it; docs/clients.md has the mapping.

var segmentPaths = map[string]string{
	"/v1/batch": "", "/v1/track": "track", "/v1/identify": "identify", "/v1/page": "page", "/v1/screen": "screen",
	"/v1/group": "group", "/v1/alias": "alias",
	// Older clients and RudderStack's.
	"/v1/import": "", "/v1/b": "",
}

var segment = shape{
	decode:    (*decoder).segment,
	media:     anyJSON,
	head:      `{"success":true,`,
	keyInBody: true,
	// The client gives up on 400 alone at once and in every version. Only 429 with Retry-After makes it wait without
	// counting attempts, so that is what an outage is, too.
	status: func(status int) int {
		switch status {
		case 413, 415, 422:
			return 400
		case 503:
			return 429
		}
		return status
	},
}

// anyJSON takes a body for JSON whatever it is called, but for a form.
func anyJSON(contentType []byte) (lines, ok bool) {
	_, ok = mediaType(contentType)
	return false, ok
}

// segment decodes {"batch": [...]}, or one call where the path names its type.
func (d *decoder) segment(kind string, b []byte, _ *fasthttp.RequestHeader) *malformed {
	i, m := d.open(b)
	if m != nil {
		return m
	}
	if b[i] != '{' {
		return &malformed{400, i, "an object should begin here"}
	}
	if kind != "" {
		return d.close(d.segmentCall(i, kind, nil))
	}
	// What stands beside the calls may come after them, so they are walked over first.
	var shared draft
	var context []byte
	batch := -1
	members := d.s.Members(i)
	for members.Next() {
		m := &members.Member
		switch string(m.Name()) {
		case "batch":
			batch = m.At
		case "writeKey":
			d.key = shared.text(m, maxText)
		case "context":
			context = shared.object(m)
		}
	}
	if m := d.close(members.After); m != nil {
		return m
	}
	if shared.bad.reason != "" {
		return &malformed{400, -1, shared.bad.field + ": " + shared.bad.reason}
	}
	if batch < 0 || b[batch] != '[' {
		return &malformed{400, i, `"batch" should be an array of calls`}
	}
	_, m = d.elements(batch, func(i int) int {
		if b[i] != '{' {
			return d.element(i)
		}
		return d.segmentCall(i, "", context)
	})
	return m
}

// segmentCall decodes one call.
func (d *decoder) segmentCall(i int, kind string, shared []byte) int {
	dr := draft{idName: "messageId", whenName: "timestamp", inside: "$segment"}
	d.unknown = d.unknown[:0]
	begin := i
	var name string
	var context, properties, traits jsontext.Member
	members := d.s.Members(i)
	for members.Next() {
		m := &members.Member
		switch string(m.Name()) {
		case "type":
			if kind == "" {
				kind = dr.text(m, maxID)
			}
			d.rest(&dr, m)
		case "event":
			name = dr.text(m, maxName)
		case "userId":
			dr.e.UserID = dr.text(m, maxID)
		case "anonymousId":
			dr.e.AnonymousID = dr.text(m, maxID)
		case "messageId":
			dr.id = []byte(dr.text(m, maxID))
		case "timestamp":
			dr.when = []byte(dr.text(m, maxID))
		case "context":
			context = *m
			dr.object(m)
			d.rest(&dr, m)
		case "properties":
			properties = *m
		case "traits":
			traits = *m
		case "writeKey":
			d.key = dr.text(m, maxText)
		case "sentAt": // of the request, not of the event
		default:
			d.rest(&dr, m)
		}
	}
	if i = members.After; i < 0 {
		return -1
	}
	main, other := properties, traits
	if kind == "identify" || kind == "group" {
		main, other = traits, properties
	}
	if main.Raw() != nil {
		dr.properties = dr.object(&main)
	}
	if other.Raw() != nil {
		d.rest(&dr, &other)
	}
	around := context.Raw()
	if around == nil && shared != nil {
		around = shared
		d.putBy([]byte(`"context":`), shared)
	}
	switch kind {
	case "track":
		if name == "" {
			dr.refuse("event", "is required of a track call", "missing")
		}
	case "identify", "page", "screen", "group", "alias":
		name = kind
	case "":
		dr.refuse("type", "is required", "missing")
	default:
		dr.refuse("type", "must be track, identify, page, screen, group or alias, not "+kind, "type")
	}
	if dr.e.UserID == "" && dr.e.AnonymousID == "" {
		dr.refuse("userId", "userId or anonymousId is required", "missing")
	}
	dr.e.Name = name
	if dr.bad.reason == "" {
		dr.e.PageURL = first(lookup(dr.properties, "url"), lookup(around, "page", "url"))
		dr.e.Referrer = first(lookup(dr.properties, "referrer"), lookup(around, "page", "referrer"))
		dr.e.UserAgent = lookup(around, "userAgent")
	}
	d.finish(&dr, i-begin)
	return i
}

func first(texts ...string) string {
	for _, t := range texts {
		if t != "" {
			return t
		}
	}
	return ""
}
