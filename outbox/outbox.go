// Package outbox lets an application promise a message inside its own transaction: the business data and the promise
// are committed together, or neither is. The pipeline then delivers what is committed, at least once, with the same
// Idempotency-Key on every attempt.
//
// Enqueue and EnqueueSQL call the SQL function sluice_enqueue, which any language and any trigger can call as well. A
// message whose idempotency key was used before stores nothing and is reported, so a whole business transaction can
// be repeated when its commit is in doubt.
package outbox

import (
	"encoding/json"
	"time"
)

// Message is what an application wants to be delivered. It marshals to what sluice_enqueue takes.
type Message struct {
	// Tenant owns the message, by its name in the pipeline's file of tenants; empty is tenant 1, that of a pipeline
	// without such a file.
	Tenant string `json:"tenant,omitzero"`
	// TenantRef is what the application calls its customer, where many share one Tenant. It is passed on. Up to 200
	// characters.
	TenantRef string `json:"tenant_ref,omitzero"`
	// AggregateType and AggregateID are what the message is about, for example "order" and "17": its subject is
	// "order:17", by which a destination may keep order. Both or neither; the type holds no colon.
	AggregateType string `json:"aggregate_type,omitzero"`
	AggregateID   string `json:"aggregate_id,omitzero"`
	// EventType is what happened, for example "order.placed". Required.
	EventType string `json:"event_type"`
	// Payload is any JSON value up to 1 MiB. Required. Stored as jsonb: spaces and the order of keys may change.
	Payload json.RawMessage `json:"payload,omitempty"`
	// Headers are sent along, as HTTP headers or the like.
	Headers map[string]string `json:"headers,omitempty"`
	// IdempotencyKey makes a repeat of this message, in this call or a later one, a duplicate: once per tenant and key,
	// whatever the destination. Without one every call makes a new message.
	IdempotencyKey string `json:"idempotency_key,omitzero"`
	// DedupeUntil is from when on the key may be used again; zero: never. The ledger keeps one small row a key until
	// then.
	DedupeUntil time.Time `json:"dedupe_until,omitzero"`
	// Exactly one of Destination and Topic, as the pipeline's configuration names them. A topic stands for one or
	// more destinations, as configured at the moment of the call.
	Destination string `json:"destination,omitzero"`
	Topic       string `json:"topic,omitzero"`
	// RunAfter is when to send it at the earliest; zero: at once.
	RunAfter time.Time `json:"run_after,omitzero"`
}

// Receipt is what became of one message, provided that the transaction commits.
type Receipt struct {
	// Duplicate: the key was used before, and nothing was stored for this message.
	Duplicate bool
	// Deliveries are the stored rows, one a destination, by its name; none for a duplicate.
	Deliveries []Delivery
}

// Delivery is one row of the outbox.
type Delivery struct {
	MessageID   int64
	Destination string
	// IdempotencyKey is what the receiver will see, as webhook-id and Idempotency-Key: a UUID in lower case.
	IdempotencyKey string
}
