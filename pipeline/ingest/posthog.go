package ingest

import "bytes"

// PostHog's capture API, as posthog-node 5 and its kin speak it; docs/clients.md has the mapping.

var (
	posthogPaths = []string{"/batch", "/capture", "/e", "/i/v0/e", "/track"}
	posthogFlags = []string{"/flags", "/decide"}
)

var posthog = shape{
	decode:    (*decoder).posthog,
	copies:    2,
	media:     func([]byte) (lines, ok bool) { return false, true },
	head:      `{"status":"Ok",`,
	keyInBody: true,
	// posthog-js sends the milliseconds of its clock.
	sentInQuery: "_",
	sniffs:      true,
	holds:       true,
	// 413 makes the client halve its batches; of the rest it knows only that the batch failed.
	status: func(status int) int {
		switch status {
		case 415, 422:
			return 400
		}
		return status
	},
}

// noFlags answers a client that asks for feature flags when it starts: there are none.
const noFlags = `{"flags":{},"featureFlags":{},"featureFlagPayloads":{},"errorsWhileComputingFlags":false}` + "\n"

// posthog decodes {"batch": [...]}, one event, or an array of them, also as a form's data in base64.
func (d *decoder) posthog(in input) *malformed {
	b := in.body
	d.sent = in.sent
	isForm := bytes.HasPrefix(in.header.ContentType(), []byte("application/x-www-form-urlencoded"))
	if isForm || bytes.HasPrefix(b, []byte("data=")) {
		b = formData(b)
	}
	i, m := d.open(b)
	if m != nil {
		return m
	}
	if b[i] == '[' {
		i, m = d.elements(i, d.posthogElement)
		if m != nil {
			return m
		}
		return d.close(i)
	}
	if b[i] != '{' {
		return &malformed{400, i, "an object or an array of objects should begin here"}
	}
	var shared draft
	var key string
	batch := -1
	members := d.s.Members(i)
	for members.Next() || members.Past("batch") {
		m := &members.Member
		switch string(m.Name()) {
		case "batch":
			batch = m.At
		case "api_key", "token", "$token":
			key = shared.text(m, maxText)
		case "sent_at":
			d.sent = hint(m)
		}
	}
	if m := d.close(members.After); m != nil {
		return m
	}
	if batch < 0 {
		d.posthogEvent(i)
		return nil
	}
	if b[batch] != '[' {
		return &malformed{400, batch, `"batch" should be an array of events`}
	}
	_, m = d.elements(batch, d.posthogElement)
	d.key = key
	return m
}

func (d *decoder) posthogElement(i int) int {
	if i < len(d.s.Text) && d.s.Text[i] == '{' {
		return d.posthogEvent(i)
	}
	return d.element(i)
}

func (d *decoder) posthogEvent(i int) int {
	dr := draft{idName: "uuid", whenName: "timestamp", inside: "$posthog", loose: true, sent: d.sent}
	d.unknown = d.unknown[:0]
	begin := i
	var distinct, key string
	members := d.s.Members(i)
	for members.Next() {
		m := &members.Member
		switch string(m.Name()) {
		case "event":
			dr.e.Name = dr.text(m, maxName)
		case "distinct_id", "$distinct_id":
			distinct = first(dr.text(m, maxID), distinct)
		case "uuid":
			dr.id = []byte(dr.text(m, maxID))
		case "timestamp":
			dr.time(m)
		case "properties":
			dr.properties = dr.object(m)
		case "api_key", "token", "$token":
			key = dr.text(m, maxText)
		case "sent_at": // of the request, not of the event
			dr.sent = hint(m)
		case "offset":
			dr.offset = hint(m)
			d.rest(&dr, m)
		default:
			d.rest(&dr, m)
		}
	}
	if i = members.After; i < 0 {
		return -1
	}
	if dr.bad.reason == "" {
		p := pick(dr.properties, [8]string{"distinct_id", "$device_id", "$anon_distinct_id", "$session_id",
			"$current_url", "$referrer", "$raw_user_agent", "token"})
		distinct, key = first(distinct, p[0]), first(key, p[7])
		dr.e.AnonymousID = first(p[1], p[2])
		if distinct != dr.e.AnonymousID {
			dr.e.UserID = distinct
		}
		dr.e.SessionID, dr.e.PageURL, dr.e.Referrer, dr.e.UserAgent = p[3], p[4], p[5], p[6]
		for _, id := range []string{distinct, dr.e.AnonymousID, dr.e.SessionID} {
			if len(id) > maxID {
				dr.reject("properties", "hold an id of more than 512 bytes", causeTooLong)
			}
		}
	}
	if dr.e.Name == "" {
		dr.reject("event", "is required", causeMissing)
	}
	if distinct == "" {
		dr.reject("distinct_id", "is required", causeMissing)
	}
	if d.keyed && key != d.key {
		key = "" // events of several tenants in one request: nobody's
	}
	d.key, d.keyed = key, true
	d.finish(&dr, i-begin)
	return i
}
