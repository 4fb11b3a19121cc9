package pipeline

import "time"

// Message is one promise: something to be delivered to one destination. It is a row of the outbox, made by a rule or
// by an application in its own transaction.
type Message struct {
	// ID is the row's key, unique in the database.
	ID     int64
	Tenant int32
	// TenantRef is what the application calls its customer, where many share one tenant; it may be empty.
	TenantRef string
	// Type is the rule's id for a rule's decision, and the event type for an application's message.
	Type string
	// SubjectKey is whom or what the message is about; it may be empty.
	SubjectKey string
	// IdempotencyKey is sent with every attempt, and is never that of another message.
	IdempotencyKey UUID
	// Destination is a name from the configuration, never an address.
	Destination string
	// Payload is a JSON value.
	Payload []byte
	// Headers are sent along; names and values are the application's own. May be nil.
	Headers map[string]string
	// Rule: a rule decided this message, not an application.
	Rule bool
	// Redrives counts how often an operator made the message due again after it was final. A broker that drops what it
	// has seen before must not take the message for a repeat then.
	Redrives int
	// CreatedAt is when the message was committed to, by the database's clock.
	CreatedAt time.Time
}

// Want is how many messages of one destination a worker has room for.
type Want struct {
	Destination string
	Room        int
	// Bytes is how many bytes of payloads it has room for; 0: any number. The first message may be bigger.
	Bytes int
	Order Order
}

// Order is whether a destination's messages are claimed in the order of their ids.
type Order int16

const (
	// Unordered: all due messages may be out at the same time.
	Unordered Order = iota
	// DeadSkips: each subject has one message out at a time, in the order of ids; the next one comes when it is final.
	DeadSkips
	// DeadBlocks: as DeadSkips, and a dead message holds up those after it until it is retried or discarded.
	DeadBlocks
)

// Lease is the right to deliver one message until a moment. Every write about the message carries the token; when the
// lease has run out and another worker has taken the message, such a write changes nothing.
type Lease struct {
	Message
	Token UUID
	// Attempt counts from 1 and includes the attempt that this lease is for.
	Attempt int
	// Lost counts the leases of this message that ran out without a result. Where there are any, an attempt has to be
	// put on record before it begins: the message may be what kills its worker.
	Lost int
	// DueAt is when this attempt could first be made, by the database's clock.
	DueAt time.Time
	// Unread is the size of a payload that Want.Bytes had no room for, in bytes. The lease has no payload then, and is
	// to be given back. 0: the payload was read.
	Unread int
	// Until is when the lease ends, by this process's monotonic clock (taken before the claim was sent, so that it errs
	// on the early side whatever the clocks of the two machines say).
	Until time.Time
}

// DeliveryStatus is where a message stands after an attempt. The values are those of the outbox's status column.
type DeliveryStatus string

const (
	// Sent: the destination took it. Final.
	Sent DeliveryStatus = "sent"
	// Failed: this attempt did not succeed; the next is due after Result.RetryIn.
	Failed DeliveryStatus = "failed"
	// Dead: given up. Final until an operator retries it.
	Dead DeliveryStatus = "dead"
	// Skipped: it no longer had to be sent. Final.
	Skipped DeliveryStatus = "skipped"
	// Released: not attempted; due again after Result.RetryIn, and the attempt is not counted. Not a status in the
	// database, where the row goes back to what it was.
	Released DeliveryStatus = "released"
)

// Result is how the attempt under one lease ended.
type Result struct {
	MessageID int64
	Token     UUID
	// IdempotencyKey is the message's, by which a late result is told from one of another message: after a failover that
	// lost messages, others get their ids. Zero: not known.
	IdempotencyKey UUID
	Status         DeliveryStatus
	// Ordered: the destination keeps its order, so others may wait for the end of this message.
	Ordered bool
	// RetryIn is how long to wait before the next attempt, for Failed and Released.
	RetryIn time.Duration
	// Error tells what went wrong, for people, without secrets; empty on success. At most 1,000 bytes of UTF-8
	// without NUL.
	Error string
	// HTTPStatus is the answer's status code, 0 where there was none.
	HTTPStatus int
	// Begun says that the attempt was put on record when it began, and need not be counted again.
	Begun bool
	// StartedAt and Latency time the attempt; both are zero where nothing was sent.
	StartedAt time.Time
	Latency   time.Duration
}

// Passes reports whether the result ends a message for whose end others may wait.
func (r *Result) Passes() bool {
	return r.Status == Skipped || r.Ordered && (r.Status == Sent || r.Status == Dead)
}
