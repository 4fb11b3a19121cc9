package copyin

import (
	"sluice.example/sluice/internal/jsontext"
	"sluice.example/sluice/pipeline"
)

// appendEventJSON writes an event as it could be posted again. The properties stay byte for byte, so that numbers keep
// their digits; they may be what PostgreSQL could not store, so nothing here looks into them.
func appendEventJSON(b []byte, e *pipeline.Event) []byte {
	id := e.ClientID
	if id == "" {
		id = e.ID.String()
	}
	b = appendMember(append(b, '{'), "event_id", id)
	b = appendMember(append(b, ','), "event_name", e.Name)
	if !e.TimeUnknown {
		b = appendMember(append(b, ','), "occurred_at", e.OccurredAt.UTC().Format("2006-01-02T15:04:05.999999Z07:00"))
	}
	for _, m := range []struct{ name, value string }{
		{"anonymous_id", e.AnonymousID}, {"user_id", e.UserID}, {"session_id", e.SessionID},
		{"page_url", e.PageURL}, {"referrer", e.Referrer}, {"user_agent", e.UserAgent},
	} {
		if m.value != "" {
			b = appendMember(append(b, ','), m.name, m.value)
		}
	}
	if len(e.Properties) > 0 {
		b = append(b, `,"properties":`...)
		b = append(b, e.Properties...)
	}
	return append(b, '}')
}

func appendMember(b []byte, name, value string) []byte {
	b = append(b, '"')
	b = append(b, name...)
	b = append(b, `":`...)
	return jsontext.AppendString(b, value)
}
