package claim

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline"
)

// What was recorded about a message stays recorded, whatever the role or the database sets for COMMIT.
func TestResultsAreDurableWhateverTheRoleSets(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	cfg := db.Config()
	cfg.ConnConfig.RuntimeParams["synchronous_commit"] = "off"
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	q := newQueue(t, pool)
	exec(t, db, `insert into outbox (tenant_id, type, dedupe_key, destination, payload)
select 1, 't', i::text, 'crm', '{}' from generate_series(1, 4) i`)
	leases, err := q.Claim(t.Context(), []pipeline.Want{{Destination: "crm", Room: 4}})
	if err != nil || len(leases) != 4 {
		t.Fatalf("Claim = %d leases, %v; want 4", len(leases), err)
	}
	// It runs at COMMIT, whose manner is the one that counts.
	exec(t, db, `create table at_commit (setting text);
create function note() returns trigger language plpgsql as $$
begin
    insert into at_commit values (current_setting('synchronous_commit'));
    return null;
end $$;
create constraint trigger note after update on outbox deferrable initially deferred
for each row execute function note()`)
	sent := pipeline.Result{Status: pipeline.Sent, StartedAt: time.Now(), HTTPStatus: 200}
	dead := pipeline.Result{Status: pipeline.Dead, StartedAt: time.Now(), HTTPStatus: 404, Error: "x"}
	for i, results := range [][]pipeline.Result{{sent, sent}, {sent, dead}} {
		for j := range results {
			results[j].MessageID, results[j].Token = leases[2*i+j].ID, leases[2*i+j].Token
		}
		if late, err := q.Finish(t.Context(), results); late != 0 || err != nil {
			t.Fatalf("Finish = %d late, %v", late, err)
		}
	}
	var settings string
	err = db.QueryRow(t.Context(), `select string_agg(setting, ' ') from at_commit`).Scan(&settings)
	if err != nil || settings != "on on on on" {
		t.Errorf("results were committed with synchronous_commit %s, %v; want on for all", settings, err)
	}
}
