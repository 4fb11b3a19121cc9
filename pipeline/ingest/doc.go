// Package ingest is the door: HTTP requests come in, slices of valid events go out to a Buffer, and its verdicts go
// back to the client as status codes and JSON.
//
// 200 comes after COMMIT. 202 is the answer only to those who asked for it (Prefer: respond-async), and only what it
// acknowledges may be lost by a crash. One bad event costs its neighbours nothing: it is rejected by its index,
// with a field and a reason. Whatever passes can be stored by PostgreSQL; properties are passed on byte for byte.
// Repeating a request is harmless for events that carry an id. Memory is bounded in bytes; past a bound the
// answer is 429 at once, with a Retry-After.
package ingest
