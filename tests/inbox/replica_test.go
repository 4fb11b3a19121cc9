package inbox_test

import (
	"context"
	"testing"

	"sluice.example/sluice/inbox"
	"sluice.example/sluice/internal/pgtest"
)

const waitingSQL = `select count(*) from pg_stat_activity where wait_event = 'SyncRep'`

// What is committed on the primary alone is not processed, neither for the caller whose COMMIT it was nor for a repeat,
// until the standby has it; and then it is, once.
func TestProcessedMeansOnTheStandbys(t *testing.T) {
	t.Parallel()
	r := pgtest.NewReplicated(t)
	exec(t, r.Primary, `create table paid (message_id text not null)`)
	r.Detach()
	ids := []string{"m1", "m2", "m3"}
	ctx, cancel := context.WithCancel(t.Context())
	out := make(chan error, len(ids))
	consume := func(ctx context.Context, id string) {
		_, err := inbox.ConsumeOnce(ctx, r.Primary, "billing", id, pay(ctx, id))
		out <- err
	}
	for _, id := range ids {
		go consume(ctx, id)
	}
	pgtest.Until(t, r.Primary, waitingSQL, 3)
	// Somebody cancels the wait of one, somebody ends the session of another, and the callers go away.
	const oneSQL = ` from pg_stat_activity where wait_event = 'SyncRep' order by query_start, pid limit 1`
	exec(t, r.Primary, `select pg_cancel_backend(pid)`+oneSQL)
	exec(t, r.Primary, `select pg_terminate_backend(pid)`+oneSQL)
	cancel()
	for range ids {
		if err := <-out; err == nil {
			t.Error("processed, with the standby away")
		}
	}
	pgtest.Until(t, r.Primary, waitingSQL, 0)
	for _, id := range ids {
		counts(t, r.Primary, id, 1, 1)
	}
	ctx, cancel = context.WithCancel(t.Context())
	go consume(ctx, "m1")
	pgtest.Until(t, r.Primary, waitingSQL, 1)
	cancel()
	if err := <-out; err == nil {
		t.Error("a repeat was a duplicate, with the standby away")
	}
	r.Attach()
	for _, id := range ids {
		duplicate, err := inbox.ConsumeOnce(t.Context(), r.Primary, "billing", id, pay(t.Context(), id))
		if !duplicate || err != nil {
			t.Errorf("%s, repeated with the standby back: %v, %v; want a duplicate", id, duplicate, err)
		}
		counts(t, r.Standby, id, 1, 1)
	}
}
