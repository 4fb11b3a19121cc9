package claim

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline"
)

// Every statement works in each of pgx's modes, so that any pooler may stand in between.
func TestExecModes(t *testing.T) {
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe,
		pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		pool := pgtest.New(t)
		cfg, err := pgxpool.ParseConfig(pool.Config().ConnString())
		if err != nil {
			t.Fatal(err)
		}
		cfg.ConnConfig.DefaultQueryExecMode = mode
		other, err := pgxpool.NewWithConfig(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		q := newQueue(t, other)
		insert(t, pool, "crm", 4)
		leases, err := q.Claim(t.Context(), []pipeline.Want{{Destination: "crm", Room: 10}})
		if err != nil || len(leases) != 4 {
			t.Errorf("%s: Claim = %d leases, %v; want 4", mode, len(leases), err)
			continue
		}
		if string(leases[0].Payload) != `{"i": 1}` || leases[0].Headers["X-Shop"] != "demo" {
			t.Errorf("%s: lease = %+v", mode, leases[0])
		}
		if ends, err := q.Extend(t.Context(), leases); err != nil || len(ends) != 4 {
			t.Errorf("%s: Extend = %v, %v; want 4 ends", mode, ends, err)
		}
		failed := result(leases[0], pipeline.Failed)
		failed.Error, failed.StartedAt, failed.RetryIn = `quotes ' " \ and ☕`, time.Now(), time.Hour
		sent := result(leases[3], pipeline.Sent)
		sent.HTTPStatus, sent.StartedAt, sent.Latency = 204, time.Now(), time.Millisecond
		if late, err := q.Finish(t.Context(), []pipeline.Result{failed, result(leases[1], pipeline.Dead),
			sent}); err != nil || late != 0 {
			t.Errorf("%s: Finish = %d late, %v", mode, late, err)
		}
		if got := value(t, pool, `select last_error from outbox where status = 'failed'`); got != failed.Error {
			t.Errorf("%s: last_error = %s; want %s", mode, got, failed.Error)
		}
		if err := q.count(t.Context()); err != nil {
			t.Errorf("%s: count: %v", mode, err)
		}
		for i, want := range map[int]string{0: "failed", 3: "sent"} {
			if row, attempts, err := Show(t.Context(), other, leases[i].ID); err != nil || row.Status != want ||
				len(attempts) != 1 || attempts[0].Status != want {
				t.Errorf("%s: Show = %s, attempts %+v, %v; want %s, and one attempt", mode, row.Status, attempts, err,
					want)
			}
		}
		if s, err := Retry(t.Context(), other, Filter{Statuses: []string{"dead"}}, 0, 10); err != nil ||
			s.Changed != 1 {
			t.Errorf("%s: Retry = %+v, %v; want 1", mode, s, err)
		}
		if s, err := Discard(t.Context(), other, Filter{IDs: []int64{leases[1].ID}}, 0, 10); err != nil ||
			s.Changed != 1 {
			t.Errorf("%s: Discard = %+v, %v; want 1", mode, s, err)
		}
		if groups, err := Count(t.Context(), other,
			Filter{}); fmt.Sprint(groups) != "[{crm failed 1} {crm pending 1} {crm sent 1} {crm skipped 1}]" {
			t.Errorf("%s: Count = %v, %v", mode, groups, err)
		}
		insertSubject(t, pool, "ordered", "a", 2)
		for range 2 {
			next := claimOf(t, q, pipeline.Want{Destination: "ordered", Room: 10, Order: pipeline.DeadBlocks})
			if len(next) != 1 {
				t.Fatalf("%s: claimed %d messages of one subject; want 1", mode, len(next))
			}
			r := result(next[0], pipeline.Sent)
			r.Ordered = true
			finish(t, q, r)
		}
	}
}
