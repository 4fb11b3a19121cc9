package claim

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"sluice.example/sluice/internal/pgsession"
	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline"
)

// With the standby away a result is not recorded on the primary alone: it waits past the bound on statements, and where
// somebody ends the wait that is an error.
func TestResultsWaitForTheStandby(t *testing.T) {
	t.Parallel()
	r := pgtest.NewReplicated(t)
	cfg := r.Primary.Config()
	pgsession.ConfigurePool(cfg)
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	q := newQueue(t, pool)
	exec(t, r.Primary, `insert into outbox (tenant_id, type, dedupe_key, destination, payload)
select 1, 't', i::text, 'crm', '{}' from generate_series(1, 2) i`)
	leases, err := q.Claim(t.Context(), []pipeline.Want{{Destination: "crm", Room: 2}})
	if err != nil || len(leases) != 2 {
		t.Fatalf("Claim = %d leases, %v; want 2", len(leases), err)
	}
	q.cfg.Lease = time.Second // so a statement may take half of it
	r.Detach()
	finish := func(i int) <-chan error {
		out := make(chan error, 1)
		go func() {
			_, err := q.Finish(t.Context(), []pipeline.Result{{
				MessageID: leases[i].ID, Token: leases[i].Token, Status: pipeline.Sent, StartedAt: time.Now(), HTTPStatus: 200,
			}})
			out <- err
		}()
		return out
	}
	const waitsSQL = `select count(*) from pg_stat_activity where wait_event = 'SyncRep'`
	cancelled := finish(0)
	pgtest.Until(t, r.Primary, waitsSQL+` and clock_timestamp() - state_change > interval '3 s'`, 1)
	exec(t, r.Primary, `select pg_cancel_backend(pid) from pg_stat_activity where wait_event = 'SyncRep'`)
	if err := <-cancelled; err == nil {
		t.Error("Finish took a result that is on the primary alone for recorded")
	}
	waited := finish(1)
	pgtest.Until(t, r.Primary, waitsSQL, 1)
	r.Attach()
	if err := <-waited; err != nil {
		t.Errorf("Finish = %v after the standby came back", err)
	}
	pgtest.Until(t, r.Standby, `select count(*) from outbox where status = 'sent'`, 2)
}
