package claim

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline"
)

func newQueue(t *testing.T, pool *pgxpool.Pool) *Queue {
	t.Helper()
	q, err := New(DefaultConfig(), pool, NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func exec(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// value returns the one text that a query selects.
func value(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) string {
	t.Helper()
	var s string
	if err := pool.QueryRow(t.Context(), sql, args...).Scan(&s); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return s
}

// insert adds n due messages for a destination.
func insert(t *testing.T, pool *pgxpool.Pool, destination string, n int) {
	t.Helper()
	exec(t, pool, `insert into outbox (tenant_id, type, subject_key, dedupe_key, destination, payload, headers, rule_id)
		select 1, 'welcome', 'user-' || i, $1 || ':' || i, $1, jsonb_build_object('i', i), '{"X-Shop":"demo"}',
		    'welcome'
		from generate_series(1, $2) i`, destination, n)
}

func claim(t *testing.T, q *Queue, destination string, room int) []pipeline.Lease {
	t.Helper()
	leases, err := q.Claim(t.Context(), []pipeline.Want{{Destination: destination, Room: room}})
	if err != nil {
		t.Fatal(err)
	}
	return leases
}

// fromTheBeginning makes the next claim begin at the oldest message, which otherwise happens once a second.
func fromTheBeginning(q *Queue) {
	q.mu.Lock()
	clear(q.cursors)
	q.mu.Unlock()
}

func finish(t *testing.T, q *Queue, results ...pipeline.Result) (late int) {
	t.Helper()
	late, err := q.Finish(t.Context(), results)
	if err != nil {
		t.Fatal(err)
	}
	return late
}

func result(l pipeline.Lease, status pipeline.DeliveryStatus) pipeline.Result {
	r := pipeline.Result{MessageID: l.ID, Token: l.Token, Status: status}
	if status == pipeline.Sent || status == pipeline.Failed || status == pipeline.Dead {
		r.StartedAt = time.Now()
	}
	return r
}

func TestClaimGivesTheMessage(t *testing.T) {
	pool := pgtest.New(t)
	q := newQueue(t, pool)
	insert(t, pool, "crm", 1)
	before := time.Now()
	leases := claim(t, q, "crm", 5)
	if len(leases) != 1 {
		t.Fatalf("claimed %d messages; want 1", len(leases))
	}
	l := leases[0]
	if l.Tenant != 1 || l.Type != "welcome" || l.SubjectKey != "user-1" || l.Destination != "crm" ||
		string(l.Payload) != `{"i": 1}` ||
		l.Headers["X-Shop"] != "demo" || !l.Rule || l.Attempt != 1 || l.CreatedAt.IsZero() ||
		l.IdempotencyKey == (pipeline.UUID{}) {
		t.Errorf("lease = %+v", l)
	}
	if want := before.Add(q.cfg.Lease); l.Until.Before(want) || l.Until.After(want.Add(time.Minute)) {
		t.Errorf("lease ends %s after the claim; want about %s", l.Until.Sub(before), q.cfg.Lease)
	}
	got := value(t, pool, `select concat_ws(' ', status, attempts, lease_token = $1, locked_until > now()) from outbox`,
		l.Token)
	if got != "pending 0 t t" {
		t.Errorf("row = %q; want pending 0 t t", got)
	}
	if again := claim(t, q, "crm", 5); len(again) != 0 {
		t.Errorf("a leased message was claimed again: %+v", again)
	}
}

func TestClaimKeepsRoomAndTime(t *testing.T) {
	pool := pgtest.New(t)
	q := newQueue(t, pool)
	insert(t, pool, "crm", 10)
	insert(t, pool, "sales", 10)
	insert(t, pool, "paused", 10)
	exec(t, pool, `update outbox set run_after = now() + interval '1 hour' where destination = 'sales'
		and dedupe_key <> 'sales:7'`)
	exec(t, pool, `update outbox set run_after = run_after - i * interval '1 minute' from generate_series(1, 10) i
		where dedupe_key = 'crm:' || i`)
	leases, err := q.Claim(t.Context(), []pipeline.Want{
		{Destination: "crm", Room: 3}, {Destination: "sales", Room: 5}, {Destination: "other", Room: 7}})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, l := range leases {
		got = append(got, l.Destination+" "+l.SubjectKey)
	}
	if want := "crm user-8, crm user-9, crm user-10, sales user-7"; strings.Join(got, ", ") != want {
		t.Errorf("claimed %s; want the oldest three of crm and the one due of sales: %s", strings.Join(got, ", "), want)
	}
}

// Two claimers never hold the same message, and together they get all of them.
func TestConcurrentClaimsAreDisjoint(t *testing.T) {
	const messages, claimers = 2000, 6
	pool := pgtest.New(t)
	insert(t, pool, "crm", messages)
	var mu sync.Mutex
	holder := map[int64]int{}
	var wg sync.WaitGroup
	for n := range claimers {
		q := newQueue(t, pool)
		wg.Go(func() {
			for {
				// SKIP LOCKED may make a claim come back empty while others hold what is left, so all are asked for
				// until nothing is due.
				leases, err := q.Claim(context.Background(), []pipeline.Want{{Destination: "crm", Room: 37}})
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				for _, l := range leases {
					if other, taken := holder[l.ID]; taken {
						t.Errorf("message %d was given to claimers %d and %d", l.ID, other, n)
					}
					holder[l.ID] = n
				}
				all := len(holder) == messages
				mu.Unlock()
				if all || t.Failed() {
					return
				}
			}
		})
	}
	wg.Wait()
	if len(holder) != messages {
		t.Errorf("%d messages claimed; want %d", len(holder), messages)
	}
}

func TestExtend(t *testing.T) {
	pool := pgtest.New(t)
	q := newQueue(t, pool)
	insert(t, pool, "crm", 3)
	leases := claim(t, q, "crm", 3)
	exec(t, pool, `update outbox set locked_until = now() - interval '1 second'`)
	fromTheBeginning(q)
	taken := claim(t, q, "crm", 1)[0] // the oldest, which another worker has now
	finish(t, q, result(leases[1], pipeline.Sent))
	before := time.Now()
	ends, err := q.Extend(t.Context(), leases)
	if err != nil {
		t.Fatal(err)
	}
	if end, ok := ends[leases[2].ID]; len(ends) != 1 || !ok || end.Before(before.Add(q.cfg.Lease)) {
		t.Errorf("Extend gave %v; want an end for message %d only, %s from now", ends, leases[2].ID, q.cfg.Lease)
	}
	got := value(t, pool, `select string_agg(message_id::text, ' ' order by message_id) from outbox
		where locked_until > now() + interval '50 seconds'`)
	if want := fmt.Sprintf("%d %d", taken.ID, leases[2].ID); got != want {
		t.Errorf("leased for a minute from now: %s; want %s", got, want)
	}
}

// Where order is kept, a subject has one message out at a time, in the order of ids; a dead one lets the others go on,
// or holds them up.
func TestOrder(t *testing.T) {
	for _, order := range []pipeline.Order{pipeline.DeadSkips, pipeline.DeadBlocks} {
		pool := pgtest.New(t)
		q := newQueue(t, pool)
		insert(t, pool, "crm", 4)
		insert(t, pool, "mail", 1)
		exec(t, pool, `update outbox set subject_key = case when dedupe_key in ('crm:1', 'crm:2', 'crm:3') then 'a'
			else 'b' end`)
		// The same subject of another tenant, and of another destination, is another subject.
		exec(t, pool, `insert into outbox (tenant_id, type, subject_key, dedupe_key, destination, payload)
			values (2, 't', 'a', 'crm:5', 'crm', '{}')`)
		// older, but not first
		exec(t, pool, `update outbox set run_after = now() - interval '1 hour' where dedupe_key = 'crm:2'`)
		keys := func(leases []pipeline.Lease) string {
			var all []string
			for _, l := range leases {
				all = append(all, value(t, pool, `select dedupe_key from outbox where message_id = $1`, l.ID))
			}
			return strings.Join(all, " ")
		}
		expect := func(want string) []pipeline.Lease {
			t.Helper()
			leases, err := q.Claim(t.Context(), []pipeline.Want{{Destination: "crm", Room: 10, Order: order}})
			if err != nil {
				t.Fatal(err)
			}
			if got := keys(leases); got != want {
				t.Fatalf("order %d: claimed %q; want %q", order, got, want)
			}
			return leases
		}
		result := func(l pipeline.Lease, status pipeline.DeliveryStatus) pipeline.Result {
			r := result(l, status)
			r.Ordered = true
			return r
		}
		first := expect("crm:1 crm:4 crm:5")
		expect("")
		failed := result(first[0], pipeline.Failed)
		failed.RetryIn = time.Hour
		finish(t, q, failed, result(first[1], pipeline.Sent), result(first[2], pipeline.Sent))
		expect("") // crm:1 waits for its next attempt
		exec(t, pool, `update outbox set run_after = now() where status = 'failed'`)
		finish(t, q, result(expect("crm:1")[0], pipeline.Sent))
		finish(t, q, result(expect("crm:2")[0], pipeline.Dead))
		if order == pipeline.DeadBlocks {
			expect("")
			exec(t, pool, `update outbox set status = 'skipped' where status = 'dead'`)
			fromTheBeginning(q)
		}
		finish(t, q, result(expect("crm:3")[0], pipeline.Sent))
	}
}

func TestCount(t *testing.T) {
	pool := pgtest.New(t)
	q := newQueue(t, pool)
	insert(t, pool, "crm", 5)
	insert(t, pool, "sales", 2)
	exec(t, pool, `update outbox set run_after = now() - interval '90 seconds' where dedupe_key = 'crm:1'`)
	exec(t, pool, `update outbox set locked_until = now() + interval '1 minute' where dedupe_key = 'crm:2'`)
	exec(t, pool, `update outbox set run_after = now() + interval '1 minute', status = 'failed'
		where dedupe_key = 'crm:3'`)
	exec(t, pool, `update outbox set status = 'dead' where dedupe_key = 'crm:4'`)
	if err := q.count(t.Context()); err != nil {
		t.Fatal(err)
	}
	m := q.metrics
	check := func(name string, g *prometheus.GaugeVec, destination string, want float64) {
		t.Helper()
		if got := testutil.ToFloat64(g.WithLabelValues(destination)); got != want {
			t.Errorf("%s{%s} = %v; want %v", name, destination, got, want)
		}
	}
	check("due", m.due, "crm", 2)
	check("leased", m.leased, "crm", 1)
	check("scheduled", m.scheduled, "crm", 1)
	check("dead", m.dead, "crm", 1)
	check("due", m.due, "sales", 2)
	if age := testutil.ToFloat64(m.oldestDue.WithLabelValues("crm")); age < 90 || age > 3600 {
		t.Errorf("oldest_due_seconds{crm} = %v; want a little more than 90", age)
	}
	report, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer report.Rollback(t.Context())
	if _, err := report.Exec(t.Context(), `select 1`); err != nil { // takes its snapshot
		t.Fatal(err)
	}
	exec(t, pool, `update outbox set status = 'sent' where destination = 'sales'`)
	if err := q.count(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := testutil.CollectAndCount(m.due); n != 1 {
		t.Errorf("due_messages has %d series; want that of crm alone: nothing is left of sales", n)
	}
	if age := testutil.ToFloat64(m.oldest); age <= 0 || age > 3600 {
		t.Errorf("oldest_snapshot_seconds = %v beside a report's open transaction; want its age", age)
	}
}

func TestShortLeaseIsRefused(t *testing.T) {
	if _, err := New(Config{Lease: time.Millisecond}, nil, nil, nil); err == nil || !strings.Contains(err.Error(),
		"claim.lease") {
		t.Errorf("New with a lease of 1 ms = %v; want an error that names claim.lease", err)
	}
	if got := (Config{Lease: 4 * time.Second}).timeout(); got != 2*time.Second {
		t.Errorf("with a lease of 4 s a statement may take %s; want 2 s", got)
	}
}
