package nodes

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline"
)

func register(t *testing.T, pool *pgxpool.Pool, reg *prometheus.Registry, name string) *Self {
	t.Helper()
	s := New(Identity{ID: pipeline.NewUUIDv4(), Name: name, Address: "127.0.0.1:9090", Version: "v1",
		Roles: []string{"ingest", "deliver"}, Writes: true}, pool, reg, slog.New(slog.DiscardHandler))
	s.ReportRules(func() string { return "abc" })
	for range 2 { // a start that is tried again
		if err := s.Register(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// start runs a node until the test ends or the returned func is called.
func start(t *testing.T, pool *pgxpool.Pool, reg *prometheus.Registry, name string) (*Self, func()) {
	t.Helper()
	s := register(t, pool, reg, name)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	stop := func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	return s, stop
}

func list(t *testing.T, pool *pgxpool.Pool) []Node {
	t.Helper()
	all, err := List(t.Context(), pool)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// A node shows how it is, and whether it runs.
func TestNodes(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	reg := prometheus.NewRegistry()
	gauge := func(name string, v float64, labels prometheus.Labels) {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, ConstLabels: labels})
		reg.MustRegister(g)
		g.Set(v)
	}
	gauge("sluice_buffer_capacity_bytes", 200, nil)
	gauge("sluice_buffer_used_bytes", 50, nil)
	gauge("process_resident_memory_bytes", 64<<20, nil)
	gauge("sluice_deliver_paused", 0, prometheus.Labels{"destination": "erp"})
	gauge("sluice_deliver_breaker_open", 0, prometheus.Labels{"destination": "erp"})
	gauge("sluice_deliver_paused", 1, prometheus.Labels{"destination": "crm"})
	gauge("sluice_deliver_breaker_open", 1, prometheus.Labels{"destination": "bi"})

	a, stopA := start(t, pool, reg, "a")
	_, stopB := start(t, pool, prometheus.NewRegistry(), "b")
	a.Tuned(7, json.RawMessage(`{"refused": []}`))
	pgtest.Until(t, pool, `select count(*) = 2 and max(applied_revision) = 7 from sluice_processes where state <> '{}'`)
	all := list(t, pool)
	if len(all) != 2 || all[0].Name != "a" || all[1].Name != "b" || !all[0].Running || !all[1].Running {
		t.Fatalf("nodes %+v, want a and b, running", all)
	}
	n := all[0]
	if n.AppliedRevision != 7 || n.RulesHash != "abc" || !slices.Equal(n.Roles, []string{"ingest", "deliver"}) ||
		n.State.BufferFill == nil || *n.State.BufferFill != 0.25 || string(n.State.Tuning) != `{"refused": []}` ||
		!slices.Equal(n.State.Gates, []Gate{{Destination: "bi", Open: true}, {Destination: "crm", Paused: true}}) {
		t.Errorf("node a: %+v", n)
	}
	if b := all[1].State; b.BufferFill != nil || b.Held != nil {
		t.Errorf("node b has a state of roles that it has not: %+v", b)
	}
	for scope, want := range map[string]int{"": 2, "a": 1, n.ID.String(): 1, "c": 0} {
		if got := Named(all, scope); len(got) != want {
			t.Errorf("%q means %d nodes, want %d", scope, len(got), want)
		}
	}
	stopA()
	stopB()
	pgtest.Until(t, pool, `select count(*) = 2 from sluice_processes where ended_at is not null`)
	const killedSQL = `update sluice_processes set ended_at = null, seen_at = now() - interval '20 seconds'
		where name = 'b'`
	if _, err := pool.Exec(t.Context(), killedSQL); err != nil {
		t.Fatal(err)
	}
	all = list(t, pool)
	if all[0].Running || all[1].Running || all[0].EndedAt == nil || all[1].EndedAt != nil {
		t.Errorf("after a has ended and b was killed: %+v", all)
	}
	var out strings.Builder
	if err := (Answer{all}).Print(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"a  " + n.ID.String() + "  ended ", "  not seen for 20s"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
	if _, err := pool.Exec(t.Context(), `update sluice_processes set seen_at = now() - interval '25 hours'`); err != nil {
		t.Fatal(err)
	}
	if all = list(t, pool); len(all) != 0 {
		t.Errorf("nodes of the day before: %+v", all)
	}
}

// A node that was forgotten meanwhile, as one that was suspended for long, is there again.
func TestForgottenNodeIsThereAgain(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	self, stop := start(t, pool, prometheus.NewRegistry(), "a")
	defer stop()
	if _, err := pool.Exec(t.Context(), `delete from sluice_processes`); err != nil {
		t.Fatal(err)
	}
	pgtest.Eventually(t, "it is registered", func() bool {
		self.Tuned(1, nil)
		return len(list(t, pool)) == 1
	})
}

// The row is written every five seconds without end: each time in its page, and without an entry in an index. Not
// parallel: PostgreSQL keeps old versions of a row while another test's transaction is open.
func TestUpdatesStayInTheirPage(t *testing.T) {
	pool := pgtest.New(t)
	self := register(t, pool, prometheus.NewRegistry(), "a")
	for i := range 200 {
		self.Tuned(int64(i), json.RawMessage(`{"filler": "`+strings.Repeat("x", 1000)+`"}`))
		if err := self.tell(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	var pages int
	if err := pool.QueryRow(t.Context(), `select pg_relation_size('sluice_processes') / 8192`).Scan(&pages); err != nil {
		t.Fatal(err)
	}
	if pages > 2 {
		t.Errorf("200 updates of one row took %d pages, want one or two", pages)
	}
	// The statistics come a while later.
	pgtest.Until(t, pool, `select n_tup_upd >= 200 and n_tup_hot_upd >= n_tup_upd * 0.9 from pg_stat_user_tables
		where relname = 'sluice_processes'`)
}

func TestNodeThatHangsIsSeen(t *testing.T) {
	n := Node{SeenAt: time.Now().Add(-time.Minute)}
	if got := n.Word(); !strings.Contains(got, "1m") || !strings.Contains(got, "hangs") {
		t.Errorf("a node that was silent for a minute: %q", got)
	}
}
