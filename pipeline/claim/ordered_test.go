package claim

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline"
)

// insertSubject adds n messages of a subject.
func insertSubject(t *testing.T, pool *pgxpool.Pool, destination, subject string, n int) {
	t.Helper()
	exec(t, pool, `insert into outbox (tenant_id, type, subject_key, dedupe_key, destination, payload)
		select 1, 'welcome', $2, gen_random_uuid()::text, $1, '{}' from generate_series(1, $3)`, destination, subject, n)
}

func claimOf(t *testing.T, q *Queue, w pipeline.Want) []pipeline.Lease {
	t.Helper()
	leases, err := q.Claim(t.Context(), []pipeline.Want{w})
	if err != nil {
		t.Fatal(err)
	}
	return leases
}

func subjects(leases []pipeline.Lease) (list []string) {
	for _, l := range leases {
		list = append(list, l.SubjectKey)
	}
	return list
}

// pages is how many pages a statement reads, in a transaction that is rolled back.
func pages(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) int {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	args = append([]any{pgx.QueryExecModeCacheDescribe}, args...)
	var text []byte
	if err := tx.QueryRow(t.Context(), "explain (analyze, buffers, format json) "+sql, args...).Scan(&text); err != nil {
		t.Fatal(err)
	}
	var plans []struct {
		Plan struct {
			Hit  int `json:"Shared Hit Blocks"`
			Read int `json:"Shared Read Blocks"`
		}
	}
	if err := json.Unmarshal(text, &plans); err != nil || len(plans) != 1 {
		t.Fatalf("explain returned %s, %v", text, err)
	}
	return plans[0].Plan.Hit + plans[0].Plan.Read
}

// A claim costs what it leases, whatever waits behind others: a message is looked at once, and then no more. It holds
// on a table that PostgreSQL knows, and on one that it has never looked at.
func TestClaimCostsWhatItLeases(t *testing.T) {
	const backlog = 3000
	for _, analyzed := range []bool{false, true} {
		t.Run(fmt.Sprintf("analyzed %v", analyzed), func(t *testing.T) {
			pool := pgtest.New(t)
			q := newQueue(t, pool)
			exec(t, pool, `alter table outbox set (autovacuum_enabled = false)`)
			insertSubject(t, pool, "paused", "a", 3*backlog) // of lower ids
			insertSubject(t, pool, "blocked", "a", backlog)
			insertSubject(t, pool, "busy", "a", backlog)
			insertSubject(t, pool, "blocked", "b", 1)
			exec(t, pool, `insert into outbox (tenant_id, type, subject_key, dedupe_key, destination, payload)
				select 1, 'welcome', 'u' || 9000 - i % $1, gen_random_uuid()::text, 'many', '{}'
				from generate_series(1, 2 * $1) i`, backlog)
			exec(t, pool, `update outbox set status = 'dead', finished_at = now() where message_id =
				(select min(message_id) from outbox where destination = 'blocked')`)
			if analyzed {
				exec(t, pool, `analyze outbox`)
			}
			args := func(destination string, order pipeline.Order) []any {
				return []any{destination, 10, 60.0, pipeline.NewUUIDv4(), order == pipeline.DeadBlocks, time.Time{},
					int64(0), 10 + look}
			}
			check := func(what string, got, most int) {
				t.Helper()
				if got > most {
					t.Errorf("%s reads %d pages; want %d at most", what, got, most)
				}
			}
			// Many subjects: others cost nothing, whether they come before or after in the index.
			many := args("many", pipeline.DeadBlocks)
			many[7] = 10
			check("a claim of 10 subjects", pages(t, pool, claimOrderedSQL, many...), 200)
			var ids []int64
			for _, l := range claimOf(t, q, pipeline.Want{Destination: "many", Room: 10, Order: pipeline.DeadBlocks}) {
				ids = append(ids, l.ID)
			}
			if len(ids) != 10 {
				t.Errorf("claimed %d messages of %d subjects; want 10", len(ids), backlog)
			}
			check("the end of 10", pages(t, pool, promoteNextSQL, ids, []string{"many"}), 100)
			// The first look at each message marks it: a bounded number for each statement.
			check("a claim that marks", pages(t, pool, claimOrderedSQL, args("busy", pipeline.DeadSkips)...), 60*look)
			for destination, order := range map[string]pipeline.Order{
				"blocked": pipeline.DeadBlocks, "busy": pipeline.DeadSkips,
			} {
				leases := claimOf(t, q, pipeline.Want{Destination: destination, Room: 10, Order: order})
				if len(leases) != 1 {
					t.Fatalf("%s: claimed %v; want one message", destination, subjects(leases))
				}
				exec(t, pool, `vacuum outbox`)
				insertSubject(t, pool, destination, "c", 1)
				check("a claim of "+destination, pages(t, pool, claimOrderedSQL, args(destination, order)...), 60)
				check("a sweep of "+destination, pages(t, pool, sweepSQL, destination, 0, "", look,
					order == pipeline.DeadBlocks), 60)
				check("the end of one of "+destination, pages(t, pool, promoteNextSQL, []int64{leases[0].ID},
					[]string{"blocked"}), 60)
			}
		})
	}
}

