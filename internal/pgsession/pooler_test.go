package pgsession_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/internal/pgsession"
	"sluice.example/sluice/internal/pgtest"
)

// TestConnectThroughAPooler: a pooler is noticed, no mode is left that prepares statements, and the sessions that it
// keeps for everybody get no keepalives of ours. A direct connection stays as it was asked for.
func TestConnectThroughAPooler(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	pooler := pgtest.NewPgBouncer(t, url)
	for _, c := range []struct {
		url  string
		mode string
		want pgx.QueryExecMode
	}{
		{url, "cache_statement", pgx.QueryExecModeCacheStatement},
		{url, "describe_exec", pgx.QueryExecModeDescribeExec},
		{pooler, "cache_statement", pgx.QueryExecModeCacheDescribe},
		{pooler, "cache_describe", pgx.QueryExecModeCacheDescribe},
		{pooler, "describe_exec", pgx.QueryExecModeCacheDescribe},
		{pooler, "exec", pgx.QueryExecModeExec},
		{pooler, "simple_protocol", pgx.QueryExecModeSimpleProtocol},
	} {
		cfg, err := pgx.ParseConfig(c.url + "&default_query_exec_mode=" + c.mode)
		if err != nil {
			t.Fatal(err)
		}
		pgsession.Configure(cfg)
		conn, pooled, err := pgsession.Connect(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		if mode := conn.Config().DefaultQueryExecMode; mode != c.want || cfg.DefaultQueryExecMode != c.want ||
			pooled != (c.url == pooler) {
			t.Errorf("%s: %v, pooled %v, want %v", c.mode, mode, pooled, c.want)
		}
		var n int
		const sql = `select count(*) from pg_settings where source = 'session' and name like 'tcp%'`
		if err := conn.QueryRow(t.Context(), sql).Scan(&n); err != nil || (n == 0) != pooled {
			t.Errorf("%s: %d settings of keepalives, %v, pooled %v", c.mode, n, err, pooled)
		}
		if err := conn.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
