// Package envelope writes what receivers get of a message: its body, and the headers that belong to it.
//
// The id in an envelope is the message's idempotency key, which is the same on every attempt.
package envelope

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"sluice.example/sluice/internal/jsontext"
	"sluice.example/sluice/pipeline"
)

// Kind is a form of envelope.
type Kind string

const (
	// Plain is {"rule": id, "data": payload} for a rule's decision, and {"type": type, "data": payload} for an
	// application's message.
	Plain Kind = "plain"
	// Outbox has all that a receiver needs to do the work once and to route it: id, type, aggregateType, aggregateId,
	// tenantId and payload. The id is in the header x-event-id as well.
	Outbox Kind = "outbox"
	// CloudEvents is version 1.0 in structured mode, and CloudEventsBinary in binary mode: the payload alone is the
	// body.
	CloudEvents       Kind = "cloudevents"
	CloudEventsBinary Kind = "cloudevents-binary"
)

// Kinds lists the names of all kinds, the default first.
func Kinds() []string {
	return []string{string(Plain), string(Outbox), string(CloudEvents), string(CloudEventsBinary)}
}

// Tenants are the names of tenants by their numbers.
type Tenants map[int32]string

// Name returns the name of a tenant, and its number where there is no name.
func (t Tenants) Name(id int32) string {
	if name, ok := t[id]; ok {
		return name
	}
	return strconv.Itoa(int(id))
}

// ContentType is the type of the body.
func (k Kind) ContentType() string {
	if k == CloudEvents {
		return "application/cloudevents+json"
	}
	return "application/json"
}

// Append appends the body. It borrows the message.
func (k Kind) Append(b []byte, m *pipeline.Message, tenants Tenants) []byte {
	switch k {
	case Outbox:
		return appendOutbox(b, m, tenants)
	case CloudEvents:
		return appendCloudEvent(b, m, tenants)
	case CloudEventsBinary:
		return append(b, m.Payload...)
	}
	if m.Rule {
		b = appendText(b, `{"rule":`, m.Type)
	} else {
		b = appendText(b, `{"type":`, m.Type)
	}
	return appendRaw(b, `,"data":`, m.Payload)
}

func appendOutbox(b []byte, m *pipeline.Message, tenants Tenants) []byte {
	kind, id := aggregate(m)
	b = appendText(b, `{"id":`, m.IdempotencyKey.String())
	b = appendText(b, `,"type":`, m.Type)
	b = appendOptional(b, `,"aggregateType":`, kind)
	b = appendOptional(b, `,"aggregateId":`, id)
	tenant := m.TenantRef
	if tenant == "" {
		tenant = tenants.Name(m.Tenant)
	}
	b = appendText(b, `,"tenantId":`, tenant)
	return appendRaw(b, `,"payload":`, m.Payload)
}

// aggregate is what a message is about. An application names its type and its id, and the type holds no colon; a rule
// knows a subject alone.
func aggregate(m *pipeline.Message) (kind, id string) {
	if !m.Rule {
		if kind, id, ok := strings.Cut(m.SubjectKey, ":"); ok {
			return kind, id
		}
	}
	return "", m.SubjectKey
}

func appendCloudEvent(b []byte, m *pipeline.Message, tenants Tenants) []byte {
	b = append(b, `{"specversion":"1.0"`...)
	for _, a := range attributes(m, tenants) {
		if a[1] != "" {
			b = appendText(b, `,"`+a[0]+`":`, a[1])
		}
	}
	return appendRaw(b, `,"datacontenttype":"application/json","data":`, m.Payload)
}

// attributes are the names and values of a CloudEvent, without its version and what describes its data. Values may be
// empty.
func attributes(m *pipeline.Message, tenants Tenants) [6][2]string {
	tenant := tenants.Name(m.Tenant)
	return [6][2]string{
		{"id", m.IdempotencyKey.String()},
		{"source", "/tenants/" + url.PathEscape(tenant)},
		{"type", m.Type},
		{"subject", m.SubjectKey},
		{"time", m.CreatedAt.UTC().Format(time.RFC3339Nano)},
		{"tenantref", m.TenantRef},
	}
}

// Headers calls set for the headers that belong to the body, besides its type: always with the same names. A value may
// be empty; the header is to be left out then.
func (k Kind) Headers(set func(name, value string), m *pipeline.Message, tenants Tenants) {
	switch k {
	case Outbox:
		set("X-Event-Id", m.IdempotencyKey.String())
	case CloudEventsBinary:
		set("Ce-Specversion", "1.0")
		for _, a := range attributes(m, tenants) {
			set("Ce-"+strings.ToUpper(a[0][:1])+a[0][1:], encode(a[1]))
		}
	}
}

// encode escapes a value for a header as CloudEvents has it: all but printable ASCII, blanks, '"' and '%'.
func encode(s string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		if c <= ' ' || c >= 0x7f || c == '"' || c == '%' {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

func appendText(b []byte, before, text string) []byte {
	return jsontext.AppendString(append(b, before...), text)
}

// appendOptional appends null for an empty text.
func appendOptional(b []byte, before, text string) []byte {
	if text == "" {
		return append(append(b, before...), "null"...)
	}
	return appendText(b, before, text)
}

// appendRaw appends the last member of an object.
func appendRaw(b []byte, before string, value []byte) []byte {
	return append(append(append(b, before...), value...), '}')
}
