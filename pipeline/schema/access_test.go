package schema_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"sluice.example/sluice/internal/pgtest"
)

// withRoles makes the roles of a test, which belong to the whole server, and removes them.
func withRoles(t *testing.T, pool *pgxpool.Pool, roles ...string) {
	t.Helper()
	for _, role := range roles {
		poolExec(t, pool, `create role `+role)
		t.Cleanup(func() {
			if _, err := pool.Exec(context.Background(), `drop owned by `+role+` cascade; drop role `+role); err != nil {
				t.Error(err)
			}
		})
	}
}

func poolExec(t *testing.T, pool *pgxpool.Pool, sql string) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// accessSQL describes who may do what with a table.
const accessSQL = `
select format(E'owner %s\ngrants %s\ncolumns %s\nrow security %s, forced %s\npolicies %s', pg_get_userbyid(c.relowner),
    (select string_agg(g, ' ' order by g) from (
        select format('%s:%s:%s', a.grantee::regrole, a.privilege_type, a.is_grantable) g
        from aclexplode(c.relacl) a where a.grantee <> c.relowner) grants),
    (select string_agg(format('%s:%s:%s', attname, a.grantee::regrole, a.privilege_type), ' ' order by attname)
        from pg_attribute, aclexplode(attacl) a where attrelid = c.oid),
    c.relrowsecurity, c.relforcerowsecurity,
    (select string_agg(concat_ws(' ', policyname, permissive, roles, cmd, qual, with_check), '; ' order by policyname)
        from pg_policies p where p.tablename = c.relname))
from pg_class c where c.oid = $1::regclass`

// A partition that is made later has the access of its parent, whatever default privileges give.
func TestPartitionsHaveTheAccessOfEvents(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	withRoles(t, pool, "sluice_test_owner", "sluice_test_analyst", "sluice_test_clerk", "sluice_test_guest")
	poolExec(t, pool, `
alter default privileges in schema public grant select, delete on tables to sluice_test_guest, public;
grant select on events to sluice_test_analyst with grant option;
grant insert, select (event_name, tenant_id) on events to sluice_test_clerk;
alter table events enable row level security;
alter table events force row level security;
create policy tenants on events as restrictive for select to sluice_test_analyst, public using (tenant_id = 1);
create policy writes on events for insert with check (tenant_id < 5);
create policy reads on events for select using (true);
grant create on schema public to sluice_test_owner;
alter table events owner to sluice_test_owner;
select create_events_partition('2020-07-30')`)
	access := func(table string) (text string) {
		t.Helper()
		if err := pool.QueryRow(t.Context(), accessSQL, table).Scan(&text); err != nil {
			t.Fatal(err)
		}
		return text
	}
	if got, want := access("events_20200730"), access("events"); got != want {
		t.Fatalf("access to a new partition:\n%s\nto events:\n%s", got, want)
	}

	poolExec(t, pool, `insert into events (event_id, tenant_id, event_name, occurred_at, received_at)
		select gen_random_uuid(), i, 'x', '2020-07-30 12:00Z', now() from generate_series(1, 3) i`)
	analyst, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer analyst.Rollback(context.Background())
	if _, err := analyst.Exec(t.Context(), `set local role sluice_test_analyst`); err != nil {
		t.Fatal(err)
	}
	pgtest.Until(t, analyst, `select (select count(*) from events), (select count(*) from events_20200730)`, 1, 1)
}

// What was granted on events later reaches a partition by copy_events_access, and what was taken away leaves it.
func TestAccessOfAPartitionCanBeCopiedAgain(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	withRoles(t, pool, "sluice_test_late")
	poolExec(t, pool, `select create_events_partition('2020-07-30');
grant select on events to sluice_test_late;
grant delete on events_20200730 to sluice_test_late;
select copy_events_access(inhrelid::regclass, inhparent::regclass)
	from pg_inherits where inhparent = 'events'::regclass;
select copy_events_access(inhrelid::regclass, inhparent::regclass)
	from pg_inherits where inhparent = 'events'::regclass`)
	pgtest.Until(t, pool, `select bool_and(has_table_privilege('sluice_test_late', inhrelid, 'select')),
		bool_or(has_table_privilege('sluice_test_late', inhrelid, 'delete'))
		from pg_inherits where inhparent = 'events'::regclass`, true, false)
}

// A policy that can't be copied shows less of a partition to those who name it, and does not keep the day from being
// made.
func TestPolicyThatCannotBeCopied(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	withRoles(t, pool, "sluice_test_query")
	poolExec(t, pool, `
create table members (tenant_id integer, role_name text);
insert into members values (1, 'sluice_test_query');
grant select on events, members to sluice_test_query;
alter table events enable row level security;
create policy by_query on events using (exists (select from members m where m.tenant_id = events.tenant_id));
select create_events_partition('2020-07-30');
insert into events (event_id, tenant_id, event_name, occurred_at, received_at)
	select gen_random_uuid(), i, 'x', '2020-07-30 12:00Z', now() from generate_series(1, 3) i`)
	reader, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Rollback(context.Background())
	if _, err := reader.Exec(t.Context(), `set local role sluice_test_query`); err != nil {
		t.Fatal(err)
	}
	pgtest.Until(t, reader, `select count(*) from events`, 1)
	pgtest.Until(t, reader, `select count(*) < 2 from events_20200730`)
}
