package claim

import (
	"testing"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline"
)

// A claim reads no more payloads than it has room for in bytes, for each destination. What it gives back unread comes
// with a later claim at once. A message that is bigger than the room is read alone.
func TestClaimIsBoundedInBytes(t *testing.T) {
	pool := pgtest.New(t)
	q := newQueue(t, pool)
	insert(t, pool, "big", 10)
	insert(t, pool, "small", 10)
	exec(t, pool, `update outbox set payload = to_jsonb(repeat('x', 99998)) where destination = 'big'`)
	wants := []pipeline.Want{
		{Destination: "big", Room: 8, Bytes: 250_000}, {Destination: "small", Room: 8, Bytes: 250_000},
	}
	big := 0
	for range 6 { // of 100,000 bytes two fit
		leases, err := q.Claim(t.Context(), wants)
		if err != nil {
			t.Fatal(err)
		}
		var results []pipeline.Result
		read := 0
		for _, l := range leases {
			if l.Unread > 0 {
				if l.Unread != 100_000 || l.Payload != nil || l.Destination != "big" {
					t.Fatalf("message %d of %s: %d bytes unread, %d read; want 100000 of big and 0", l.ID, l.Destination,
						l.Unread, len(l.Payload))
				}
				results = append(results, pipeline.Result{MessageID: l.ID, Token: l.Token, Status: pipeline.Released})
				continue
			}
			if results = append(results, result(l, pipeline.Sent)); l.Destination == "big" {
				big++
				read++
			}
		}
		if want := min(2, 10-big+read); read != want {
			t.Fatalf("%d big messages were read; want %d", read, want)
		}
		finish(t, q, results...)
	}
	if n := value(t, pool, `select count(*)::text from outbox where status = 'sent'`); n != "20" || big != 10 {
		t.Fatalf("%s messages are sent, %d of them big; want 20 and 10", n, big)
	}
	insert(t, pool, "one", 2)
	exec(t, pool, `update outbox set payload = to_jsonb(repeat('x', 99998)) where destination = 'one'`)
	leases, err := q.Claim(t.Context(), []pipeline.Want{{Destination: "one", Room: 8, Bytes: 1}})
	if err != nil || len(leases) != 2 || leases[0].Unread != 0 || leases[1].Unread == 0 {
		t.Fatalf("with room for a byte: %d leases, error %v; want the first read and the second not", len(leases), err)
	}
}
