package outbox_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/operate/audit"
	"sluice.example/sluice/operate/outbox"
	"sluice.example/sluice/pipeline/claim"
)

func exec(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func value(t *testing.T, pool *pgxpool.Pool, sql string) (s string) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), sql).Scan(&s); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return s
}

func insertDead(t *testing.T, pool *pgxpool.Pool, n int) {
	t.Helper()
	exec(t, pool, `insert into outbox (tenant_id, type, dedupe_key, destination, payload, status, finished_at)
		select 1, 'welcome', gen_random_uuid()::text, 'crm', '{}', 'dead', now() from generate_series(1, $1)`, n)
}

func connect(t *testing.T, pool *pgxpool.Pool) *pgx.Conn {
	t.Helper()
	conn, err := pgx.ConnectConfig(t.Context(), pool.Config().ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

var dead = claim.Filter{Statuses: []string{"dead"}}

var operator = audit.Actor{Name: "ann", Via: audit.Command}

// A retry that is interrupted, or whose process is killed, goes on where it ended when it is repeated: each message is
// retried once, also those that died again meanwhile, and none that died later.
func TestRepeatedRetryTouchesEachMessageOnce(t *testing.T) {
	for _, end := range []string{"interrupted", "killed"} {
		t.Run(end, func(t *testing.T) {
			pool := pgtest.New(t)
			insertDead(t, pool, 25)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			steps := 0
			conn := connect(t, pool)
			err := outbox.Retry.Apply(ctx, conn, dead, 0, 10, operator, func(p outbox.Progress) {
				if steps++; steps == 2 {
					if end == "killed" {
						_ = conn.Close(context.Background()) // it can't even give the job back
					}
					cancel()
				}
			})
			if err == nil || !strings.Contains(err.Error(), "20 messages retried") ||
				!strings.Contains(err.Error(), "repeat the command") {
				t.Fatalf("Apply = %v; want that 20 messages were retried, and how to go on", err)
			}
			exec(t, pool, `update outbox set status = 'dead', finished_at = now() where status <> 'dead'`) // again
			insertDead(t, pool, 5)
			if end == "killed" {
				exec(t, pool, `update operator_jobs set locked_until = now() + interval '300 milliseconds'`)
			}
			var last outbox.Progress
			report := func(p outbox.Progress) { last = p }
			err = outbox.Retry.Apply(t.Context(), connect(t, pool), dead, 0, 1000, operator, report)
			if err != nil || !last.Done || !last.Resumed || last.Changed != 25 {
				t.Errorf("Apply again = %+v, %v; want the same job, 25 in all", last, err)
			}
			got := value(t, pool, `select string_agg(redrives || ' x' || n, ', ' order by redrives) from
				(select redrives, count(*) as n from outbox group by redrives) r`)
			if got != "0 x5, 1 x25" {
				t.Errorf("redrives are %s; want 0 x5, 1 x25", got)
			}
			err = outbox.Retry.Apply(t.Context(), connect(t, pool), dead, 0, 1000, operator, report)
			if err != nil || last.Resumed || last.Changed != 25 {
				t.Errorf("Apply after the end = %+v, %v; want another job, for the 25 that are dead", last, err)
			}
			got = value(t, pool, `select string_agg(concat_ws(' ', kind, state, done, locked_until), ', ' order by id)
				from operator_jobs`)
			if got != "retried done 25, retried done 25" {
				t.Errorf("jobs are %s; want retried done 25, retried done 25", got)
			}
		})
	}
}

// Another filter, and another kind, is another job.
func TestJobsAreToldApart(t *testing.T) {
	pool := pgtest.New(t)
	insertDead(t, pool, 3)
	ctx, cancel := context.WithCancel(t.Context())
	_ = outbox.Retry.Apply(ctx, connect(t, pool), dead, 0, 1, operator, func(outbox.Progress) { cancel() })
	var last outbox.Progress
	report := func(p outbox.Progress) { last = p }
	mail := claim.Filter{Statuses: []string{"dead"}, Destination: "mail"}
	err := outbox.Retry.Apply(t.Context(), connect(t, pool), mail, 0, 10, operator, report)
	if err != nil || last.Resumed {
		t.Errorf("Apply for mail = %+v, %v; want a job of its own", last, err)
	}
	err = outbox.Discard.Apply(t.Context(), connect(t, pool), dead, 0, 10, operator, report)
	if err != nil || last.Resumed || last.Changed != 2 {
		t.Errorf("Discard = %+v, %v; want a job of its own, for the two that are dead", last, err)
	}
}
