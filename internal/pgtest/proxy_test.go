package pgtest

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

func proxiedPool(t *testing.T) (*Proxy, *pgxpool.Pool) {
	t.Helper()
	direct := New(t)
	if _, err := direct.Exec(t.Context(), `create table seen (id integer)`); err != nil {
		t.Fatal(err)
	}
	proxy := NewProxy(t, direct.Config().ConnString())
	pool, err := pgxpool.New(t.Context(), proxy.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return proxy, pool
}

// insert writes a row in a transaction of its own.
func insert(ctx context.Context, pool *pgxpool.Pool) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `insert into seen values ($1)`, 1)
		return err
	})
}

func count(t *testing.T, pool *pgxpool.Pool) (n int) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), `select count(*) from seen`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestProxyCutsAtTheCommit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		action Action
		match  func(Message) bool
		rows   int
	}{
		{"the client's commit is lost", CutBefore, func(m Message) bool { return m.SQL() == "commit" }, 0},
		{"the server's answer is lost", CutBefore, func(m Message) bool { return m.Tag() == "COMMIT" }, 1},
		{"cut after the insert", CutAfter, func(m Message) bool { return m.Tag() == "INSERT 0 1" }, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			proxy, pool := proxiedPool(t)
			hook, done := Once(c.action, c.match)
			proxy.OnMessage(hook)
			if err := insert(t.Context(), pool); err == nil {
				t.Error("the transaction succeeded over a connection that was cut")
			}
			select {
			case <-done:
			default:
				t.Error("no message matched")
			}
			if n := count(t, pool); n != c.rows {
				t.Errorf("rows = %d, want %d", n, c.rows)
			}
			if err := insert(t.Context(), pool); err != nil {
				t.Errorf("after the cut: %v", err)
			}
		})
	}
}

func TestProxyBlackHole(t *testing.T) {
	t.Parallel()
	proxy, pool := proxiedPool(t)
	if err := insert(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	proxy.SetBlackHole(true)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := insert(ctx, pool); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("insert through a black hole = %v; want the deadline's error", err)
	}
	proxy.SetBlackHole(false)
	if err := insert(t.Context(), pool); err != nil {
		t.Fatalf("insert after the black hole: %v", err)
	}
	if n := count(t, pool); n != 2 {
		t.Fatalf("rows = %d, want 2", n)
	}
}

func TestProxyCutAndDown(t *testing.T) {
	t.Parallel()
	proxy, pool := proxiedPool(t)
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	proxy.SetDown(true)
	if err := conn.Ping(t.Context()); err != nil {
		t.Fatalf("SetDown broke a connection that there was: %v", err)
	}
	proxy.Cut()
	if err := conn.Ping(t.Context()); err == nil {
		t.Fatal("Cut left the connection alive")
	}
	if c, err := pgx.Connect(t.Context(), proxy.URL()); err == nil {
		c.Close(t.Context())
		t.Fatal("connected through a proxy that is down")
	}
	proxy.SetDown(false)
	if err := insert(t.Context(), pool); err != nil {
		t.Fatalf("insert after the proxy is up again: %v", err)
	}
}

func TestProxyOfAServerThatIsAway(t *testing.T) {
	t.Parallel()
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := "postgres://x@" + gone.Addr().String() + "/x"
	gone.Close()
	if c, err := pgx.Connect(t.Context(), NewProxy(t, address).URL()); err == nil {
		c.Close(t.Context())
		t.Fatal("connected to a server that is not there")
	}
}
