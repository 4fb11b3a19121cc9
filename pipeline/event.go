// Package pipeline holds the nouns that flow through Sluice and the few errors that its stages report to each other.
//
// An Event comes in at the socket and ends as a row; the rules turn some events into decisions, which are rows of the
// outbox; a Lease is the right to deliver one of those rows for a while, and a Result says how that went. The stages
// live in the folders below, each handing slices of these types to the next. This package imports only the standard
// library and how JSON is written, so that every stage and every client can use it.
package pipeline

import (
	"time"

	"sluice.example/sluice/internal/jsontext"
)

// Event is one fact that a client reported. Past the ingest stage an Event is valid by construction: PostgreSQL can
// store every field of it. Its strings and bytes belong to the Event and are never written to again, so Events may be
// read from several goroutines.
//
// An empty string means that the client sent no such field; it is stored as NULL.
type Event struct {
	// ID names the event within its tenant. Together with OccurredAt it is the key by which a repeat is recognised.
	ID UUID
	// ClientID is the client's own id where that is not a UUID; ID is then HashUUID(ClientID).
	ClientID string
	// Tenant owns the event. No rule and no answer crosses tenants.
	Tenant int32
	// Name is what happened, for example "signup_completed". Never empty.
	Name string
	// OccurredAt is when it happened, by the client's account, in UTC, to the microsecond. It is never corrected: a retry
	// has to repeat it exactly.
	OccurredAt time.Time
	// TimeUnknown: the client sent an id and no time of its own that a retry would repeat. OccurredAt is ReceivedAt, or
	// so long before it as the client said, and a repeat of this event has to be looked up by its id around that time.
	TimeUnknown bool
	// AnyAge: whoever sent it means event rules to look at it however long ago it happened. It is not stored.
	AnyAge bool
	// ReceivedAt is when the request was read, in UTC, to the microsecond.
	ReceivedAt time.Time

	AnonymousID string
	UserID      string
	SessionID   string
	PageURL     string
	Referrer    string
	UserAgent   string

	// Trace is the sampled trace that the event belongs to, nil for none. Messages that event rules decide because of the
	// event carry it on. It is not stored with the event, and many events may share it; nobody changes it.
	Trace *Trace

	// Properties is the client's JSON object, byte for byte; nil where it sent none.
	Properties []byte
}

// Trace is a place in a trace, in the form of the headers of W3C Trace Context (level 1): Parent is traceparent, and
// State is tracestate, which may be empty. Both follow its grammar, so they are short and printable ASCII.
type Trace struct{ Parent, State string }

// eventOverhead is what an Event costs beside its strings: the struct itself (about 250 bytes on 64-bit machines)
// and its share of the slices that carry it.
const eventOverhead = 320

// Size is what the event counts against bounds on memory, in bytes.
func (e *Event) Size() int {
	size := eventOverhead + len(e.ClientID) + len(e.Name) + len(e.AnonymousID) + len(e.UserID) + len(e.SessionID) +
		len(e.PageURL) + len(e.Referrer) + len(e.UserAgent) + len(e.Properties)
	if e.Trace != nil {
		size += len(e.Trace.Parent) + len(e.Trace.State)
	}
	return size
}

// SentID returns the id as the client sent it, which is the UUID where that was one.
func (e *Event) SentID() string {
	if e.ClientID != "" {
		return e.ClientID
	}
	return e.ID.String()
}

// LateBy is how long after it happened the event arrived; 0 of a client whose clock is ahead.
func (e *Event) LateBy() time.Duration { return max(0, e.ReceivedAt.Sub(e.OccurredAt)) }

// AppendJSON appends the event as it was posted, so that it could be posted again: under the names of the API, without
// what the client left out, so also without a time that is only that of its receipt (see TimeUnknown). The properties
// stay byte for byte, so that numbers keep their digits; nothing here looks into them.
func (e *Event) AppendJSON(b []byte) []byte {
	b = jsontext.AppendString(append(b, `{"event_id":`...), e.SentID())
	b = jsontext.AppendString(append(b, `,"event_name":`...), e.Name)
	if !e.TimeUnknown || !e.OccurredAt.Equal(e.ReceivedAt) {
		b = append(b, `,"occurred_at":"`...)
		b = append(e.OccurredAt.UTC().AppendFormat(b, time.RFC3339Nano), '"')
	}
	for _, f := range [...]struct{ name, value string }{
		{"anonymous_id", e.AnonymousID}, {"user_id", e.UserID}, {"session_id", e.SessionID},
		{"page_url", e.PageURL}, {"referrer", e.Referrer}, {"user_agent", e.UserAgent},
	} {
		if f.value != "" {
			b = append(append(append(b, `,"`...), f.name...), `":`...)
			b = jsontext.AppendString(b, f.value)
		}
	}
	if len(e.Properties) > 0 {
		b = append(append(b, `,"properties":`...), e.Properties...)
	}
	return append(b, '}')
}

// Outcome is what became of one event.
type Outcome uint8

const (
	// Stored: the event, and everything that the rules decided about it, is committed.
	Stored Outcome = iota + 1
	// Duplicate: an event with this key was stored before, or stands earlier in the same batch. Nothing was done.
	Duplicate
	// Rejected: the event can never be stored as it is. Sending it again does not help.
	Rejected
)

func (o Outcome) String() string {
	switch o {
	case Stored:
		return "stored"
	case Duplicate:
		return "duplicate"
	case Rejected:
		return "rejected"
	}
	return "unknown"
}

// Verdict is the answer to one event.
type Verdict struct {
	Outcome Outcome
	// Field and Reason tell what is wrong with a rejected event; both are empty otherwise. Field may be empty where
	// the event as a whole is at fault.
	Field, Reason string
}