// Messages without a subject have no order to keep.
func TestNoSubjectNoOrder(t *testing.T) {
	pool := pgtest.New(t)
	q := newQueue(t, pool)
	insertSubject(t, pool, "crm", "", 5)
	exec(t, pool, `update outbox set status = 'dead', finished_at = now() where message_id =
		(select min(message_id) from outbox)`)
	if leases := claimOf(t, q, pipeline.Want{Destination: "crm", Room: 10, Order: pipeline.DeadBlocks}); len(leases) != 4 {
		t.Errorf("claimed %d messages; want the four that are not dead", len(leases))
	}
}

// What a mark rests on may be gone at the moment when it is made, or be changed by others: sweeps find the message.
func TestSweepFindsWhatNobodyPassedOn(t *testing.T) {
	pool := pgtest.New(t)
	q := newQueue(t, pool)
	want := pipeline.Want{Destination: "crm", Room: 10, Order: pipeline.DeadBlocks}
	for i := range 3 {
		insertSubject(t, pool, "crm", fmt.Sprint("s", i), 3)
	}
	if leases := claimOf(t, q, want); len(leases) != 3 {
		t.Fatalf("claimed %v; want the first of each subject", subjects(leases))
	}
	exec(t, pool, `update outbox set status = 'sent', lease_token = null
		where lease_token is not null and subject_key = 's0'`)
	exec(t, pool, `delete from outbox where lease_token is not null and subject_key = 's1'`)
	exec(t, pool, `update outbox set status = 'dead', lease_token = null
		where lease_token is not null and subject_key = 's2'`)
	fromTheBeginning(q)
	if got := subjects(claimOf(t, q, want)); !slices.Equal(got, []string{"s0", "s1"}) {
		t.Errorf("claimed %v; want the next of s0 and of s1", got)
	}
	want.Order = pipeline.DeadSkips // as it may be set from now on
	fromTheBeginning(q)
	if got := subjects(claimOf(t, q, want)); !slices.Equal(got, []string{"s2"}) {
		t.Errorf("claimed %v; want the next of s2", got)
	}
	want.Order = pipeline.Unordered
	fromTheBeginning(q)
	if got := subjects(claimOf(t, q, want)); !slices.Equal(got, []string{"s0", "s1", "s2"}) {
		t.Errorf("claimed %v; want all that are left", got)
	}
}

// The end of a message makes the next one of its subject due, however it ends, and no mark hides that.
func TestEndPassesOn(t *testing.T) {
	pool := pgtest.New(t)
	q := newQueue(t, pool)
	var passed []bool // by whether the one before was skipped, which wakes the node's own workers
	q.OnPassed(func(skipped bool) { passed = append(passed, skipped) })
	want := pipeline.Want{Destination: "crm", Room: 10, Order: pipeline.DeadBlocks}
	insertSubject(t, pool, "crm", "a", 5)
	end := func(status pipeline.DeliveryStatus) {
		t.Helper()
		leases := claimOf(t, q, want)
		if len(leases) != 1 {
			t.Fatalf("claimed %d messages before a result %s; want one", len(leases), status)
		}
		r := result(leases[0], status)
		r.Ordered = true
		finish(t, q, r)
	}
	q.mu.Lock()
	for _, c := range q.cursors {
		c.fullAt = time.Now().Add(time.Hour) // no sweep
	}
	q.mu.Unlock()
	end(pipeline.Sent)
	end(pipeline.Skipped)
	end(pipeline.Dead)
	if leases := claimOf(t, q, want); len(leases) != 0 || !slices.Equal(passed, []bool{false, true}) {
		t.Errorf("behind a dead one %d messages were claimed, and ends passed on: %v; want 0, and [false true]", len(leases),
			passed)
	}
	if _, err := Discard(t.Context(), pool, Filter{Statuses: []string{"dead"}}, 0, 10); err != nil {
		t.Fatal(err)
	}
	end(pipeline.Sent)
	end(pipeline.Sent)
}

