// Package explain tells the story of an event or a message: what was stored, which rules looked at it and what they
// made of it, what was sent where with which answer, and what happens next.
//
// What was stored, decided and sent is read. Why a match made no message is not on record: it is worked out from the
// rules as they are now and from what the database still remembers, and is open where that does not tell any more. It
// only reads; every lookup is by a key or a bounded range of one, but for an event's id, which is looked up in the
// index of every partition.
package explain

import (
	"encoding/json"
	"time"

	"sluice.example/sluice/pipeline"
)

// Story is what is known of an id. Either Events, Quarantined or, where the id is that of a message, Messages alone.
type Story struct {
	// Events are usually one: an id that is stored with several times stands for several events.
	Events      []Event      `json:"events,omitempty"`
	Quarantined *Quarantined `json:"quarantined,omitempty"`
	// RulesKnown is false where no rules file was given, so that Rules of each event says nothing.
	RulesKnown bool `json:"rules_known"`
	// Messages are those because of the events, in the order in which they were made.
	Messages []Message `json:"messages"`
}

// Event is a stored event.
type Event struct {
	Partition   string          `json:"partition"`
	ID          pipeline.UUID   `json:"event_id"`
	ClientID    string          `json:"client_id,omitempty"`
	Name        string          `json:"event_name"`
	Tenant      int32           `json:"tenant_id"`
	OccurredAt  time.Time       `json:"occurred_at"`
	ReceivedAt  time.Time       `json:"received_at"`
	UserID      string          `json:"user_id,omitempty"`
	AnonymousID string          `json:"anonymous_id,omitempty"`
	SessionID   string          `json:"session_id,omitempty"`
	Properties  json.RawMessage `json:"properties,omitempty"`
	// Rules are those that listen to its name.
	Rules []Rule `json:"rules"`
}

// Quarantined is an event that PostgreSQL would not store, so that no rule saw it.
type Quarantined struct {
	ID       pipeline.UUID `db:"event_id" json:"event_id"`
	Since    time.Time     `db:"quarantined_at" json:"quarantined_at"`
	SQLState string        `db:"sqlstate" json:"sqlstate"`
	Reason   string        `db:"reason" json:"reason"`
}

// Rule is what a rule makes of an event, as the rule is now.
type Rule struct {
	Rule    string `json:"rule"`
	Kind    string `json:"kind"`
	State   string `json:"state"`
	Version string `json:"version"`
	// As is what the event is to the rule: event, trigger, cancel, activity, numerator or denominator.
	As      string `json:"as"`
	Matched bool   `json:"matched"`
	// Failure is why that, or what follows from it, can't be told.
	Failure string `json:"failure,omitempty"`
	// Refused is why PostgreSQL would not store what the rule made of the event; it is on record.
	Refused string `json:"refused,omitempty"`
	Key     string `json:"key,omitempty"`
	Subject string `json:"subject,omitempty"`
	// Timer is of an absence rule that matched.
	Timer *Timer `json:"timer,omitempty"`
	// Held is why a match made no message, or none to one destination; nil where it made all.
	Held *Held `json:"held,omitempty"`
}

// Timer is that of an absence rule and key. Found is false where it is gone.
type Timer struct {
	Found    bool       `json:"found"`
	Trigger  *time.Time `db:"trigger_at" json:"trigger_at,omitempty"`
	Cancel   *time.Time `db:"cancel_at" json:"cancel_at,omitempty"`
	Activity *time.Time `db:"activity_at" json:"activity_at,omitempty"`
	Done     *time.Time `db:"done_at" json:"done_at,omitempty"`
	Armed    *time.Time `db:"armed_at" json:"armed_at,omitempty"`
	Due      *time.Time `db:"due_at" json:"due_at,omitempty"`
	Now      time.Time  `db:"now" json:"now"`
	// Later is a trigger after the event's own, and Ended a cancel between the two. What else is said is of the key.
	Later *time.Time `db:"-" json:"later_trigger_at,omitempty"`
	Ended *time.Time `db:"-" json:"cancelled_before_it_at,omitempty"`
	// Messages are those of the rule for the key, once the timer has run out. Held is why there are none; nil where that
	// can't be told.
	Messages []Message `db:"-" json:"messages,omitempty"`
	Held     *Held     `db:"-" json:"held,omitempty"`
}

