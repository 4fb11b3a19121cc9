package ingest

import (
	"fmt"

	"sluice.example/sluice/internal/jsontext"
)

// Segment's HTTP API, as @segment/analytics-node 3, @segment/analytics-next 1, @jitsu/js 1 and their kin speak it;
// docs/clients.md has the mapping.

// segmentCall is the type of a call, as it stands in "type".
type segmentCall string

const (
	callTrack    segmentCall = "track"
	callIdentify segmentCall = "identify"
	callPage     segmentCall = "page"
	callScreen   segmentCall = "screen"
	callGroup    segmentCall = "group"
	callAlias    segmentCall = "alias"
)

// segmentPaths are those of the libraries for servers, of older ones and RudderStack's, and of the one for browsers,
// which takes the first letter of the call. RudderStack's sends beacons to a path of their own.
var segmentPaths = map[string]segmentCall{
	"/v1/batch": "", "/v1/track": callTrack, "/v1/identify": callIdentify, "/v1/page": callPage,
	"/v1/screen": callScreen, "/v1/group": callGroup, "/v1/alias": callAlias,
	"/v1/import": "", "/v1/b": "", "/beacon/v1/batch": "",
	"/v1/t": callTrack, "/v1/i": callIdentify, "/v1/p": callPage,
	"/v1/s": callScreen, "/v1/g": callGroup, "/v1/a": callAlias,
}

// jitsuPaths stand before the type of a call where @jitsu/js sends it, from pages and from servers.
var jitsuPaths = []string{"/api/s/", "/api/s/s2s/"}

// segmentStatistics is where the library for browsers reports about itself.
const segmentStatistics = "/v1/m"

var segment = shape{
	decode:    (*decoder).segment,
	copies:    2,
	media:     anyJSON,
	head:      `{"success":true,`,
	keyInBody: true,
	// A beacon has no headers of its own.
	keyInQuery: "writeKey",
	// 400 is the only status on which every version of the client gives up at once. Only 429 with Retry-After makes it
	// wait without counting attempts, so an outage or a fault is 429
	// as well.
	status: func(status int) int {
		switch status {
		case 413, 415, 422:
			return 400
		case 500, 503:
			return 429
		}
		return status
	},
}

// anyJSON takes a body for JSON whatever it is called, except a form.
func anyJSON(contentType []byte) (lines, ok bool) {
	_, ok = mediaType(contentType)
	return false, ok
}

// segment decodes {"batch": [...]}, or one call where the path names its type.
func (d *decoder) segment(in input) *malformed {
	b := in.body
	i, m := d.open(b)
	if m != nil {
		return m
	}
	if b[i] != '{' {
		return &malformed{400, i, "an object should begin here"}
	}
	if in.call != "" {
		return d.close(d.segmentCall(i, in.call, nil))
	}
	// What stands beside the calls may come after them, so they are walked over first.
	var shared draft
	var context []byte
	batch := -1
	members := d.s.Members(i)
	for members.Next() || members.Past("batch") {
		m := &members.Member
		switch string(m.Name()) {
		case "batch":
			batch = m.At
		case "writeKey":
			d.key = shared.text(m, maxText)
		case "context":
			context = shared.object(m)
		case "sentAt":
			d.sent = hint(m)
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
func (d *decoder) segmentCall(i int, call segmentCall, shared []byte) int {
	dr := draft{idName: "messageId", whenName: "timestamp", inside: "$segment", loose: true, sent: d.sent}
	d.unknown = d.unknown[:0]
	begin, whole := i, call != ""
	var name string
	var context, properties, traits, original jsontext.Member
	members := d.s.Members(i)
	for members.Next() {
		m := &members.Member
		switch string(m.Name()) {
		case "type":
			if call == "" {
				call = segmentCall(dr.text(m, maxID))
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
			dr.time(m)
		case "originalTimestamp": // RudderStack's clients send no other
			original = *m
		case "context":
			context = *m
			dr.object(m)
			d.rest(&dr, m)
		case "properties":
			properties = *m
		case "traits":
			traits = *m
		case "writeKey": // of the request: of a call only where that is the whole body
			if key := hint(m); whole {
				d.key = string(key)
			}
		case "sentAt": // of the request, not of the event
			dr.sent = hint(m)
		default:
			d.rest(&dr, m)
		}
	}
	if i = members.After; i < 0 {
		return -1
	}
	switch {
	case original.Raw() == nil:
	case len(dr.when) == 0:
		dr.time(&original)
	default:
		d.rest(&dr, &original)
	}
	main, other := properties, traits
	if call == callIdentify || call == callGroup {
		main, other = traits, properties
	}
	if main.Raw() != nil {
		dr.properties = dr.object(&main)
	}
	if other.Raw() != nil {
		d.rest(&dr, &other)
	}
	size := i - begin
	around := context.Raw()
	if around == nil && shared != nil {
		around = shared
		size += len(shared)
		d.share(&dr, shared)
	}
	dr.e.Name = dr.callName(call, name)
	if dr.e.UserID == "" && dr.e.AnonymousID == "" {
		dr.reject("userId", "userId or anonymousId is required", causeMissing)
	}
	if dr.bad.reason == "" {
		dr.e.PageURL = first(lookup(dr.properties, "url"), lookup(around, "page", "url"))
		dr.e.Referrer = first(lookup(dr.properties, "referrer"), lookup(around, "page", "referrer"))
		dr.e.UserAgent = lookup(around, "userAgent")
	}
	d.finish(&dr, size)
	return i
}

// share gives a call the context that stands beside the batch. Its copies together are no more than a body may be.
func (d *decoder) share(dr *draft, context []byte) {
	if d.copied += len(context); d.copied > d.cfg.MaxDecodedBytes {
		dr.reject("context", fmt.Sprintf("is stored with each call, and is more than %d bytes for those of this batch "+
			"(ingest.max-decoded-bytes); send fewer at once", d.cfg.MaxDecodedBytes), causeTooLong)
		return
	}
	d.putBy([]byte(`"context":`), context)
}

// callName is the name of a call's event: that of a track call, else its type.
func (dr *draft) callName(call segmentCall, event string) string {
	switch call {
	case callTrack:
		if event == "" {
			dr.reject("event", "is required of a track call", causeMissing)
		}
		return event
	case callIdentify, callPage, callScreen, callGroup, callAlias:
		return string(call)
	case "":
		dr.reject("type", "is required", causeMissing)
	default:
		dr.reject("type", "must be track, identify, page, screen, group or alias, not "+string(call), causeType)
	}
	return event
}

func first(texts ...string) string {
	for _, t := range texts {
		if t != "" {
			return t
		}
	}
	return ""
}
