package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sluice.example/sluice/internal/pgtest"
)

const stoppedRule = `version: 1
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
    grace: 1s
    lookback: 6h
    payload: {session: key}
    send_to: welcome
`

// TestStoppedNodeHoldsNoLocks: a node that is stopped inside a sweep, with the timers of a subject locked, holds up
// events of that subject on other nodes for sweep.idle-timeout and no longer.
func TestStoppedNodeHoldsNoLocks(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	rules := filepath.Join(t.TempDir(), "cart.yaml")
	if err := os.WriteFile(rules, []byte(stoppedRule), 0o600); err != nil {
		t.Fatal(err)
	}
	args := append(writeRules(t, "http://127.0.0.1:9", "[1h]"), "--rules", rules)
	writer := startNode(t, url, append(args, "--roles", "ingest")...)
	post := func(id, name string, ago time.Duration) reply {
		return postEvents(client(t), writer.Events(),
			fmt.Sprintf(`{"event_id":%q,"event_name":%q,"session_id":"s","occurred_at":%q}`,
				id, name, time.Now().Add(-ago).UTC().Format(time.RFC3339Nano)))
	}
	proxy := pgtest.NewProxy(t, url)
	var mu sync.Mutex
	takes, locked := map[int]bool{}, map[int]bool{}
	hang, stopped := pgtest.Once(pgtest.Hang, func(m pgtest.Message) bool {
		mu.Lock()
		defer mu.Unlock()
		if sql := m.SQL(); sql != "" { // each statement is sent as text
			takes[m.Conn] = strings.Contains(sql, "order by armed_at limit $4 for update")
		}
		if takes[m.Conn] && m.Tag() == "SELECT 1" {
			locked[m.Conn] = true
		}
		return m.SQL() == "commit" && locked[m.Conn]
	})
	proxy.OnMessage(hang)
	sweeper := startNode(t, proxy.URL()+"&default_query_exec_mode=exec",
		append(args, "--roles", "sweep", "--sweep.every", "50ms", "--sweep.idle-timeout", "2s")...)
	if r := post("a", "add_to_cart", 61*time.Minute); r.status != 200 {
		t.Fatalf("%+v", r)
	}
	select {
	case <-stopped:
	case <-time.After(time.Minute):
		t.Fatal("no sweep decided")
	}
	signalNode(t, sweeper, syscall.SIGSTOP)
	t.Cleanup(func() { _ = sweeper.Signal(syscall.SIGCONT) })
	const openSQL = `select count(*) from pg_stat_activity where datname = current_database()
		and application_name = 'pipeline query' and state = 'idle in transaction'`
	if n := query1(t, connect(t, url), openSQL); n == 0 {
		t.Fatal("no transaction of the stopped node is open: the test tests nothing")
	}
	if r := post("b", "purchase_completed", 0); r.status != 200 || r.Stored != 1 {
		t.Errorf("%+v for an event of a subject that a stopped node has locked, want 200", r)
	}
}