// The reasons why a match made no message.
const (
	// NoDecision: none was recorded. The rule was not in force, or was another version, when the event arrived; or what
	// was recorded is forgotten.
	NoDecision = "no decision"
	// Duplicate: the key was used before, by the message in By.
	Duplicate = "duplicate"
	// Cooldown and Cap: the subject had been granted a message, at At, or as many as the cap allows.
	Cooldown = "cooldown"
	Cap      = "cap"
	// OverLimit: a limit over several rules, Name, had granted the subject as many as it allows, or it was a quiet hour.
	OverLimit = "limit"
	// Old: the event is older than the rule's max_age, Limit, and was not sent as one that counts at any age.
	Old = "too-old"
	// Pruned: the key is remembered, but its message was pruned.
	Pruned = "pruned"
	// Limited: held back by cooldown or cap, or pruned; what was granted then is not known any more.
	Limited = "limited"
)

// Held is why a match made no message.
type Held struct {
	Reason string `json:"reason"`
	// Keyed is of a NoDecision of a rule with a key, which may have been forgotten; else a message may have been pruned.
	Keyed bool `json:"keyed,omitempty"`
	// By is the message of a duplicate, At when it was made, or when the subject was last granted one.
	By int64      `json:"by_message_id,omitempty"`
	At *time.Time `json:"at,omitempty"`
	// Limit is the cooldown or the window of the cap; Max and Granted are of a cap.
	Limit   time.Duration `json:"limit_ns,omitempty"`
	Max     int           `json:"max,omitempty"`
	Granted int           `json:"granted,omitempty"`
	// Name is that of a limit over several rules.
	Name string `json:"limit_name,omitempty"`
	// Destination is what such a limit is over alone; Partly: messages to others were made.
	Destination string `json:"limit_destination,omitempty"`
	Partly      bool   `json:"partly,omitempty"`
	// Until is the end of a cooldown, Over whether that has passed.
	Until *time.Time `json:"until,omitempty"`
	Over  bool       `json:"over,omitempty"`
	// Digest is when a digest tells of what was held back, Suppressed how much that is so far.
	Digest     *time.Time `json:"digest_due_at,omitempty"`
	Suppressed int64      `json:"suppressed,omitempty"`
}

// Message is one in the outbox, with its attempts.
type Message struct {
	ID             int64          `db:"message_id" json:"message_id"`
	Tenant         int32          `db:"tenant_id" json:"tenant_id"`
	Type           string         `db:"type" json:"type"`
	Rule           string         `db:"rule" json:"rule,omitempty"`
	Version        string         `db:"version" json:"version,omitempty"`
	Destination    string         `db:"destination" json:"destination"`
	Subject        string         `db:"subject_key" json:"subject_key"`
	Key            string         `db:"dedupe_key" json:"dedupe_key"`
	Status         string         `db:"status" json:"status"`
	Tries          int            `db:"attempts" json:"attempts_begun"`
	CreatedAt      time.Time      `db:"created_at" json:"created_at"`
	RunAfter       time.Time      `db:"run_after" json:"run_after"`
	LockedUntil    *time.Time     `db:"locked_until" json:"locked_until,omitempty"`
	FinishedAt     *time.Time     `db:"finished_at" json:"finished_at,omitempty"`
	LastError      string         `db:"last_error" json:"last_error,omitempty"`
	Payload        string         `db:"payload" json:"payload"`
	IdempotencyKey string         `db:"idempotency_key" json:"idempotency_key"`
	Event          *pipeline.UUID `db:"event_id" json:"event_id,omitempty"`
	// Rechecked is true where the decision is looked at again just before sending.
	Rechecked bool      `db:"rechecked" json:"rechecked"`
	Now       time.Time `db:"now" json:"now"`
	// TraceParent is that header of the message, as it is sent on, and Trace the id of the trace in it.
	TraceParent string `db:"traceparent" json:"traceparent,omitempty"`
	Trace       string `db:"-" json:"trace_id,omitempty"`
	// Changed is the version that the rule has now, where it is another; Gone is true where the rule is not there.
	Changed  string    `db:"-" json:"rule_is_now,omitempty"`
	Gone     bool      `db:"-" json:"rule_is_gone,omitempty"`
	Attempts []Attempt `db:"-" json:"attempts"`
}

// Attempt is one try to deliver a message.
type Attempt struct {
	// Number is nil where the result came after the lease had run out.
	Number     *int      `db:"attempt" json:"attempt,omitempty"`
	StartedAt  time.Time `db:"started_at" json:"started_at"`
	Seconds    float64   `db:"seconds" json:"seconds"`
	Status     string    `db:"status" json:"status"`
	HTTPStatus *int      `db:"http_status" json:"http_status,omitempty"`
	Error      string    `db:"error" json:"error,omitempty"`
}
