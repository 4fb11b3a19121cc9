package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/operate/explain"
)

// TestExplain: why did this fire, and why did that not, asked of a running pipeline.
func TestExplain(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	receiver := startReceiver(t, nil)
	node := startNode(t, url, writeRules(t, receiver.URL, "[50ms]")...)
	conn := connect(t, url)
	post := func(id, name, properties string) {
		t.Helper()
		body := fmt.Sprintf(
			`{"event_id":%q,"event_name":%q,"occurred_at":%q,"user_id":"u1","session_id":"s1","properties":%s}`,
			id, name, time.Now().UTC().Format(time.RFC3339Nano), properties)
		if r := postEvents(client(t), node.Events(), body); r.status != 200 || r.Stored != 1 {
			t.Fatalf("%+v", r)
		}
	}
	post("big-1", "purchase_completed", `{"order_id":"o1","amount_cents":50000}`)
	post("big-2", "purchase_completed", `{"order_id":"o2","amount_cents":50000}`)
	post("again", "purchase_completed", `{"order_id":"o1","amount_cents":50000}`)
	post("small", "purchase_completed", `{"order_id":"o3","amount_cents":5}`)
	post("odd", "purchase_completed", `{"order_id":"o4"}`)
	post("cart", "add_to_cart", `{"sku":"tea"}`)
	post("nobody", "page_viewed", `{}`)
	pgtest.Eventually(t, "the message is sent", func() bool {
		return query1(t, conn, `select count(*) from outbox where status = 'sent'`) == 1
	})
	check := func(id string, wants ...string) {
		t.Helper()
		status, out, errOut := runCommand(t, nil, "explain", id, "--rules", "../../rules/shop.yaml", "--database-url", url)
		for _, want := range wants {
			if status != 0 || !strings.Contains(out, want) {
				t.Errorf("explain %s: exit status %d, lacks %q:\n%s%s", id, status, want, out, errOut)
			}
		}
	}
	check("big-1", `happened `, `shop/big-purchase (active, version `, `matched, with key "o1" and subject "sales-team"`,
		"attempt 1 at", "answer 200", "sent at", "shop/conversion-drop")
	check("big-2", "held back by a cooldown of 15m0s", "granted a message at", "it lasts until ",
		"Messages because of it:\n  none")
	check("again", "suppressed as a duplicate: the key was used at", "by message 1")
	check("small", "shop/big-purchase (active", "did not match")
	check("odd", `could not decide, which counts as no match: expression: the event has no "properties.amount_cents"`)
	check("cart", `for key "s1"`, "it waits since", "next: it fires at")
	check("nobody", "Rules that listen to page_viewed, as they are now (worked out again, not read from a record):\n  "+
		"none")
	// Afterwards: the cooldown is over, and a later grant has taken the place of the one that held big-2 back.
	for _, sql := range []string{
		`update outbox set created_at = created_at - interval '1 hour', finished_at = finished_at - interval '1 hour'`,
		`update events set received_at = received_at - interval '1 hour', occurred_at = occurred_at - interval '1 hour'`,
		`update rule_subjects set recent = array[now()], decided_at = now()`,
		`insert into rule_hours (rule_id, hour, evaluated, messages, duplicate, cooldown, cap, errors)
			values ('shop/big-purchase', date_trunc('hour', now() - interval '1 hour'), 1, 1, 1, 1, 0, 0)`} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	check("big-2", "held back by a cooldown of 15m0s", "it has been over since ")
	check("1", "Message 1 to sales", "decided by shop/big-purchase, version ", "sent at")
	var story explain.Story
	status, out, _ := runCommand(t, nil, "explain", "again", "--json", "--rules", "../../rules/shop.yaml",
		"--database-url", url)
	if err := json.Unmarshal([]byte(out), &story); status != 0 || err != nil || len(story.Events) != 1 {
		t.Fatalf("as JSON: status %d, %v\n%s", status, err, out)
	}
	for _, r := range story.Events[0].Rules {
		if r.Rule == "shop/big-purchase" && (r.Held == nil || r.Held.Reason != explain.Duplicate || r.Held.By != 1) {
			t.Errorf("held as %+v, want a duplicate of message 1", r.Held)
		}
	}
	status, _, errOut := runCommand(t, nil, "explain", "unheard-of", "--database-url", url)
	if status != 1 || !strings.Contains(errOut, "it never arrived") {
		t.Errorf("exit status %d: %s", status, errOut)
	}
}
