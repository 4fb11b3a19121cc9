package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"sluice.example/sluice/outbox"
)

// logIn makes a role with the rights that docs/outbox.md lists, and logs in as it.
func logIn(t *testing.T, pool *pgxpool.Pool) (role string, app *pgx.Conn) {
	t.Helper()
	ctx := t.Context()
	role = "shop_" + strings.TrimPrefix(pool.Config().ConnConfig.Database, "sluice_test_")
	run(t, pool, strings.ReplaceAll(`
create role ROLE login password 'shop';
grant usage on schema public to ROLE;
grant execute on function sluice_enqueue(jsonb), sluice_enqueue(jsonb, text) to ROLE;`, "ROLE", role))
	cfg := pool.Config().ConnConfig.Copy()
	cfg.User, cfg.Password = role, "shop"
	app, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(ctx)
		app.Close(ctx)
		finally(t, pool, strings.ReplaceAll(`drop owned by ROLE cascade; drop role ROLE`, "ROLE", role))
	})
	return role, app
}

// promised enqueues as the application, in a transaction.
func promised(t *testing.T, app *pgx.Conn, messages ...outbox.Message) (receipts []outbox.Receipt, err error) {
	t.Helper()
	err = pgx.BeginFunc(t.Context(), app, func(tx pgx.Tx) error {
		var err error
		receipts, err = outbox.Enqueue(t.Context(), tx, messages...)
		return err
	})
	return receipts, err
}

func refused(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Code == "42501"
}

// The role of an application enqueues, and does nothing else to the outbox.
func TestApplicationOnlyEnqueues(t *testing.T) {
	pool := shop(t)
	role, app := logIn(t, pool)
	run(t, pool, `insert into outbox_writers values ($1, 1)`, role)
	m := placed("a")
	m.Destination, m.Topic = "", "orders"
	receipts, err := promised(t, app, m, placed("a"))
	if err != nil || duplicates(receipts) != 1 || len(receipts[0].Deliveries) != 2 {
		t.Fatalf("receipts %+v, %v; want two deliveries and a duplicate", receipts, err)
	}
	call := func(tenant string) string {
		return `select sluice_enqueue('{"event_type":"a","payload":1,"destination":"crm"` + tenant
	}
	for what, sql := range map[string]string{
		"reads payloads":             `select payload from outbox`,
		"reads the keys of messages": `select message_id, idempotency_key from outbox`,
		"reads attempts":             `select * from outbox_all_attempts`,
		"reads events":               `select * from events`,
		"frees keys":                 `update dedupe_keys set expires_at = now()`,
		"deletes keys":               `delete from dedupe_keys`,
		"takes keys":                 `insert into dedupe_keys values (2, gen_random_uuid())`,
		"forges a rule's message": `insert into outbox (tenant_id, type, dedupe_key, destination, payload, rule_id)
			values (1, 'x', 'x', 'crm', '1', 'r')`,
		"enqueues past the function": `insert into outbox (tenant_id, type, dedupe_key, destination, payload)
			values (1, 'x', 'x', 'crm', '1')`,
		"sends again":                    `update outbox set status = 'pending'`,
		"deletes messages":               `delete from outbox`,
		"reads the destinations":         `select * from outbox_destinations`,
		"adds a destination":             `insert into outbox_destinations values ('evil')`,
		"may write for another tenant":   fmt.Sprintf(`insert into outbox_writers values ('%s', 7)`, role),
		"renames a tenant":               `update outbox_tenants set tenant = 'default'`,
		"enqueues for another tenant":    call(`,"tenant":"acme"}')`),
		"enqueues for another's number":  call(`,"tenant":7}')`),
		"enqueues for another by a call": call(`}', tenant => 'acme')`),
		"becomes the owner":              `set role to ` + pool.Config().ConnConfig.User,
	} {
		if _, err := app.Exec(t.Context(), sql); !refused(err) {
			t.Errorf("the application %s: error = %v; want 42501", what, err)
		}
	}
	_, err = promised(t, app, outbox.Message{EventType: "a", Payload: []byte("1"), Destination: "crm", Tenant: "acme"})
	if want := "role " + role + " may not enqueue for tenant acme"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("for another tenant: %v; want %q", err, want)
	}
	run(t, pool, `insert into outbox_writers values ($1, 7)`, role)
	_, err = promised(t, app, outbox.Message{EventType: "a", Payload: []byte("1"), Destination: "crm", Tenant: "acme"})
	if err != nil {
		t.Errorf("for a tenant that outbox_writers allows: %v", err)
	}
	one(t, pool, "1", `select count(*) from outbox where tenant_id = 7`)
}

// Who may call the function may write for the only tenant. With two tenants or a row in outbox_writers it takes a row;
// that of a role counts for its members.
func TestWritersOfATenant(t *testing.T) {
	pool := shop(t)
	role, app := logIn(t, pool)
	check := func(when string, want bool) {
		t.Helper()
		if _, err := promised(t, app, placed("")); err == nil != want || !want && !refused(err) {
			t.Errorf("%s: %v; want it to be allowed: %v", when, err, want)
		}
	}
	check("two tenants and no row", false)
	if err := outbox.SyncTenants(t.Context(), pool, map[string]int32{"default": 1}); err != nil {
		t.Fatal(err)
	}
	check("one tenant and no row", true)
	run(t, pool, `insert into outbox_writers values ('nobody_else', 1)`)
	check("a row for another role", false)
	run(t, pool, `create role `+role+`_group; grant `+role+`_group to `+role)
	t.Cleanup(func() { finally(t, pool, `drop role `+role+`_group`) })
	run(t, pool, `insert into outbox_writers values ($1, 1)`, role+"_group")
	check("a row for its group", true)
	other := role + "_other"
	run(t, pool, `create role `+other+`; grant `+other+` to `+role+`; grant usage on schema public to `+other+`;
		grant execute on function sluice_enqueue(jsonb) to `+other)
	t.Cleanup(func() { finally(t, pool, `drop owned by `+other+`; drop role `+other) })
	if _, err := app.Exec(t.Context(), `set role `+other); err != nil {
		t.Fatal(err)
	}
	check("as another role, by set role", false)
}

