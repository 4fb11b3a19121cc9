package claim

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline"
)

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
		"skipped 0 now done none",
		"pending 0 now open none",
	} {
		got := value(t, pool, `select concat_ws(' ', status, attempts, case
			when run_after > now() + interval '10 seconds' then 'later' else 'now' end,
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
	if len(again) != 1 || again[0].Attempt != 1 || again[0].Lost != 1 || again[0].IdempotencyKey != old.IdempotencyKey {
		t.Fatalf("after its lease ran out: claimed %+v; want attempt 1, the same key, one lost lease", again)
	}
	row := `select o::text from outbox o`
	before := value(t, pool, row)
	for _, status := range []pipeline.DeliveryStatus{pipeline.Sent, pipeline.Failed, pipeline.Dead, pipeline.Skipped,
		pipeline.Released} {
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

// A lease that ran out without a result counts no attempt. From then on attempts are counted before they begin, and
// once.
func TestLostLeaseCountsNoAttempt(t *testing.T) {
	pool := pgtest.New(t)
	q := newQueue(t, pool)
	insert(t, pool, "crm", 1)
	next := func(wantAttempt, wantLost int) pipeline.Lease {
		t.Helper()
		exec(t, pool, `update outbox set locked_until = now() - interval '1 second' where locked_until is not null`)
		exec(t, pool, `update outbox set run_after = now()`)
		fromTheBeginning(q)
		leases := claim(t, q, "crm", 1)
		if len(leases) != 1 || leases[0].Attempt != wantAttempt || leases[0].Lost != wantLost {
			t.Fatalf("claimed %+v; want attempt %d after %d lost leases", leases, wantAttempt, wantLost)
		}
		return leases[0]
	}
	begin := func(l pipeline.Lease, want bool) {
		t.Helper()
		if held, err := q.Begin(t.Context(), &l); err != nil || held != want {
			t.Fatalf("Begin = %t, %v; want %t", held, err, want)
		}
	}
	finish(t, q, result(next(1, 0), pipeline.Released))
	old := next(1, 0)
	next(1, 1)
	lease := next(1, 2)
	begin(old, false)
	begin(lease, true)
	lease = next(2, 3) // its worker died in the attempt
	begin(lease, true)
	held := result(lease, pipeline.Released) // the destination refused it, through no fault of the message
	held.Begun = true
	finish(t, q, held)
	lease = next(2, 3)
	begin(lease, true)
	failed := result(lease, pipeline.Failed)
	failed.Begun = true
	finish(t, q, failed)
	lease = next(3, 3)
	finish(t, q, result(lease, pipeline.Dead))
	if got := value(t, pool, `select concat_ws(' ', status, attempts, lost_leases) from outbox`); got != "dead 3 3" {
		t.Errorf("message = %s; want dead 3 3", got)
	}
	if row, _, err := Show(t.Context(), pool, lease.ID); err != nil || row.LostLeases != 3 {
		t.Errorf("Show = %d lost leases, %v; want 3", row.LostLeases, err)
	}
	if _, err := Retry(t.Context(), pool, Filter{}, 0, 1); err != nil {
		t.Fatal(err)
	}
	next(1, 0)
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
	if late := finish(t, q, tried(second[0], pipeline.Sent, 200, ""), tried(first[1], pipeline.Sent, 204,
		"")); late != 1 {
		t.Errorf("late = %d; want 1", late)
	}
	// With something that was not sent another statement records them.
	if late := finish(t, q, tried(second[1], pipeline.Failed, 500, ""), tried(first[0], pipeline.Sent, 202,
		"")); late != 1 {
		t.Errorf("late = %d; want 1", late)
	}
	got := value(t, pool, `select string_agg(concat_ws(' ', message_id, coalesce(attempt::text, '-'), status,
		coalesce(http_status::text, '-'), latency_seconds,
		coalesce(error, '-'), started_at between now() - interval '2 minutes' and now() - interval '1 minute'), ', '
		    order by attempt, http_status desc)
		from outbox_all_attempts`)
	want := fmt.Sprintf("%[1]d 1 failed 503 0.25 HTTP 503 t, %[2]d 1 failed 500 0.25 - t, %[1]d 2 sent 200 0.25 - t, "+
		"%[2]d - late 204 0.25 - t, %[1]d - late 202 0.25 - t", first[0].ID, first[1].ID)
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
		exec(t, pool, fmt.Sprintf(`create trigger refuse before update on outbox for each row when (new.status = '%s')
			execute function refuse()`, status))
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
	got := value(t, pool, `select string_agg(concat_ws(' ', message_id, attempt, status, http_status), ', '
		order by message_id) from outbox_all_attempts`)
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
