package main

import (
	"context"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/internal/pgtest"
)

// blocks returns the blocks of SQL of one section of docs/operations.md, with names of roles that are this test's own.
func blocks(t *testing.T, section string, names *strings.Replacer) (sql []string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "\n## "+section+"\n")
	text, _, _ = strings.Cut(text, "\n## ")
	for _, m := range regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(text, -1) {
		sql = append(sql, names.Replace(m[1]))
	}
	return sql
}

// A role made as the manual has it, without any right beside those, is all that the program needs; and a reader's
// rights on events reach the partitions.
func TestManagedPostgreSQL(t *testing.T) {
	t.Parallel()
	const role, reader = "sluice_test_managed", "sluice_test_managed_reader"
	names := strings.NewReplacer("schema sluice", "schema "+role, "sluice.", role+".", "role sluice ", "role "+role+" ",
		"authorization sluice", "authorization "+role, "search_path = sluice", "search_path = "+role,
		"to sluice;", "to "+role+";", "analyst", reader)
	sql := blocks(t, "Managed PostgreSQL", names)
	if len(sql) != 2 {
		t.Fatalf("blocks of SQL: %q; want 2", sql)
	}
	address := pgtest.URL(t)
	admin := connect(t, address)
	exec := func(conn *pgx.Conn, sql string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	t.Cleanup(func() {
		// A connection of its own: that of the test is closed by now.
		conn, err := pgx.Connect(context.Background(), address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(context.Background())
		for _, name := range []string{role, reader} {
			if _, err := conn.Exec(context.Background(), `drop owned by `+name+` cascade; drop role `+name); err != nil {
				t.Error(err)
			}
		}
	})
	exec(admin, "create role "+reader)
	exec(admin, sql[0])
	exec(admin, "alter role "+role+" password 'secret'")

	own, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	query := own.Query() // which would win over the user in front of the host
	query.Set("user", role)
	query.Set("password", "secret")
	own.RawQuery = query.Encode()
	node := startNode(t, own.String())
	r := postEvents(client(t), node.URL+"/v1/events",
		testEvent("m1", time.Now()), testEvent("m2", time.Now().AddDate(0, 0, -3)))
	if r.err != nil || r.status != 200 || r.Stored != 2 {
		t.Fatalf("answer %+v; want both events stored", r)
	}
	pgtest.Eventually(t, "a pass of retain without a failure", func() bool {
		return metricsOf(t, node).Sum("sluice_retain_last_pass_timestamp_seconds") > 0
	})
	if n := query1(t, admin, `select count(*) from public.events`); n != 0 {
		t.Errorf("%d events in public; want none", n)
	}

	exec(admin, sql[1])
	exec(connect(t, own.String()), "select create_events_partition('2020-07-30')")
	exec(admin, "set role "+reader)
	const readSQL = `select (select count(*) from ` + role + `.events)`
	if n := query1(t, admin, readSQL); n != 2 {
		t.Errorf("a reader sees %d events; want 2", n)
	}
	exec(admin, "reset role")
	const unreadableSQL = `select count(*) from pg_inherits
		where inhparent = '` + role + `.events'::regclass and not has_table_privilege('` + reader + `', inhrelid, 'select')`
	if n := query1(t, admin, unreadableSQL); n != 0 {
		t.Errorf("%d partitions can't be read by a role that can read events", n)
	}
}
