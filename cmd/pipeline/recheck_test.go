package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/internal/receiver"
)

// TestAbandonedCart: two sessions fill a cart an hour ago and the events arrive now; one of them turns out to have
// bought, after the decision and before it was due. From the socket to the receiver, by the rules of a file.
func TestAbandonedCart(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	sink := startReceiver(t, nil)
	dir := t.TempDir()
	rules := filepath.Join(dir, "cart.yaml")
	if err := os.WriteFile(rules, []byte(`version: 1
ruleset: t
rules:
  - id: cart
    kind: absence
    owner: me
    response: https://wiki/cart
    trigger: {on: add_to_cart}
    cancel: {on: purchase_completed}
    key: event.session_id
    within: 60m
    grace: 10s
    lookback: 6h
    payload: {session: key, sku: trigger.properties.sku}
    send_to: welcome
`), 0o600); err != nil {
		t.Fatal(err)
	}
	node := startNode(t, url, append(writeRules(t, sink.URL, "[50ms]"), "--rules", rules, "--sweep.every", "50ms")...)
	conn := connect(t, url)
	post := func(id, name, session string, ago time.Duration) {
		t.Helper()
		body := fmt.Sprintf(`{"event_id":%q,"event_name":%q,"session_id":%q,"occurred_at":%q,"properties":{"sku":"tea"}}`,
			id, name, session, time.Now().Add(-ago).UTC().Format(time.RFC3339Nano))
		if r := postEvents(client(t), node.Events(), body); r.status != 200 || r.Stored != 1 {
			t.Fatalf("%+v", r)
		}
	}
	post("a1", "add_to_cart", "leaves", 61*time.Minute)
	post("b1", "add_to_cart", "buys", 61*time.Minute)
	pgtest.Eventually(t, "both are decided", func() bool {
		return query1(t, conn, `select count(*) from outbox where rule_id = 't/cart'`) == 2
	})
	post("b2", "purchase_completed", "buys", 20*time.Minute)
	pgtest.Eventually(t, "one is sent and one is skipped", func() bool {
		return query1(t, conn, `select count(*) from outbox where subject_key = 'leaves' and status = 'sent'`) == 1 &&
			query1(t, conn,
				`select count(*) from outbox where subject_key = 'buys' and status = 'skipped' and last_error = 'cancelled'`) == 1
	})
	status, out, errOut := runCommand(t, nil, "explain", "b1", "--rules", rules, "--database-url", url)
	const want = "the look just before sending, at whether the decision still held: a cancel had come in the meantime"
	if status != 0 || !strings.Contains(out, want) {
		t.Errorf("explain: exit status %d, lacks %q:\n%s%s", status, want, out, errOut)
	}
	var stats receiver.Stats
	getJSON(t, sink.URL+"/stats", &stats)
	if stats.Accepted != 1 {
		t.Errorf("the receiver took %d messages, want 1", stats.Accepted)
	}
}
