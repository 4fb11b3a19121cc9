package console

import (
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/operate/logins"
)

// connect opens a pool of two connections, as the console has them.
func connect(t *testing.T, address string) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(address)
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns = 2
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// TestReadOnlyDatabase: where the database takes no change no page offers one, and none is tried. That ends with it.
func TestReadOnlyDatabase(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	address := pool.Config().ConnString()
	execute(t, pool, `insert into outbox (tenant_id, type, dedupe_key, destination, payload, status, finished_at)
		values (1, 'x', 'k', 'crm', '{}', 'dead', now())`)
	const setSQL = `do $$ begin execute format('alter database %I set default_transaction_read_only = on',
		current_database()); end $$`
	execute(t, pool, setSQL)
	t.Cleanup(pool.Reset)
	own := connect(t, address)
	b := as(t, Operator, DefaultConfig(), Sources{DB: own, Changes: connect(t, address)})
	page := b.get("/messages/1")
	wants(t, page, "read-only", "the database is read-only")
	if strings.Contains(page, "messages/1/retry") {
		t.Error("a page offers what can't be done")
	}
	why := url.Values{"why": {"test"}}
	if status, body := b.post("/v1/messages/1/retry", why); status != http.StatusServiceUnavailable ||
		!strings.Contains(body, "the database is read-only") {
		t.Errorf("an action on a read-only database: %d\n%s", status, body)
	}
	var can capabilities
	if b.json("/v1/capabilities", &can); !can.ReadOnly {
		t.Error("the capabilities say that the console is not read-only")
	}
	execute(t, pool, strings.Replace(setSQL, "set default_transaction_read_only = on",
		"reset default_transaction_read_only", 1))
	pgtest.Eventually(t, "a page offers actions again", func() bool {
		return strings.Contains(b.get("/messages/1"), "messages/1/retry")
	})
}

// TestPostgresAway: every page answers in time while PostgreSQL is silent, and works again without a restart.
func TestPostgresAway(t *testing.T) {
	t.Parallel()
	direct := pgtest.New(t)
	proxy := pgtest.NewProxy(t, direct.Config().ConnString())
	pool := connect(t, proxy.URL())
	c, server, client := serveConsole(t, DefaultConfig(), Sources{DB: pool})
	b := logIn(t, c, server, client, Viewer)
	b.get("/messages")
	proxy.SetBlackHole(true)
	var asked sync.WaitGroup
	for _, row := range c.routes {
		if row.method != http.MethodGet || row.raw != nil {
			continue
		}
		for _, path := range row.paths() {
			asked.Go(func() {
				start := time.Now()
				r, err := client.Get(server.URL + path)
				if err != nil {
					t.Error(err)
					return
				}
				r.Body.Close()
				if took := time.Since(start); took > 2500*time.Millisecond {
					t.Errorf("GET %s took %s while PostgreSQL is away", path, took)
				}
				if strings.HasSuffix(r.Header.Get("Location"), "login") || r.StatusCode == http.StatusUnauthorized {
					t.Errorf("GET %s: %d while PostgreSQL is away: the login has ended", path, r.StatusCode)
				}
			})
		}
	}
	asked.Wait()
	proxy.SetBlackHole(false)
	pgtest.Eventually(t, "pages work again", func() bool {
		status, _ := b.ask("/messages")
		return status == http.StatusOK
	})
}

// TestLoginsOfSeveralNodes: a cookie and a link hold at every node and over a restart, until somebody ends all logins.
func TestLoginsOfSeveralNodes(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	_, one, client := serveConsole(t, DefaultConfig(), Sources{DB: pool})
	secret, err := logins.Link(t.Context(), pool, "bob", "viewer", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	r, err := client.PostForm(one.URL+"/login", url.Values{"t": {secret}})
	if err != nil {
		t.Fatal(err)
	}
	r.Body.Close()
	cookies := r.Cookies()
	if r.StatusCode != http.StatusSeeOther || len(cookies) != 1 {
		t.Fatalf("the link: %d, cookies %v", r.StatusCode, cookies)
	}
	other, err := New(DefaultConfig(), Sources{DB: pool}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if who, ok := other.cookies.who(t.Context(), cookies[0].Value); !ok || who != (Identity{"bob", Viewer}) {
		t.Errorf("another node takes the cookie for %+v: %v", who, ok)
	}
	if _, err := other.redeem(t.Context(), secret); err == nil {
		t.Error("another node takes the link again")
	}
	own := other.cookies.link()
	if err := logins.EndAll(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	pgtest.Eventually(t, "the login ends", func() bool {
		_, ok := other.cookies.who(t.Context(), cookies[0].Value)
		return !ok
	})
	if _, err := other.redeem(t.Context(), own); err == nil {
		t.Error("the link of a node's start outlives the end of all logins")
	}
}
