package main

import (
	"testing"

	"sluice.example/sluice/internal/pgtest"
)

// TestPgBouncer: a node and its commands work through PgBouncer in transaction mode, in each way in which pgx may talk
// to PostgreSQL.
func TestPgBouncer(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"", "cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"} {
		t.Run("mode "+mode, func(t *testing.T) {
			t.Parallel()
			url := pgtest.URL(t)
			address := pgtest.NewPgBouncer(t, url)
			if mode != "" {
				address += "&default_query_exec_mode=" + mode
			}
			checkNode(t, connect(t, url), address)
		})
	}
}
