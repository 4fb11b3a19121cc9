package claim

import (
	"testing"
	"time"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline"
)

// A failover lost messages that were under way, and others got their ids: late results change nothing of these, nor of
// their stories, and are counted. Those of the same message are part of its story.
func TestLateResultOfALostMessage(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	q := newQueue(t, pool)
	const addSQL = `insert into outbox (message_id, tenant_id, type, dedupe_key, destination, payload)
overriding system value select i, 1, 't', $1 || i::text, 'crm', '{}' from generate_series(1, 3) i`
	exec(t, pool, addSQL, "lost")
	lost, err := q.Claim(t.Context(), []pipeline.Want{{Destination: "crm", Room: 3}})
	if err != nil || len(lost) != 3 {
		t.Fatalf("Claim = %d leases, %v; want 3", len(lost), err)
	}
	exec(t, pool, `delete from outbox where message_id < 3`)
	exec(t, pool, `update outbox set lease_token = null, locked_until = null where message_id = 3`)
	exec(t, pool, `insert into outbox (message_id, tenant_id, type, dedupe_key, destination, payload)
overriding system value select i, 1, 't', 'new' || i::text, 'crm', '{}' from generate_series(1, 2) i`)
	now, err := q.Claim(t.Context(), []pipeline.Want{{Destination: "crm", Room: 3}})
	if err != nil || len(now) < 2 || now[0].ID != 1 || now[1].ID != 2 {
		t.Fatalf("Claim = %v, %v; want the messages 1 and 2 at least", now, err)
	}
	for _, status := range []pipeline.DeliveryStatus{pipeline.Sent, pipeline.Failed} {
		var results []pipeline.Result
		for _, l := range lost {
			results = append(results, pipeline.Result{
				MessageID: l.ID, Token: l.Token, IdempotencyKey: l.IdempotencyKey, Status: status, StartedAt: time.Now(),
				HTTPStatus: 200,
			})
		}
		if late, err := q.Finish(t.Context(), results); late != 3 || err != nil {
			t.Errorf("Finish(%s) = %d late, %v; want 3", status, late, err)
		}
	}
	if got := value(t, pool, `select string_agg(message_id::text, ' ') from outbox_attempts`); got != "3 3" {
		t.Errorf("late attempts are part of the stories of messages %s, want 3 3", got)
	}
	const stateSQL = `select count(*)::text from outbox where status = 'pending' and attempts = 0 and lease_token = $1
    and message_id < 3`
	if got := value(t, pool, stateSQL, now[0].Token); got != "2" {
		t.Errorf("%s messages are as they were, want 2", got)
	}
}
