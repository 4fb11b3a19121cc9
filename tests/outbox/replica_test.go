package outbox_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/outbox"
)

// A message is on the primary alone, since the wait for the standby was cancelled: the transaction that repeats it, and
// writes nothing else, is not committed before the standby has the message.
func TestDuplicateWaitsForTheStandby(t *testing.T) {
	t.Parallel()
	r := pgtest.NewReplicated(t)
	if err := outbox.SyncTopics(t.Context(), r.Primary, []string{"billing"}, nil); err != nil {
		t.Fatal(err)
	}
	const waitingSQL = `select count(*) from pg_stat_activity where wait_event = 'SyncRep'`
	enqueue := func(duplicate bool) <-chan error {
		out := make(chan error, 1)
		go func() {
			ctx := context.Background()
			out <- pgx.BeginFunc(ctx, r.Primary, func(tx pgx.Tx) error {
				receipts, err := outbox.Enqueue(ctx, tx, outbox.Message{
					EventType: "order.placed", Payload: json.RawMessage(`{}`), Destination: "billing", IdempotencyKey: "17",
				})
				if err == nil && receipts[0].Duplicate != duplicate {
					t.Errorf("duplicate is %v, want %v", receipts[0].Duplicate, duplicate)
				}
				return err
			})
		}()
		pgtest.Until(t, r.Primary, waitingSQL, 1)
		return out
	}
	r.Detach()
	first := enqueue(false)
	if _, err := r.Primary.Exec(t.Context(),
		`select pg_cancel_backend(pid) from pg_stat_activity where wait_event = 'SyncRep'`); err != nil {
		t.Fatal(err)
	}
	<-first // committed on the primary, with a warning
	repeat := enqueue(true)
	select {
	case err := <-repeat:
		t.Errorf("the repeat was committed while the standby is away: %v", err)
	default:
	}
	r.Attach()
	if err := <-repeat; err != nil {
		t.Errorf("the repeat = %v once the standby is back", err)
	}
	pgtest.Until(t, r.Standby, `select count(*) from outbox`, 1)
}
