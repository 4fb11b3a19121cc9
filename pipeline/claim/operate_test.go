package claim

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline"
)

func TestListFilters(t *testing.T) {
	pool := pgtest.New(t)
	insert(t, pool, "crm", 3)
	insert(t, pool, "mail", 2)
	exec(t, pool, `update outbox set status = 'dead', last_error = 'HTTP 410: gone'
		where dedupe_key in ('crm:1', 'mail:1')`)
	exec(t, pool, `update outbox set tenant_id = 2 where dedupe_key = 'crm:2'`)
	exec(t, pool, `update outbox set created_at = now() - interval '2 days', type = 'goodbye'
		where dedupe_key = 'crm:3'`)
	exec(t, pool, `update outbox set locked_until = now() + interval '1 minute' where dedupe_key = 'mail:2'`)
	check := func(f Filter, want string) {
		t.Helper()
		list, _, err := List(t.Context(), pool, f, 0, 100)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, r := range list {
			got = append(got, r.DedupeKey)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("List(%+v) = %s; want %s", f, strings.Join(got, " "), want)
		}
	}
	check(Filter{}, "mail:2 mail:1 crm:3 crm:2 crm:1")
	check(Filter{Destination: "crm"}, "crm:3 crm:2 crm:1")
	check(Filter{Statuses: []string{"dead"}}, "mail:1 crm:1")
	check(Filter{Statuses: []string{"dead", "pending"}, Destination: "mail"}, "mail:2 mail:1")
	check(Filter{Tenant: 2}, "crm:2")
	check(Filter{Type: "goodbye"}, "crm:3")
	check(Filter{Subject: "user-2"}, "mail:2 crm:2")
	check(Filter{Error: "410"}, "mail:1 crm:1")
	check(Filter{OlderThan: 24 * time.Hour}, "crm:3")
	check(Filter{NewerThan: 24 * time.Hour, Destination: "crm"}, "crm:2 crm:1")
	check(Filter{IDs: []int64{-5}}, "")
	first, _, err := List(t.Context(), pool, Filter{}, 0, 2)
	if err != nil || len(first) != 2 || !first[0].Leased || first[0].Due || first[1].Due || first[1].Leased {
		t.Fatalf("first page = %+v, %v; want a leased and a dead one", first, err)
	}
	second, _, err := List(t.Context(), pool, Filter{}, first[1].ID, 2)
	if err != nil || len(second) != 2 || second[0].DedupeKey != "crm:3" || !second[0].Due {
		t.Errorf("second page = %+v, %v; want it to start with crm:3, due", second, err)
	}
	groups, err := Count(t.Context(), pool, Filter{})
	if got := fmt.Sprint(groups); err != nil || got != "[{crm dead 1} {crm pending 2} {mail dead 1} {mail pending 1}]" {
		t.Errorf("Count = %s, %v", got, err)
	}
}

func TestShow(t *testing.T) {
	pool := pgtest.New(t)
	q := newQueue(t, pool)
	insert(t, pool, "crm", 1)
	r := result(claim(t, q, "crm", 1)[0], pipeline.Dead)
	r.Error, r.HTTPStatus, r.StartedAt, r.Latency = "HTTP 410", 410, time.Now(), 30*time.Millisecond
	finish(t, q, r)
	row, attempts, err := Show(t.Context(), pool, r.MessageID)
	if err != nil {
		t.Fatal(err)
	}
	if row.Status != "dead" || row.Attempts != 1 || row.LastError != "HTTP 410" || row.FinishedAt == nil ||
		string(row.Payload) != `{"i": 1}` || row.RuleID != "welcome" {
		t.Errorf("row = %+v", row)
	}
	if len(attempts) != 1 || attempts[0].Number != 1 || attempts[0].HTTPStatus != 410 || attempts[0].Status != "dead" ||
		attempts[0].Latency.Round(time.Millisecond) != 30*time.Millisecond {
		t.Errorf("attempts = %+v", attempts)
	}
	if _, _, err := Show(t.Context(), pool, -1); !errors.Is(err, ErrNoMessage) {
		t.Errorf("Show(-1) = %v; want ErrNoMessage", err)
	}
}

// An operator's retry starts a final message anew, under its old idempotency key and as another redrive.
func TestRetry(t *testing.T) {
	pool := pgtest.New(t)
	q := newQueue(t, pool)
	insert(t, pool, "crm", 5)
	leases := claim(t, q, "crm", 4)
	failed := result(leases[1], pipeline.Failed)
	failed.RetryIn = time.Hour
	finish(t, q, result(leases[0], pipeline.Dead), failed, result(leases[2], pipeline.Sent))
	// The fourth is leased, the fifth due.
	all := Filter{Statuses: []string{"dead", "failed", "sent", "pending"}}
	step, err := Retry(t.Context(), pool, all, 0, 3)
	if want := (Step{Changed: 3, Last: leases[2].ID}); err != nil || step != want {
		t.Fatalf("Retry = %+v, %v; want %+v", step, err, want)
	}
	after := step.Last
	step, err = Retry(t.Context(), pool, all, after, 3)
	if err != nil || step.Changed != 1 || !step.Done {
		t.Fatalf("Retry after %d = %+v, %v; want the fifth, done: the fourth is leased", after, step, err)
	}
	for i, want := range []string{"pending 0 1", "failed 1 0", "pending 0 1", "pending 0 0", "pending 0 0"} {
		if got := value(t, pool, `select concat_ws(' ', status, attempts, redrives) from outbox
			where dedupe_key = 'crm:' || $1`, fmt.Sprint(i+1)); got != want {
			t.Errorf("message %d = %s; want %s", i+1, got, want)
		}
	}
	again := claim(t, q, "crm", 10)
	if len(again) != 4 || again[0].ID != leases[0].ID || again[0].Redrives != 1 ||
		again[0].IdempotencyKey != leases[0].IdempotencyKey {
		t.Errorf("claimed %+v; want all but the leased one, the first as redrive 1 with its old key", again)
	}
}

