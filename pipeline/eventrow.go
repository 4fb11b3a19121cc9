package pipeline

import "time"

// EventColumns are the columns of an event in the table events: those that COPY writes and that an EventRow reads, in
// that order.
const EventColumns = "event_id, tenant_id, event_name, occurred_at, anonymous_id, user_id, session_id, page_url, " +
	"referrer, user_agent, properties, received_at, client_id"

// EventRow reads rows of events, or the NULLs of an outer join that found none. One EventRow serves for many rows, one
// after the other.
type EventRow struct {
	id                           *UUID
	tenant                       *int32
	name                         *string
	occurred, received           *time.Time
	anonymous, user, session     *string
	page, referrer, agent, given *string
	properties                   []byte
}

// Fields returns the destinations of a scan of EventColumns.
func (r *EventRow) Fields() []any {
	return []any{
		&r.id, &r.tenant, &r.name, &r.occurred, &r.anonymous, &r.user, &r.session, &r.page,
		&r.referrer, &r.agent, &r.properties, &r.received, &r.given,
	}
}

// Event returns the event of the row that was scanned last, and false where there was none. Its times are in UTC. Its
// bytes are those that the driver made for the row; pgx makes new ones for each.
func (r *EventRow) Event() (Event, bool) {
	if r.id == nil {
		return Event{}, false
	}
	text := func(s *string) string {
		if s == nil {
			return ""
		}
		return *s
	}
	return Event{
		ID:          *r.id,
		ClientID:    text(r.given),
		Tenant:      *r.tenant,
		Name:        *r.name,
		OccurredAt:  r.occurred.UTC(),
		ReceivedAt:  r.received.UTC(),
		AnonymousID: text(r.anonymous),
		UserID:      text(r.user),
		SessionID:   text(r.session),
		PageURL:     text(r.page),
		Referrer:    text(r.referrer),
		UserAgent:   text(r.agent),
		Properties:  r.properties,
	}, true
}
