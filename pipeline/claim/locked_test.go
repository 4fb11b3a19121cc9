package claim

import (
	"errors"
	"slices"
	"testing"
	"time"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline"
)

// A row that somebody else holds costs the others nothing: their results are recorded and their leases extended, and
// they are claimed. The row's own result is recorded when it is free.
func TestHeldRowWaitsAlone(t *testing.T) {
	for _, hold := range []string{
		`update outbox set headers = headers where message_id = $1`,
		`select from outbox where message_id = $1 for update`,
		`select from outbox where message_id = $1 for share`,
	} {
		pool := pgtest.New(t)
		q := newQueue(t, pool)
		insert(t, pool, "crm", 4)
		leases := claim(t, q, "crm", 3)
		tx, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), hold, leases[1].ID); err != nil {
			t.Fatal(err)
		}
		ends, err := q.Extend(t.Context(), leases)
		if _, free := ends[leases[0].ID]; err != nil || len(ends) != 2 || !free {
			t.Errorf("%s: Extend = %v, %v; want two ends", hold, ends, err)
		}
		var results []pipeline.Result
		for i, l := range leases {
			status := pipeline.Sent
			if i == 2 {
				status = pipeline.Failed
			}
			results = append(results, result(l, status))
		}
		one := results[1:2]
		for _, some := range [][]pipeline.Result{results, one} {
			late, err := q.Finish(t.Context(), some)
			var held *pipeline.RowsHeldError
			if !errors.As(err, &held) || !slices.Equal(held.Messages, []int64{leases[1].ID}) {
				t.Fatalf("%s: Finish = %d, %v; want message %d held", hold, late, err, leases[1].ID)
			}
		}
		if got := value(t, pool, `select string_agg(status, ' ' order by message_id) from outbox`); got !=
			"sent pending failed pending" {
			t.Errorf("%s: rows are %s; want sent pending failed pending", hold, got)
		}
		fromTheBeginning(q)
		if n := len(claim(t, q, "crm", 10)); n != 2 {
			t.Errorf("%s: claimed %d more messages; want the failed one and the last", hold, n)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if late := finish(t, q, one...); late != 0 {
			t.Errorf("%s: the result that was held came late", hold)
		}
	}
}

// A final row stays as it is, also if a token was left on it.
func TestFinalRowIsNotFinished(t *testing.T) {
	pool := pgtest.New(t)
	q := newQueue(t, pool)
	insert(t, pool, "crm", 2)
	leases := claim(t, q, "crm", 2)
	exec(t, pool, `update outbox set status = 'dead', finished_at = now()`)
	failed := result(leases[1], pipeline.Failed)
	for _, r := range []pipeline.Result{result(leases[0], pipeline.Sent), failed} {
		if late := finish(t, q, r); late != 1 {
			t.Errorf("the result %s of a dead message was recorded", r.Status)
		}
	}
	if got := value(t, pool, `select string_agg(status || ' ' || attempts, ', ') from outbox`); got != "dead 0, dead 0" {
		t.Errorf("rows are %s; want dead 0, dead 0", got)
	}
}

// While somebody holds the whole table (vacuum full, a migration by hand), every call ends by itself, and the same
// results can be recorded when it is free.
func TestLockedTableEndsEveryCall(t *testing.T) {
	pool := pgtest.New(t)
	q := newQueue(t, pool)
	q.cfg.Lease = time.Second // a statement may take half of it
	insert(t, pool, "crm", 2)
	leases := claim(t, q, "crm", 2)
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `lock table outbox in access exclusive mode`); err != nil {
		t.Fatal(err)
	}
	results := []pipeline.Result{result(leases[0], pipeline.Sent), result(leases[1], pipeline.Sent)}
	for name, call := range map[string]func() error{
		"Finish": func() error { _, err := q.Finish(t.Context(), results); return err },
		"Extend": func() error { _, err := q.Extend(t.Context(), leases); return err },
		"Claim": func() error {
			_, err := q.Claim(t.Context(), []pipeline.Want{{Destination: "crm", Room: 1}})
			return err
		},
		"ordered Claim": func() error {
			_, err := q.Claim(t.Context(), []pipeline.Want{{Destination: "o", Room: 1, Order: pipeline.DeadBlocks}})
			return err
		},
	} {
		if err := call(); err == nil {
			t.Errorf("%s succeeded on a locked table", name)
		}
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if late := finish(t, q, results...); late != 0 {
		t.Errorf("%d results came late after the table was free", late)
	}
}
