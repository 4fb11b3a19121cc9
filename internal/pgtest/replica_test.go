package pgtest

import (
	"context"
	"testing"
)

// COMMITs wait for the standby while it is away, and what they wrote is there when it is promoted.
func TestReplicated(t *testing.T) {
	t.Parallel()
	r := NewReplicated(t)
	const writeSQL = `insert into processed_messages values ('test', $1)`
	if _, err := r.Primary.Exec(t.Context(), writeSQL, "before"); err != nil {
		t.Fatal(err)
	}
	r.Detach()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	written := make(chan error, 1)
	go func() {
		_, err := r.Primary.Exec(ctx, writeSQL, "meanwhile")
		written <- err
	}()
	Until(t, r.Primary, `select count(*) from pg_stat_activity where wait_event = 'SyncRep'`, 1)
	r.Attach()
	if err := <-written; err != nil {
		t.Fatalf("a write that waited for the standby: %v", err)
	}
	r.Promote()
	Until(t, r.Standby, `select count(*) from processed_messages`, 2)
	if _, err := r.Standby.Exec(t.Context(), writeSQL, "after"); err != nil {
		t.Errorf("a write on the standby that was promoted: %v", err)
	}
}
