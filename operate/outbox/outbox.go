// Package outbox shows operators what was promised to be delivered, and retries or discards it at a bounded rate. The
// statements are package claim's, which owns every change of a message's state.
package outbox

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"sluice.example/sluice/pipeline/claim"
)

// Message is a message as it stands in the outbox.
type Message struct {
	ID             int64             `json:"message_id"`
	Tenant         int32             `json:"tenant_id"`
	Type           string            `json:"type"`
	Subject        string            `json:"subject_key"`
	DedupeKey      string            `json:"dedupe_key"`
	IdempotencyKey string            `json:"idempotency_key"`
	Destination    string            `json:"destination"`
	Status         string            `json:"status"`
	State          string            `json:"state"`
	Attempts       int               `json:"attempts"`
	LostLeases     int               `json:"lost_leases"` // that ran out without a result
	Redrives       int               `json:"redrives"`
	CreatedAt      time.Time         `json:"created_at"`
	RunAfter       time.Time         `json:"run_after"`
	FinishedAt     *time.Time        `json:"finished_at"`
	LastError      string            `json:"last_error"`
	Headers        map[string]string `json:"headers"`
	Payload        json.RawMessage   `json:"payload"`
	// Decision is nil for a message of an application.
	Decision *Decision `json:"decision,omitempty"`
}

// Decision is why a rule made a message.
type Decision struct {
	Rule string `json:"rule"`
	Hash string `json:"hash"`
	// Event is empty for a rule that no event triggers.
	Event string `json:"event_id,omitempty"`
}

// Attempt is one try to deliver a message.
type Attempt struct {
	// Number is 0 where the result came after the lease had run out.
	Number     int       `json:"attempt"`
	StartedAt  time.Time `json:"started_at"`
	Seconds    float64   `json:"seconds"`
	Status     string    `json:"status"`
	HTTPStatus int       `json:"http_status"`
	Error      string    `json:"error"`
}

func newMessage(r claim.Row) Message {
	m := Message{
		ID:             r.ID,
		Tenant:         r.Tenant,
		Type:           r.Type,
		Subject:        r.SubjectKey,
		DedupeKey:      r.DedupeKey,
		IdempotencyKey: r.IdempotencyKey.String(),
		Destination:    r.Destination,
		Status:         r.Status,
		State:          state(r),
		Attempts:       r.Attempts,
		LostLeases:     r.LostLeases,
		Redrives:       r.Redrives,
		CreatedAt:      r.CreatedAt.UTC(),
		RunAfter:       r.RunAfter.UTC(),
		FinishedAt:     r.FinishedAt,
		LastError:      r.LastError,
		Headers:        r.Headers,
		Payload:        json.RawMessage(r.Payload),
	}
	if r.EventID != nil {
		m.Decision = &Decision{Rule: r.RuleID, Hash: r.RuleHash, Event: r.EventID.String()}
	}
	return m
}

// state says more than the status does.
func state(r claim.Row) string {
	switch {
	case r.Leased:
		return r.Status + ", leased"
	case r.Overdue && r.Due:
		return r.Status + ", due; its last worker gave no result"
	case r.Due:
		return r.Status + ", due"
	case r.BehindSince != nil:
		return r.Status + ", waits for one before it of its subject"
	case r.FinishedAt == nil && (r.Status == "pending" || r.Status == "failed"):
		return r.Status + ", due at " + r.RunAfter.UTC().Format(time.RFC3339)
	}
	return r.Status
}

// List returns messages, the newest first: at most limit of those before an id (0: from the newest). reached is as that
// of claim.List: 0, or the id before which the next call goes on, since only so many messages were looked at.
func List(ctx context.Context, db claim.DB, f claim.Filter, before int64, limit int,
) (messages []Message, reached int64, err error) {
	rows, reached, err := claim.List(ctx, db, f, before, limit)
	if err != nil {
		return nil, 0, err
	}
	messages = make([]Message, len(rows))
	for i, r := range rows {
		messages[i] = newMessage(r)
	}
	return messages, reached, nil
}

// Show returns one message with its attempts, the oldest first, or claim.ErrNoMessage.
func Show(ctx context.Context, db claim.DB, id int64) (Message, []Attempt, error) {
	row, tries, err := claim.Show(ctx, db, id)
	if err != nil {
		return Message{}, nil, err
	}
	attempts := make([]Attempt, len(tries))
	for i, a := range tries {
		attempts[i] = Attempt{
			Number:     a.Number,
			StartedAt:  a.StartedAt.UTC(),
			Seconds:    a.Latency.Seconds(),
			Status:     a.Status,
			HTTPStatus: a.HTTPStatus,
			Error:      a.Error,
		}
	}
	return newMessage(row), attempts, nil
}

// Print writes a message for people: a line, and another one where it has an error.
func (m *Message) Print(w io.Writer) error {
	_, err := fmt.Fprintf(w, "%d  %s  %s  %s to %s for %q, %d attempts\n",
		m.ID, m.CreatedAt.Format(time.RFC3339), m.State, m.Type, m.Destination, m.Subject, m.Attempts)
	if err == nil && m.LastError != "" {
		_, err = fmt.Fprintf(w, "    %s\n", oneLine(m.LastError))
	}
	return err
}

// PrintStory writes a message with all that is known of it.
func PrintStory(w io.Writer, m Message, attempts []Attempt) error {
	var b strings.Builder
	if err := m.Print(&b); err != nil {
		return err
	}
	fmt.Fprintf(&b, "    tenant %d, Idempotency-Key %s, dedupe key %q, redrives %d\n", m.Tenant, m.IdempotencyKey,
		m.DedupeKey, m.Redrives)
	if m.LostLeases > 0 {
		fmt.Fprintf(&b, "    %d leases ran out without a result: workers died, or the database was away\n", m.LostLeases)
	}
	if d := m.Decision; d != nil {
		fmt.Fprintf(&b, "    decided by rule %s (%s) on event %s\n", d.Rule, d.Hash, d.Event)
	}
	fmt.Fprintf(&b, "    payload: %s\n", m.Payload)
	for _, a := range attempts {
		number := "late"
		if a.Number > 0 {
			number = strconv.Itoa(a.Number)
		}
		took := time.Duration(a.Seconds * float64(time.Second)).Round(time.Millisecond / 10)
		fmt.Fprintf(&b, "    attempt %s  %s  %s after %s  %s\n",
			number, a.StartedAt.Format(time.RFC3339Nano), a.Status, took, oneLine(a.Error))
	}
	if len(attempts) == 0 {
		b.WriteString("    no attempts are on record\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// oneLine keeps a receiver's answer in its line; internal/cli makes other control characters visible.
func oneLine(s string) string { return strings.ReplaceAll(s, "\n", " ") }