// finally is run, for the time after a test.
func finally(t *testing.T, pool *pgxpool.Pool, sql string) {
	t.Helper()
	if _, err := pool.Exec(context.Background(), sql); err != nil {
		t.Error(err)
	}
}

// Neither a schema of the role's name nor temporary tables catch what is enqueued.
func TestEnqueueWritesIntoOurTables(t *testing.T) {
	pool := shop(t)
	role, app := logIn(t, pool)
	if err := outbox.SyncTenants(t.Context(), pool, map[string]int32{"default": 1}); err != nil {
		t.Fatal(err)
	}
	run(t, pool, `create schema `+role+` authorization `+role+`; create schema other_path;
		grant usage on schema other_path to `+role)
	for _, table := range []string{"outbox", "dedupe_keys", "outbox_destinations", "outbox_topics", "outbox_tenants",
		"outbox_writers"} {
		columns := `(like public.` + table + ` including all)`
		run(t, pool, `create table `+role+`.`+table+columns+`; grant all on `+role+`.`+table+` to `+role)
		if _, err := app.Exec(t.Context(), `create temp table `+table+` as select * from `+role+`.`+table); err != nil {
			t.Fatal(err)
		}
	}
	for i, path := range []string{`"$user", public`, `pg_temp, public`, `other_path`, role} {
		if _, err := app.Exec(t.Context(), `set search_path = `+path); err != nil {
			t.Fatal(err)
		}
		_, err := app.Exec(t.Context(), `select public.sluice_enqueue($1::text::jsonb)`, fmt.Sprintf(
			`{"event_type":"a","payload":1,"destination":"crm","idempotency_key":"k%d"}`, i))
		if err != nil {
			t.Errorf("with search_path %s: %v", path, err)
		}
		one(t, pool, fmt.Sprintf("(%d,%[1]d)", i+1),
			`select row((select count(*) from public.outbox), (select count(*) from public.dedupe_keys))`)
	}
}

// Every function of ours looks into our schema, and into temporary tables last.
func TestFunctionsHaveAFixedPath(t *testing.T) {
	pool := shop(t)
	one(t, pool, "null", `select string_agg(p.oid::regprocedure::text, ', ') from pg_proc p
		where p.pronamespace = 'public'::regnamespace
			and not coalesce(p.proconfig, '{}') @> '{"search_path=public, pg_temp"}'`)
	one(t, pool, "4", `select count(*) from pg_proc where pronamespace = 'public'::regnamespace and proname in
		('sluice_enqueue', 'create_events_partition', 'copy_events_access')`)
}

// A tenant is known by its name, which may be a UUID or look like a number; the number counts where no name does.
func TestTenantsByName(t *testing.T) {
	pool := shop(t)
	const id = "0192f0c1-2b9c-7c1e-9a63-0d6f8c1f2a10"
	sync := func(tenants map[string]int32) {
		t.Helper()
		if err := outbox.SyncTenants(t.Context(), pool, tenants); err != nil {
			t.Fatal(err)
		}
	}
	sync(map[string]int32{"acme": 2, id: 3, "7": 4, "default": 1})
	for name, want := range map[string]string{"": "1", "acme": "2", id: "3", "7": "4", "2": "2", "4": "4"} {
		m := placed("")
		m.Tenant, m.TenantRef = name, "customer 17"
		receipts, err := enqueued(t.Context(), pool, m)
		if err != nil {
			t.Fatalf("tenant %q: %v", name, err)
		}
		one(t, pool, "("+want+`,"customer 17")`, `select row(tenant_id, tenant_ref) from outbox where message_id = $1`,
			receipts[0].Deliveries[0].MessageID)
	}
	run(t, pool, `select sluice_enqueue('[{"event_type":"call","payload":1,"destination":"crm"},
		{"event_type":"call","payload":1,"destination":"crm","tenant":"acme"}]', tenant => 'acme')`)
	one(t, pool, "{2,2}", `select array_agg(tenant_id) from outbox where type = 'call'`)
	for args, want := range map[string]string{
		`}', tenant => 'globex')`:            `tenant "globex" is not configured`,
		`,"tenant":"7"}', tenant => 'acme')`: `tenant "7" is not "acme", which the call is for`,
	} {
		sql := `select sluice_enqueue('{"event_type":"a","payload":1,"destination":"crm"` + args
		if _, err := pool.Exec(t.Context(), sql); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", sql, err, want)
		}
	}
	sync(map[string]int32{"acme": 1, "default": 2}) // names change places, and one is gone
	one(t, pool, "acme 1, default 2", `select string_agg(tenant || ' ' || tenant_id, ', ' order by tenant)
		from outbox_tenants`)
}
