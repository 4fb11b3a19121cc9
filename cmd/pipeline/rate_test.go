package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline/rules"
)

// TestRateRuleReachesTheReceiver: failures rose for forty minutes while nothing swept. The process that starts counts
// the stored events, judges the windows that were missed, and the receiver gets firing, its repeats, and the all-clear.
func TestRateRuleReachesTheReceiver(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	var mu sync.Mutex
	var got []string
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var message struct {
			Rule string
			Data struct {
				State string
				Got   int
				Usual float64
			}
		}
		if err == nil {
			err = json.Unmarshal(body, &message)
		}
		mu.Lock()
		defer mu.Unlock()
		if d := message.Data; err != nil || message.Rule != "failures" || d.Usual < 150 || d.Usual > 350 ||
			d.State == "resolved" && d.Got > 300 || d.State == "firing" && d.Got < 400 {
			t.Errorf("the receiver got %s (%v)", body, err)
		}
		got = append(got, message.Data.State)
	}))
	defer receiver.Close()
	file := writeFile(t, "rate.yaml", `version: 1
ruleset: t
rules:
  - id: failures
    owner: me
    response: https://wiki/failures
    kind: rate
    count: {on: failed}
    window: 10m
    every: 5m
    settle: 1m
    baseline: {step: 30m, periods: 7, require: 2}
    minimum: {expected: 10}
    fire: {rise: 100%, z: 3, for: 2}
    clear: {rise: 50%, for: 2}
    repeat: 10m
    send_to: sales
    payload: {state: rate.state, got: rate.numerator, usual: rate.baseline}
`)
	set, err := rules.Load(file, rules.DefaultOptions())
	if err != nil {
		t.Fatal(err)
	}
	conn := connect(t, url)
	if _, err := conn.Exec(t.Context(), `insert into events (event_id, tenant_id, event_name, occurred_at, received_at)
		select gen_random_uuid(), 1, 'failed', at, at
		from generate_series(10, 400) m, lateral (select case when m between 71 and 110 then 60 else 20 end as n) much,
			generate_series(1, n) i, lateral (
				select date_trunc('hour', now()) + extract(minute from now())::int / 5 * interval '5 minutes'
				- m * interval '1 minute' + i * interval '0.9 seconds' as at) a`); err != nil {
		t.Fatal(err)
	}
	const stateSQL = `
insert into rate_states (metric, tenant_id, slot, firing, state)
values ($1, 1, now() - interval '125 minutes', false, '{}')`
	if _, err := conn.Exec(t.Context(), stateSQL, set.Rates()[0].Rate.Metric); err != nil {
		t.Fatal(err)
	}
	// The baseline goes back far enough for the windows of two hours ago, too, where the day began between the two: the
	// days that are counted are those of a window of now.
	startNode(t, url, append(writeRules(t, receiver.URL, "[50ms]"), "--rules", file, "--sweep.every", "50ms")...)
	pgtest.Eventually(t, "the all-clear is sent", func() bool {
		return query1(t, conn,
			`select count(*) from outbox where payload ->> 'state' = 'resolved' and status = 'sent'`) == 1 &&
			query1(t, conn, `select count(*) from outbox where status <> 'sent'`) == 0
	})
	pgtest.Eventually(t, "the list says so", func() bool {
		_, out, _ := runCommand(t, nil, "rules", "list", "--database-url", url)
		return strings.Contains(strings.Join(strings.Fields(out), " "), "t/failures rate active ok ") ||
			strings.Contains(out, "t/failures is unknown: ")
	})
	var decided string
	if err := conn.QueryRow(t.Context(),
		`select string_agg(payload ->> 'state', ' ' order by message_id) from outbox`).Scan(&decided); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	slices.Sort(got)
	// Windows 10 minutes long: firing at the second that is high, then every 10 minutes, until the second that is normal
	// again.
	if want := "firing firing firing firing resolved"; decided != want || strings.Join(got, " ") != want {
		t.Errorf("decided %q, received (sorted) %q; want %q", decided, got, want)
	}
}