// TestRetryBringsBackTheFarFuture: after the database's clock was set ahead and back, what was due and what was leased
// in between waits for as long as the step. A filter finds these, and a retry makes them due.
func TestRetryBringsBackTheFarFuture(t *testing.T) {
	pool := pgtest.New(t)
	q := newQueue(t, pool)
	insert(t, pool, "crm", 5)
	exec(t, pool, `update outbox set run_after = now() + interval '2 days' where dedupe_key = 'crm:1'`)
	exec(t, pool, `update outbox set status = 'failed', locked_until = now() + interval '2 days',
		lease_token = gen_random_uuid() where dedupe_key = 'crm:2'`)
	exec(t, pool, `update outbox set run_after = now() + interval '1 hour' where dedupe_key = 'crm:3'`)
	exec(t, pool, `update outbox set locked_until = now() + interval '1 minute', lease_token = gen_random_uuid()
		where dedupe_key = 'crm:4'`)
	f := Filter{Statuses: []string{"pending", "failed"}, WaitsOver: 24 * time.Hour}
	list, _, err := List(t.Context(), pool, f, 0, 10)
	if err != nil || len(list) != 2 || list[0].DedupeKey != "crm:2" || list[1].DedupeKey != "crm:1" {
		t.Fatalf("List = %+v, %v; want the two that wait for days", list, err)
	}
	step, err := Retry(t.Context(), pool, f, 0, 10)
	if err != nil || step.Changed != 2 || !step.Done {
		t.Fatalf("Retry = %+v, %v; want both changed", step, err)
	}
	if got := claim(t, q, "crm", 10); len(got) != 3 {
		t.Errorf("%d messages are due, want the two and the one that was", len(got))
	}
}

// The attempt by which a message was sent stays on record when an operator has it sent again.
func TestRetryKeepsTheSentAttempt(t *testing.T) {
	pool := pgtest.New(t)
	q := newQueue(t, pool)
	insert(t, pool, "crm", 1)
	for i := range 2 {
		r := result(claim(t, q, "crm", 1)[0], pipeline.Sent)
		r.HTTPStatus, r.StartedAt, r.Latency = 200+i, time.Now(), 30*time.Millisecond
		finish(t, q, r)
		_, attempts, err := Show(t.Context(), pool, r.MessageID)
		if err != nil || len(attempts) != i+1 {
			t.Fatalf("Show after %d deliveries = %+v, %v", i+1, attempts, err)
		}
		for n, a := range attempts {
			if a.Number != 1 || a.Status != "sent" || a.HTTPStatus != 200+n ||
				a.Latency.Round(time.Millisecond) != 30*time.Millisecond || time.Since(a.StartedAt) > time.Minute {
				t.Errorf("attempt %d = %+v", n, a)
			}
		}
		if step, err := Retry(t.Context(), pool, Filter{Statuses: []string{"sent"}}, 0, 1); err != nil ||
			step.Changed != 1 {
			t.Fatalf("Retry = %+v, %v; want 1", step, err)
		}
	}
}

// A discarded message is final. One that a worker has is left to it, so that nothing is sent beside it.
func TestDiscard(t *testing.T) {
	pool := pgtest.New(t)
	q := newQueue(t, pool)
	insert(t, pool, "crm", 3)
	leases := claim(t, q, "crm", 2)
	dead := result(leases[0], pipeline.Dead)
	dead.Error = "HTTP 410"
	finish(t, q, dead)
	s, err := Discard(t.Context(), pool, Filter{Destination: "crm"}, 0, 10)
	if err != nil || s.Changed != 2 || s.InFlight != 1 || time.Until(s.Until) > q.cfg.Lease || s.Until.IsZero() {
		t.Fatalf("Discard = %+v, %v; want 2, and 1 in flight until its lease ends", s, err)
	}
	if late := finish(t, q, result(leases[1], pipeline.Sent)); late != 0 {
		t.Error("the worker's result was refused")
	}
	got := value(t, pool, `select string_agg(concat_ws(' ', status, finished_at is not null, last_error), ', '
		order by message_id) from outbox`)
	want := "skipped t discarded by an operator; before: HTTP 410, sent t, skipped t discarded by an operator"
	if got != want {
		t.Errorf("rows = %s\nwant %s", got, want)
	}
	n, err := Discard(t.Context(), pool, Filter{}, 0, 10)
	if err != nil || n.Changed != 0 || n.InFlight != 0 {
		t.Errorf("Discard of what is final = %+v, %v; want 0", n, err)
	}
}

// Neither an order nor an idempotency key is broken by a change during a send: the next one waits, and so does a retry.
func TestChangeDuringASendLetsNothingOverlap(t *testing.T) {
	pool := pgtest.New(t)
	q := newQueue(t, pool)
	want := pipeline.Want{Destination: "crm", Room: 10, Order: pipeline.DeadSkips}
	insertSubject(t, pool, "crm", "a", 2)
	first := claimOf(t, q, want)
	if _, err := Discard(t.Context(), pool, Filter{IDs: []int64{first[0].ID}}, 0, 10); err != nil {
		t.Fatal(err)
	}
	if _, err := Retry(t.Context(), pool, Filter{Statuses: []string{"skipped", "pending"}}, 0, 10); err != nil {
		t.Fatal(err)
	}
	fromTheBeginning(q)
	if leases := claimOf(t, q, want); len(leases) != 0 {
		t.Errorf("message %d was claimed beside message %d of its subject", leases[0].ID, first[0].ID)
	}
}
