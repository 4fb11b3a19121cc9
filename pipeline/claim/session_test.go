package claim

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"sluice.example/sluice/internal/pgsession"
	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline"
)

// Sessions that began while the database was read-only are not used again: each statement works as soon as the cause is
// gone, on the same pool.
func TestReadOnlySessionsAreNotKept(t *testing.T) {
	pool := pgtest.New(t)
	cfg, err := pgxpool.ParseConfig(pool.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns = 1
	pgsession.Configure(cfg.ConnConfig)
	one, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer one.Close()
	q := newQueue(t, one)
	name := pgx.Identifier{pool.Config().ConnConfig.Database}.Sanitize()
	insert(t, pool, "crm", 10)
	leases := claim(t, q, "crm", 2)
	for what, statement := range map[string]func(context.Context) error{
		"claim": func(ctx context.Context) error {
			_, err := q.Claim(ctx, []pipeline.Want{{Destination: "crm", Room: 1}})
			return err
		},
		"begin": func(ctx context.Context) error {
			_, err := q.Begin(ctx, &leases[0])
			return err
		},
		"extend": func(ctx context.Context) error {
			_, err := q.Extend(ctx, leases)
			return err
		},
		"finish, all sent": func(ctx context.Context) error {
			_, err := q.Finish(ctx, []pipeline.Result{result(leases[0], pipeline.Sent)})
			return err
		},
		"finish": func(ctx context.Context) error {
			_, err := q.Finish(ctx, []pipeline.Result{result(leases[1], pipeline.Released)})
			return err
		},
	} {
		exec(t, pool, fmt.Sprintf(`alter database %s set default_transaction_read_only = on`, name))
		one.Reset() // sessions from now on are read-only
		if err := statement(t.Context()); err == nil {
			t.Errorf("%s worked on a read-only session", what)
		}
		exec(t, pool, fmt.Sprintf(`alter database %s reset default_transaction_read_only`, name))
		if err := statement(t.Context()); err != nil {
			t.Errorf("%s after the database can be written again: %v", what, err)
		}
	}
}
