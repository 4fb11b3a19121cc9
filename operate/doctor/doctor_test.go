package doctor_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/operate/doctor"
)

func look(t *testing.T, pool *pgxpool.Pool) *doctor.Report {
	t.Helper()
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	r, err := doctor.Look(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func execute(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// well is a database whose pipeline runs and has nothing to complain about.
func well(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool := pgtest.New(t)
	execute(t, pool, `insert into sluice_processes (process_id, writes, name, address, version, roles, state)
		values (gen_random_uuid(), true, 'a', '', 'v1', '{ingest,sweep,deliver,retain}', '{}')`)
	execute(t, pool, `insert into outbox (tenant_id, type, dedupe_key, destination, payload)
		values (1, 'x', 'fresh', 'crm', '{}')`)
	return pool
}

// TestWell: nothing is wrong where nothing is.
func TestWell(t *testing.T) {
	t.Parallel()
	r := look(t, well(t))
	if len(r.Findings) > 0 || r.Err() != nil || len(r.Nodes) != 1 || len(r.Backlogs) != 1 {
		t.Errorf("the report is %+v, %v", r, r.Err())
	}
}

// TestFindings: each thing that is wrong is found alone, and says what to do.
func TestFindings(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, sql, id, level, sentence string
	}{
		{"a role that nobody has", `update sluice_processes set roles = '{ingest,sweep,retain}'`, "SluiceDown", doctor.Bad,
			"No process with the role deliver runs: nothing is sent."},
		{"a node that is gone", `insert into sluice_processes (process_id, writes, name, address, version, roles, seen_at)
			values (gen_random_uuid(), true, 'b', '', 'v1', '{}', now() - interval '1 minute')`, "SluiceDown", doctor.Warn,
			"Node b is not seen for"},
		{"versions", `insert into sluice_processes (process_id, writes, name, address, version, roles)
			values (gen_random_uuid(), true, 'b', '', 'v2', '{}')`, "SluiceVersionsDiffer", doctor.Warn, "2 different versions"},
		{"a full buffer", `update sluice_processes set state = '{"buffer_fill": 0.95}'`, "SluiceBufferNearlyFull",
			doctor.Warn, "95 % full"},
		{"a breaker", `update sluice_processes set state = '{"gates": [{"destination": "crm", "open": true}]}'`,
			"SluiceBreakerOpen", doctor.Warn, "crm is closed by its circuit breaker on a"},
		{"a late destination", `update outbox set run_after = now() - interval '10 minutes'`, "SluiceDeliveriesLate",
			doctor.Warn, "1 messages to crm are due, the oldest for 10m"},
		{"a paused destination", `update sluice_processes set state = '{"gates": [{"destination": "crm", "paused": true}]}'`,
			"SluiceDeliveriesLate", doctor.Warn, "crm is paused, and 1 messages"},
		{"dead messages", `update outbox set status = 'dead', finished_at = now()`, "SluiceMessagesDead", doctor.Warn,
			"1 messages to crm were given up"},
		{"a rule that fails", `insert into rule_status (rule_id, kind, state, owner, response, hash, seen_at, failing_at,
			last_error) values ('s/x', 'event', 'active', '', '', '', now(), now(), 'no such key')`, "SluiceRuleFailing",
			doctor.Warn, "Rule s/x keeps failing: no such key"},
		{"quarantine", `insert into quarantine (tenant_id, event_id, occurred_at, event, sqlstate, reason)
			values (1, gen_random_uuid(), now(), '{}', '22P05', 'unsupported')`, "SluiceQuarantine", doctor.Warn, "22P05"},
		{"no partitions", `do $$ declare day text; begin
			for day in select relname from pg_class where relname ~ '^events_[0-9]{8}$'
				and right(relname, 8) > to_char(now() at time zone 'UTC', 'YYYYMMDD') loop
				execute 'drop table ' || day; end loop; end $$`, "SluicePartitionsMissing", doctor.Bad,
			"for 0 days after today"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			pool := well(t)
			execute(t, pool, c.sql)
			r := look(t, pool)
			if len(r.Findings) != 1 {
				t.Fatalf("%d findings: %+v; want one", len(r.Findings), r.Findings)
			}
			f := r.Findings[0]
			if f.ID != c.id || f.Level != c.level || !strings.Contains(f.Sentence, c.sentence) || f.Do == "" {
				t.Errorf("found %+v; want %s, %s: %s", f, c.id, c.level, c.sentence)
			}
			if (r.Err() != nil) != (c.level == doctor.Bad) {
				t.Errorf("Err = %v at level %s", r.Err(), c.level)
			}
		})
	}
}

// TestReadOnly: a database that takes nothing is found, and what is bad stands first.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	pool := well(t)
	execute(t, pool, `update outbox set status = 'dead', finished_at = now()`)
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(t.Context(), `set default_transaction_read_only = on`); err != nil {
		t.Fatal(err)
	}
	r, err := doctor.Look(t.Context(), conn)
	if err != nil || len(r.Findings) != 2 || r.Findings[0].ID != "SluiceReadOnly" {
		t.Errorf("Look = %+v, %v; want that it is read-only, and then the dead", r, err)
	}
	if !slices.IsSortedFunc(r.Findings, func(a, b doctor.Finding) int { return strings.Compare(a.Level, b.Level) }) {
		t.Error("the worst does not stand first")
	}
}