// A dead message that holds others up has an age.
func TestBlockingDeadIsCounted(t *testing.T) {
	pool := pgtest.New(t)
	q := newQueue(t, pool)
	insertSubject(t, pool, "crm", "a", 2)
	insertSubject(t, pool, "crm", "b", 1)
	exec(t, pool, `update outbox set status = 'dead', finished_at = now() - message_id * interval '1 hour'
		where message_id in (select min(message_id) from outbox group by subject_key)`)
	claimOf(t, q, pipeline.Want{Destination: "crm", Room: 10, Order: pipeline.DeadBlocks})
	age := func() float64 {
		t.Helper()
		if err := q.count(t.Context()); err != nil {
			t.Fatal(err)
		}
		return testutil.ToFloat64(q.metrics.blocked.WithLabelValues("crm"))
	}
	if got := age(); got < 3600 || got > 2*3600 {
		t.Errorf("blocking_dead_seconds = %v; want that of message 1, which died an hour ago", got)
	}
	if testutil.ToFloat64(q.metrics.behind.WithLabelValues("crm")) != 1 {
		t.Error("behind_messages is not 1")
	}
	if _, err := Discard(t.Context(), pool, Filter{IDs: []int64{1}}, 0, 1); err != nil {
		t.Fatal(err)
	}
	if got := age(); got != 0 {
		t.Errorf("blocking_dead_seconds = %v after the message was discarded; want 0", got)
	}
}

// Whatever claims, ends and new messages cross each other, each subject has one message out at a time, in its order,
// and none is left behind.
func TestOrderHoldsUnderConcurrentClaims(t *testing.T) {
	const perSubject, rounds, workers = 5, 12, 4
	names := []string{"a", "b", "c", "d", "e", "f", "g", "h"}
	pool := pgtest.New(t)
	var mu sync.Mutex
	out, last, ended := map[string]int64{}, map[string]int64{}, 0
	all := len(names) * perSubject * rounds
	var wg sync.WaitGroup
	wg.Go(func() {
		for range rounds {
			for _, subject := range names {
				if _, err := pool.Exec(context.Background(), `insert into outbox (tenant_id, type, subject_key, dedupe_key,
					destination, payload) select 1, 't', $1, gen_random_uuid()::text, 'crm', '{}'
					from generate_series(1, $2)`, subject, perSubject); err != nil {
					t.Error(err)
				}
			}
		}
	})
	work := func(q *Queue) (done bool) {
		leases, err := q.Claim(context.Background(),
			[]pipeline.Want{{Destination: "crm", Room: 5, Order: pipeline.DeadBlocks}})
		if err != nil {
			t.Error(err)
			return true
		}
		var results []pipeline.Result
		mu.Lock()
		for _, l := range leases {
			if other := out[l.SubjectKey]; other != 0 || l.ID < last[l.SubjectKey] {
				t.Errorf("message %d of %s was claimed beside %d, after %d", l.ID, l.SubjectKey, other, last[l.SubjectKey])
			}
			out[l.SubjectKey], last[l.SubjectKey] = l.ID, l.ID
			r := result(l, pipeline.Sent)
			if l.Attempt == 1 && l.ID%7 == 0 {
				r = result(l, pipeline.Failed)
			}
			r.Ordered = true
			results = append(results, r)
		}
		mu.Unlock()
		if err := pool.Ping(context.Background()); err != nil { // some time in which others claim
			t.Error(err)
		}
		mu.Lock()
		for _, l := range leases { // before the end is recorded, since the next one may be claimed right after it
			delete(out, l.SubjectKey)
		}
		mu.Unlock()
		if late, err := q.Finish(context.Background(), results); err != nil || late != 0 {
			t.Errorf("Finish = %d, %v", late, err)
		}
		mu.Lock()
		defer mu.Unlock()
		for _, r := range results {
			if r.Status == pipeline.Sent {
				ended++
			}
		}
		return ended == all || t.Failed()
	}
	for range workers {
		q := newQueue(t, pool)
		wg.Go(func() {
			for !work(q) {
			}
		})
	}
	wg.Wait()
	if ended != all {
		t.Errorf("%d of %d messages ended", ended, all)
	}
}

// Messages that wait for one before them are none of those that a step of the clock has put off.
func TestBehindIsNotFarFuture(t *testing.T) {
	pool := pgtest.New(t)
	q := newQueue(t, pool)
	insertSubject(t, pool, "crm", "a", 3)
	claimOf(t, q, pipeline.Want{Destination: "crm", Room: 10, Order: pipeline.DeadBlocks})
	f := Filter{Statuses: []string{"pending"}, WaitsOver: 24 * time.Hour}
	if s, err := Discard(t.Context(), pool, f, 0, 10); err != nil || s.Changed != 0 {
		t.Errorf("Discard of what waits for longer than a day = %+v, %v; want none", s, err)
	}
}
