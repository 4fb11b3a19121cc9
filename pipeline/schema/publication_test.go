package schema_test

import (
	"testing"

	"sluice.example/sluice/internal/pgtest"
)

// With CREATE PUBLICATION ... FOR ALL TABLES, PostgreSQL refuses to delete from a table without a replica identity.
func TestEveryTableHasAReplicaIdentity(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	const withoutSQL = `
select coalesce(string_agg(c.relname, ' ' order by c.relname), '') from pg_class c
where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p') and c.relreplident <> 'f'
    and not exists (select from pg_index i where i.indrelid = c.oid and (i.indisprimary or i.indisreplident))`
	pgtest.Until(t, pool, `
select count(*) > 15 from pg_class where relnamespace = 'public'::regnamespace and relkind = 'r'`)
	var without string
	if err := pool.QueryRow(t.Context(), withoutSQL).Scan(&without); err != nil || without != "" {
		t.Errorf("tables without a primary key or replica identity: %q, %v; want none", without, err)
	}
}
