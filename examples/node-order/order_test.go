// Package nodeorder tests the example in this folder on a real PostgreSQL. It needs node and npm.
package nodeorder

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/outbox"
)

func install(t *testing.T) {
	t.Helper()
	if exec.CommandContext(t.Context(), "npm", "ls").Run() == nil {
		return // what package.json asks for is there
	}
	if out, err := exec.CommandContext(t.Context(), "npm", "ci", "--no-audit", "--no-fund").CombinedOutput(); err != nil {
		t.Fatalf("npm ci: %v\n%s", err, out)
	}
}

func node(t *testing.T, pool *pgxpool.Pool, id, cents string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "node", "place-order.mjs", id, cents)
	cmd.Env = append(os.Environ(), "DATABASE_URL="+pool.Config().ConnString())
	return cmd
}

// row is what sluice_enqueue returns, as pg reads it.
type row struct {
	Index       int     `json:"message_index"`
	Duplicate   bool    `json:"duplicate"`
	Destination *string `json:"destination"`
	MessageID   *string `json:"message_id"`
	Key         *string `json:"idempotency_key"`
}

func check(t *testing.T, pool *pgxpool.Pool, want string) {
	t.Helper()
	var got string
	err := pool.QueryRow(t.Context(), `select format('orders: %s; messages: %s',
		(select string_agg(id || ' ' || cents, ', ' order by id) from orders),
		(select string_agg(format('%s %s %s', subject_key, destination, payload), ', ' order by message_id)
		from outbox))`).Scan(&got)
	if err != nil || got != want {
		t.Fatalf("database holds %q, %v; want %q", got, err, want)
	}
}

func TestNodePlacesAnOrderAndItsMessageTogether(t *testing.T) {
	install(t)
	pool := pgtest.New(t)
	if _, err := pool.Exec(t.Context(), `create table orders (id text primary key, cents bigint not null)`); err != nil {
		t.Fatal(err)
	}

	// No topic is known yet: neither the order nor the message is there.
	if out, err := node(t, pool, "17", "4900").CombinedOutput(); err == nil ||
		!strings.Contains(string(out), `topic "orders" is not configured`) {
		t.Fatalf("unknown topic: %v\n%s", err, out)
	}
	check(t, pool, "orders: ; messages: ")

	topics := map[string][]string{"orders": {"billing"}}
	if err := outbox.SyncTopics(t.Context(), pool, []string{"billing"}, topics); err != nil {
		t.Fatal(err)
	}
	for _, duplicate := range []bool{false, true} {
		out, err := node(t, pool, "17", "4900").Output()
		var rows []row
		if err := errors.Join(err, json.Unmarshal(out, &rows)); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if len(rows) != 1 || rows[0].Index != 0 || rows[0].Duplicate != duplicate ||
			(rows[0].MessageID == nil) != duplicate ||
			(rows[0].Key == nil) != duplicate || (rows[0].Destination == nil) != duplicate {
			t.Fatalf("node printed %s; want one row, duplicate %v", out, duplicate)
		}
		check(t, pool, `orders: 17 4900; messages: order:17 billing {"cents": 4900, "order_id": "17"}`)
	}
}

// TestNodeKilledInTheMiddle kills the example between its two statements and its commit: it waits there for a key that
// the test has taken.
func TestNodeKilledInTheMiddle(t *testing.T) {
	install(t)
	pool := pgtest.New(t)
	if _, err := pool.Exec(t.Context(), `create table orders (id text primary key, cents bigint not null)`); err != nil {
		t.Fatal(err)
	}
	topics := map[string][]string{"orders": {"billing"}}
	if err := outbox.SyncTopics(t.Context(), pool, []string{"billing"}, topics); err != nil {
		t.Fatal(err)
	}
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	_, err = outbox.Enqueue(t.Context(), tx, outbox.Message{EventType: "x", Payload: json.RawMessage(`1`),
		Destination: "billing", IdempotencyKey: "order.placed:18"})
	if err != nil {
		t.Fatal(err)
	}
	cmd := node(t, pool, "18", "1")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pgtest.Until(t, pool, `select exists (select from pg_stat_activity where datname = current_database()
		and wait_event_type = 'Lock')`)
	cmd.Process.Kill() // SIGKILL
	cmd.Wait()
	tx.Rollback(t.Context())
	pgtest.Until(t, pool, `select not exists (select from pg_stat_activity where datname = current_database()
		and backend_xid is not null)`)
	check(t, pool, "orders: ; messages: ")
	if out, err := node(t, pool, "18", "1").CombinedOutput(); err != nil {
		t.Fatalf("again: %v\n%s", err, out)
	}
	check(t, pool, `orders: 18 1; messages: order:18 billing {"cents": 1, "order_id": "18"}`)
}
