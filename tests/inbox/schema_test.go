package inbox_test

import (
	"os"
	"strings"
	"testing"

	"sluice.example/sluice/inbox"
	"sluice.example/sluice/internal/pgtest"
)

// describeSQL lists the columns and the indexes of the table that the search path shows.
const describeSQL = `
select array_agg(d order by d) from (
    select format('%s %s %s %s', a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
        pg_get_expr(ad.adbin, ad.adrelid)) as d
    from pg_attribute a left join pg_attrdef ad on (ad.adrelid, ad.adnum) = (a.attrelid, a.attnum)
    where a.attrelid = to_regclass('processed_messages') and a.attnum > 0
    union all
    select replace(indexdef, current_schema || '.', '') from pg_indexes
    where schemaname = current_schema and tablename = 'processed_messages') x`

// The pipeline's migration, Schema and docs/inbox.md make the same table.
func TestSchemaIsThatOfTheMigrationAndOfTheManual(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	var migrated []string
	if err := pool.QueryRow(t.Context(), describeSQL).Scan(&migrated); err != nil {
		t.Fatal(err)
	}
	if len(migrated) != 5 {
		t.Fatalf("the migration makes %q; want 3 columns and 2 indexes", migrated)
	}
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for name, ddl := range map[string]string{"of_go": inbox.Schema, "of_docs": manualSchema(t)} {
		const enterSQL = `create schema if not exists %; set search_path = %;`
		for range 2 { // it can be run again
			if _, err := conn.Exec(t.Context(), strings.ReplaceAll(enterSQL, "%", name)+ddl); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		var made []string
		if err := conn.QueryRow(t.Context(), describeSQL).Scan(&made); err != nil {
			t.Fatal(err)
		}
		if got, want := strings.Join(made, "\n"), strings.Join(migrated, "\n"); got != want {
			t.Errorf("schema %s:\n%s\nthe migration makes\n%s", name, got, want)
		}
	}
}

// manualSchema is the one SQL block of docs/inbox.md that makes the table.
func manualSchema(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/inbox.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "```sql\ncreate table")
	ddl, _, closed := strings.Cut(rest, "```")
	if !found || !closed {
		t.Fatal("docs/inbox.md has no block of SQL that begins with create table")
	}
	return "create table" + ddl
}
