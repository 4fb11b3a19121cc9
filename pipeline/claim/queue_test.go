package claim

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"sluice/internal/pgtest"
	"sluice/pipeline"
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

// value gives the one text that a query selects.
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
		select 1, 'welcome', 'user-' || i, $1 || ':' || i, $1, jsonb_build_object('i', i), '{"X-Shop":"demo"}', 'welcome'
		from generate_series(1, $2) i`, destination, n)
}

func claim(t *testing.T, q *Queue, destination string, room int) []pipeline.Lease {
	t.Helper()
	leases, err := q.Claim(t.Context(), map[string]int{destination: room})
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
	return pipeline.Result{MessageID: l.ID, Token: l.Token, Status: status}
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
	if l.Tenant != 1 || l.Type != "welcome" || l.SubjectKey != "user-1" || l.Destination != "crm" || string(l.Payload) != `{"i": 1}` ||
		l.Headers["X-Shop"] != "demo" || !l.Rule || l.Attempt != 1 || l.CreatedAt.IsZero() || l.IdempotencyKey == (pipeline.UUID{}) {
		t.Errorf("lease = %+v", l)
	}
	if want := before.Add(q.Lease()); l.Until.Before(want) || l.Until.After(want.Add(time.Minute)) {
		t.Errorf("lease ends %s after the claim; want about %s", l.Until.Sub(before), q.Lease())
	}
	got := value(t, pool, `select concat_ws(' ', status, attempts, lease_token = $1, locked_until > now()) from outbox`, l.Token)
	if got != "pending 1 t t" {
		t.Errorf("row = %q; want pending 1 t t", got)
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
	exec(t, pool, `update outbox set run_after = now() + interval '1 hour' where destination = 'sales' and dedupe_key <> 'sales:7'`)
	exec(t, pool, `update outbox set run_after = run_after - i * interval '1 minute' from generate_series(1, 10) i where dedupe_key = 'crm:' || i`)
	leases, err := q.Claim(t.Context(), map[string]int{"crm": 3, "sales": 5, "other": 7})
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

func TestFinishRecords(t *testing.T) {
	pool := pgtest.New(t)
	q := newQueue(t, pool)
	insert(t, pool, "crm", 5)
	leases := claim(t, q, "crm", 5)
	failed := result(leases[1], pipeline.Failed)
	failed.RetryIn, failed.Error = 15*time.Second, "HTTP 503"
	dead := result(leases[2], pipeline.Dead)
	dead.Error = "HTTP 410"
	skipped := result(leases[3], pipeline.Skipped)
	released := result(leases[4], pipeline.Released)
	if late := finish(t, q, released, skipped, dead, failed, result(leases[0], pipeline.Sent)); late != 0 {
		t.Errorf("late = %d; want 0", late)
	}
	for i, want := range []string{
		"sent 1 now done none",
		"failed 1 later open HTTP 503",
		"dead 1 now done HTTP 410",
		"skipped 1 now done none",
		"pending 0 now open none",
	} {
		got := value(t, pool, `select concat_ws(' ', status, attempts, case when run_after > now() + interval '10 seconds' then 'later' else 'now' end,
			case when finished_at is null then 'open' else 'done' end, coalesce(last_error, 'none'))
			from outbox where message_id = $1 and locked_until is null and lease_token is null`, leases[i].ID)
		if got != want {
			t.Errorf("message %d = %q; want %q", i, got, want)
		}
	}
	if again := claim(t, q, "crm", 5); len(again) != 1 || again[0].ID != leases[4].ID || again[0].Attempt != 1 {
		t.Errorf("claimed after release: %+v; want message %d at attempt 1", again, leases[4].ID)
	}
}

// Promise 6: a worker whose lease has run out changes nothing.
func TestExpiredLeaseChangesNothing(t *testing.T) {
	pool := pgtest.New(t)
	q := newQueue(t, pool)
	insert(t, pool, "crm", 1)
	old := claim(t, q, "crm", 1)[0]
	exec(t, pool, `update outbox set locked_until = now() - interval '1 second'`)
	fromTheBeginning(q)
	again := claim(t, q, "crm", 1)
	if len(again) != 1 || again[0].Attempt != 2 || again[0].IdempotencyKey != old.IdempotencyKey {
		t.Fatalf("after its lease ran out the message was claimed as %+v; want attempt 2 with the same key", again)
	}
	row := `select o::text from outbox o`
	before := value(t, pool, row)
	for _, status := range []pipeline.DeliveryStatus{pipeline.Sent, pipeline.Failed, pipeline.Dead, pipeline.Skipped, pipeline.Released} {
		if late := finish(t, q, result(old, status)); late != 1 {
			t.Errorf("Finish(%s) under the old token: late = %d; want 1", status, late)
		}
	}
	if after := value(t, pool, row); after != before {
		t.Errorf("the old token changed the row\nfrom %s\nto   %s", before, after)
	}
	if n := testutil.ToFloat64(q.metrics.lateWrites); n != 5 {
		t.Errorf("late_writes_total = %v; want 5", n)
	}
	if late := finish(t, q, result(again[0], pipeline.Sent)); late != 0 {
		t.Errorf("Finish under the new token: late = %d; want 0", late)
	}
	if late := finish(t, q, result(again[0], pipeline.Sent)); late != 1 {
		t.Errorf("Finish for a message that is final: late = %d; want 1", late)
	}
}

// A lease that ran out but that nobody took since still records its result: that saves a repeat.
func TestExpiredLeaseThatNobodyTookRecords(t *testing.T) {
	pool := pgtest.New(t)
	q := newQueue(t, pool)
	insert(t, pool, "crm", 1)
	l := claim(t, q, "crm", 1)[0]
	exec(t, pool, `update outbox set locked_until = now() - interval '1 second'`)
	if late := finish(t, q, result(l, pipeline.Sent)); late != 0 {
		t.Errorf("late = %d; want 0", late)
	}
	if got := value(t, pool, `select status from outbox`); got != "sent" {
		t.Errorf("status = %s; want sent", got)
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
				leases, err := q.Claim(context.Background(), map[string]int{"crm": 37})
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

// Every attempt is noted, and nothing that was none.
func TestAttemptsAreNoted(t *testing.T) {
	pool := pgtest.New(t)
	q := newQueue(t, pool)
	insert(t, pool, "crm", 2)
	tried := func(l pipeline.Lease, status pipeline.DeliveryStatus, http int, reason string) pipeline.Result {
		r := result(l, status)
		r.HTTPStatus, r.Error, r.StartedAt, r.Latency = http, reason, time.Now().Add(-time.Minute), 250*time.Millisecond
		return r
	}
	first := claim(t, q, "crm", 2)
	finish(t, q, tried(first[0], pipeline.Failed, 503, "HTTP 503"), result(first[1], pipeline.Released))
	exec(t, pool, `update outbox set locked_until = now() - interval '1 second'`)
	fromTheBeginning(q)
	second := claim(t, q, "crm", 2)
	if late := finish(t, q, tried(second[0], pipeline.Sent, 200, ""), tried(first[1], pipeline.Sent, 204, "")); late != 1 {
		t.Errorf("late = %d; want 1", late)
	}
	// With something that was not sent another statement records them.
	if late := finish(t, q, tried(second[1], pipeline.Failed, 500, ""), tried(first[0], pipeline.Sent, 202, "")); late != 1 {
		t.Errorf("late = %d; want 1", late)
	}
	got := value(t, pool, `select string_agg(concat_ws(' ', message_id, coalesce(attempt::text, '-'), status, coalesce(http_status::text, '-'), latency_seconds,
		coalesce(error, '-'), started_at between now() - interval '2 minutes' and now() - interval '1 minute'), ', ' order by attempt, http_status desc)
		from outbox_all_attempts`)
	want := fmt.Sprintf("%[1]d 1 failed 503 0.25 HTTP 503 t, %[2]d 1 failed 500 0.25 - t, %[1]d 2 sent 200 0.25 - t, %[2]d - late 204 0.25 - t, %[1]d - late 202 0.25 - t", first[0].ID, first[1].ID)
	if got != want {
		t.Errorf("attempts = %s\nwant %s", got, want)
	}
}

// Results are recorded all together or not at all, whatever they are: a repeat refuses none of them, and notes each
// attempt once.
func TestFinishIsAllOrNothing(t *testing.T) {
	pool := pgtest.New(t)
	q := newQueue(t, pool)
	insert(t, pool, "crm", 3)
	exec(t, pool, `create function refuse() returns trigger language plpgsql as $$ begin raise 'refused'; end $$`)
	leases := claim(t, q, "crm", 3)
	statuses := []pipeline.DeliveryStatus{pipeline.Sent, pipeline.Failed, pipeline.Dead}
	var results []pipeline.Result
	for i, l := range leases {
		r := result(l, statuses[i])
		r.HTTPStatus, r.StartedAt, r.RetryIn = 200+i, time.Now(), time.Hour
		results = append(results, r)
	}
	for _, status := range statuses { // each in turn is what the database refuses
		exec(t, pool, fmt.Sprintf(`create trigger refuse before update on outbox for each row when (new.status = '%s') execute function refuse()`, status))
		if late, err := q.Finish(t.Context(), results); err == nil {
			t.Fatalf("Finish while %s is refused = %d late; want an error", status, late)
		}
		exec(t, pool, `drop trigger refuse on outbox`)
		if n := value(t, pool, `select count(*)::text from outbox where lease_token is not null`); n != "3" {
			t.Errorf("still leased after %s was refused: %s; want 3", status, n)
		}
	}
	if late := finish(t, q, results...); late != 0 || testutil.ToFloat64(q.metrics.lateWrites) != 0 {
		t.Errorf("late = %d, late_writes_total = %v; want 0", late, testutil.ToFloat64(q.metrics.lateWrites))
	}
	got := value(t, pool, `select string_agg(concat_ws(' ', message_id, attempt, status, http_status), ', ' order by message_id) from outbox_all_attempts`)
	want := fmt.Sprintf("%d 1 sent 200, %d 1 failed 201, %d 1 dead 202", leases[0].ID, leases[1].ID, leases[2].ID)
	if got != want {
		t.Errorf("attempts = %s; want %s", got, want)
	}
	for _, status := range statuses {
		if n := testutil.ToFloat64(q.metrics.finished.WithLabelValues(string(status))); n != 1 {
			t.Errorf("finished_messages_total{%s} = %v; want 1", status, n)
		}
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
	if end, ok := ends[leases[2].ID]; len(ends) != 1 || !ok || end.Before(before.Add(q.Lease())) {
		t.Errorf("Extend gave %v; want an end for message %d only, %s from now", ends, leases[2].ID, q.Lease())
	}
	got := value(t, pool, `select string_agg(message_id::text, ' ' order by message_id) from outbox where locked_until > now() + interval '50 seconds'`)
	if want := fmt.Sprintf("%d %d", taken.ID, leases[2].ID); got != want {
		t.Errorf("leased for a minute from now: %s; want %s", got, want)
	}
}

// Where order is kept, a subject has one message out at a time, in the order of ids; a dead one lets the others go on, or
// holds them up.
func TestOrder(t *testing.T) {
	for name, deadBlocks := range map[string]bool{"skip": false, "block": true} {
		pool := pgtest.New(t)
		q := newQueue(t, pool)
		q.Ordered("crm", deadBlocks)
		insert(t, pool, "crm", 4)
		insert(t, pool, "mail", 1)
		exec(t, pool, `update outbox set subject_key = case when dedupe_key in ('crm:1', 'crm:2', 'crm:3') then 'a' else 'b' end`)
		// The same subject of another tenant, and of another destination, is another subject.
		exec(t, pool, `insert into outbox (tenant_id, type, subject_key, dedupe_key, destination, payload) values (2, 't', 'a', 'crm:5', 'crm', '{}')`)
		exec(t, pool, `update outbox set run_after = now() - interval '1 hour' where dedupe_key = 'crm:2'`) // older, but not first
		keys := func(leases []pipeline.Lease) string {
			var all []string
			for _, l := range leases {
				all = append(all, value(t, pool, `select dedupe_key from outbox where message_id = $1`, l.ID))
			}
			return strings.Join(all, " ")
		}
		expect := func(want string) []pipeline.Lease {
			t.Helper()
			leases := claim(t, q, "crm", 10)
			if got := keys(leases); got != want {
				t.Fatalf("%s: claimed %q; want %q", name, got, want)
			}
			return leases
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
		if deadBlocks {
			expect("")
			exec(t, pool, `update outbox set status = 'skipped' where status = 'dead'`)
		}
		finish(t, q, result(expect("crm:3")[0], pipeline.Sent))
	}
}

// Claim and Finish read outbox by the indexes they were written for, before and after the table was analyzed.
func TestPlans(t *testing.T) {
	pool := pgtest.New(t)
	for _, state := range []string{"not analyzed", "analyzed"} {
		switch state {
		case "not analyzed":
			exec(t, pool, `insert into outbox (tenant_id, type, dedupe_key, destination, payload, status, finished_at)
				select 1, 'welcome', i::text, 'crm', '{}', 'sent', now() from generate_series(1, 50000) i`)
			insert(t, pool, "crm", 3000)
		case "analyzed":
			exec(t, pool, `analyze outbox`)
		}
		plan := explain(t, pool, claimSQL, []string{"crm", "sales"}, []int32{500, 500}, 60.0, pipeline.NewUUIDv4(), []int16{0, 1},
			[]time.Time{{}, {}}, []int64{0, 0})
		if !strings.Contains(plan, "Index Scan using outbox_claimable on outbox m ") || strings.Contains(plan, "Sort Key") || !strings.Contains(plan, "AND (ROW(run_after, message_id) > ROW(") || !byKey.MatchString(plan) || strings.Contains(plan, "Seq Scan") {
			t.Errorf("claim, %s, is not planned as one walk along outbox_claimable and lookups by key:\n%s", state, plan)
		}
		ids, tokens := make([]int64, 500), slices.Repeat([]string{pipeline.NewUUIDv4().String()}, 500)
		for name, plan := range map[string]string{
			"sent": explain(t, pool, sentSQL, ids, tokens, make([]int32, 500), make([]float64, 500), make([]float64, 500)),
			"finish": explain(t, pool, finishSQL, ids, tokens, make([]string, 500), make([]float64, 500), make([]string, 500),
				make([]int32, 500), make([]float64, 500), make([]float64, 500)),
		} {
			if !byKey.MatchString(plan) || strings.Contains(plan, "Seq Scan on outbox ") {
				t.Errorf("%s, %s, is not planned as lookups by key:\n%s", name, state, plan)
			}
		}
	}
}

var byKey = regexp.MustCompile(`Index Scan (on|using) outbox_pkey`)

func explain(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) string {
	t.Helper()
	rows, err := pool.Query(t.Context(), "explain "+sql, args...)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var b strings.Builder
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(&b, line)
	}
	if rows.Err() != nil {
		t.Fatal(rows.Err())
	}
	return b.String()
}

// A plan that was right for an empty table is not kept for a full one.
func TestPlansFollowTheTable(t *testing.T) {
	pool := pgtest.New(t)
	q := newQueue(t, pool)
	for range 10 { // the planner settles after five times, where it may keep a plan
		insertMore(t, pool, 1)
		finish(t, q, result(claim(t, q, "crm", 500)[0], pipeline.Sent))
	}
	insertMore(t, pool, 20_000)
	seqScans := func() (n int) {
		var claims int
		for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); {
			err := pool.QueryRow(t.Context(), `select seq_scan, (select idx_scan from pg_stat_user_indexes where indexrelname = 'outbox_claimable')
				from pg_stat_user_tables where relname = 'outbox'`).Scan(&n, &claims)
			if err != nil {
				t.Fatal(err)
			}
			if claims >= int(testutil.ToFloat64(q.metrics.claims)) { // statistics arrive with delay
				return n
			}
			exec(t, pool, `select pg_sleep(0.05)`)
		}
		t.Fatalf("%d scans of outbox_claimable in the statistics; want %v", claims, testutil.ToFloat64(q.metrics.claims))
		return 0
	}
	before := seqScans()
	for range 5 {
		var results []pipeline.Result
		for _, l := range claim(t, q, "crm", 500) {
			results = append(results, result(l, pipeline.Sent))
		}
		finish(t, q, results...)
	}
	if after := seqScans(); after != before {
		t.Errorf("claims and finishes read the whole table %d times", after-before)
	}
}

func insertMore(t *testing.T, pool *pgxpool.Pool, n int) {
	t.Helper()
	exec(t, pool, `insert into outbox (tenant_id, type, dedupe_key, destination, payload)
		select 1, 'welcome', gen_random_uuid()::text, 'crm', '{}' from generate_series(1, $1)`, n)
}

// A claim begins where the last one ended. What lies before, an expired lease or a message that was committed late, is
// found within the second.
func TestCursor(t *testing.T) {
	pool := pgtest.New(t)
	q := newQueue(t, pool)
	insert(t, pool, "crm", 300)
	exec(t, pool, `update outbox set run_after = now() - interval '1 hour'`) // all at once
	seen := map[int64]bool{}
	for range 3 {
		leases := claim(t, q, "crm", 100)
		if len(leases) != 100 {
			t.Fatalf("claimed %d; want 100", len(leases))
		}
		for _, l := range leases {
			if seen[l.ID] {
				t.Fatalf("message %d was given out twice", l.ID)
			}
			seen[l.ID] = true
		}
	}
	if n := testutil.ToFloat64(q.metrics.fullClaims); n > 2 {
		t.Errorf("%v of 3 claims began at the beginning; want the first, and one more at most", n)
	}
	exec(t, pool, `update outbox set locked_until = now() - interval '1 second' where dedupe_key = 'crm:1'`)
	insertMore(t, pool, 1)
	exec(t, pool, `update outbox set run_after = now() - interval '2 hours' where dedupe_key not like 'crm:%'`)
	found := 0
	for deadline := time.Now().Add(30 * time.Second); found < 2 && time.Now().Before(deadline); {
		found += len(claim(t, q, "crm", 100))
	}
	if found != 2 {
		t.Errorf("%d messages before the cursor were found; want 2", found)
	}
}

func TestCursorSteps(t *testing.T) {
	var c cursor
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	start := func(wantTime time.Time, wantID int64, wantFull bool) {
		t.Helper()
		if at, id, full := c.start(now); !at.Equal(wantTime) || id != wantID || full != wantFull {
			t.Fatalf("start = %v, %d, %t; want %v, %d, %t", at, id, full, wantTime, wantID, wantFull)
		}
	}
	start(time.Time{}, 0, true)
	c.ended(now, true, true, now.Add(-time.Hour), 17, 10*time.Millisecond, time.Minute)
	start(now.Add(-time.Hour), 17, false)
	c.ended(now, false, true, now.Add(-time.Minute), 18, time.Millisecond, time.Minute)
	start(now.Add(-time.Minute), 18, false)
	c.ended(now, false, false, now, 19, time.Millisecond, time.Minute) // the end of the backlog
	start(now.Add(-slack), 0, false)
	c.ended(now, false, false, time.Time{}, 0, time.Millisecond, time.Minute) // nothing
	start(now.Add(-slack), 0, false)
	c.ended(now, false, false, now.Add(-slack), 20, time.Millisecond, time.Minute) // never back
	start(now.Add(-slack), 0, false)
	now = now.Add(fullEvery)
	start(time.Time{}, 0, true)
	c.ended(now, true, false, time.Time{}, 0, 500*time.Millisecond, time.Minute) // slow: the next in 10 s
	start(time.Time{}, 0, false)
	now = now.Add(9 * time.Second)
	start(time.Time{}, 0, false)
	now = now.Add(time.Second)
	start(time.Time{}, 0, true)
	c.ended(now, true, false, time.Time{}, 0, time.Hour, 30*time.Second)
	now = now.Add(30 * time.Second)
	start(time.Time{}, 0, true)
}

// A claim writes no index entry: its updates are HOT.
func TestClaimIsHOT(t *testing.T) {
	pool := pgtest.New(t)
	q := newQueue(t, pool)
	insert(t, pool, "crm", 1000)
	for i := range 2 {
		fromTheBeginning(q)
		if n := len(claim(t, q, "crm", 1000)); n != 1000 {
			t.Fatalf("claim %d got %d messages; want 1000", i, n)
		}
		exec(t, pool, `vacuum outbox`)
		if i == 0 {
			// Setting the time back is an update too, a HOT one.
			exec(t, pool, `update outbox set locked_until = now() - interval '1 second'`)
			exec(t, pool, `vacuum outbox`)
		}
	}
	deadline := time.Now().Add(30 * time.Second)
	for {
		var updated, hot int
		err := pool.QueryRow(t.Context(), `select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relname = 'outbox'`).Scan(&updated, &hot)
		if err != nil {
			t.Fatal(err)
		}
		if updated == 3000 { // statistics arrive with delay
			if hot < 2700 {
				t.Errorf("%d of %d updates were HOT; want nearly all", hot, updated)
			}
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d updates in the statistics; want 3000", updated)
		}
		exec(t, pool, `select pg_sleep(0.05)`)
	}
}

func TestCount(t *testing.T) {
	pool := pgtest.New(t)
	q := newQueue(t, pool)
	insert(t, pool, "crm", 5)
	insert(t, pool, "sales", 2)
	exec(t, pool, `update outbox set run_after = now() - interval '90 seconds' where dedupe_key = 'crm:1'`)
	exec(t, pool, `update outbox set locked_until = now() + interval '1 minute' where dedupe_key = 'crm:2'`)
	exec(t, pool, `update outbox set run_after = now() + interval '1 minute', status = 'failed' where dedupe_key = 'crm:3'`)
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
	check("due", m.due, "sales", 0)
	if age := testutil.ToFloat64(m.oldestSnapshot); age <= 0 || age > 3600 {
		t.Errorf("oldest_snapshot_seconds = %v beside a report's open transaction; want its age", age)
	}
}

func TestConfigFaultsComeTogether(t *testing.T) {
	_, err := New(Config{Lease: time.Millisecond, Timeout: 0, GaugeInterval: -1}, nil, nil, nil)
	if err == nil {
		t.Fatal("New took it; want an error")
	}
	for _, key := range []string{"claim.lease", "claim.timeout", "claim.gauge-interval"} {
		if !strings.Contains(err.Error(), key) {
			t.Errorf("error %q does not name %s", err, key)
		}
	}
}
