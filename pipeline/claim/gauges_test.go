package claim

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"sluice.example/sluice/internal/pgtest"
)

// What keeps vacuum from clearing up is seen, whatever form it has: also a transaction that has written and waits,
// which has no snapshot, and one that was prepared and forgotten.
func TestOldestTransaction(t *testing.T) {
	pool := pgtest.New(t)
	q := newQueue(t, pool)
	oldest := func() float64 {
		t.Helper()
		if err := q.count(t.Context()); err != nil {
			t.Fatal(err)
		}
		return testutil.ToFloat64(q.metrics.oldest)
	}
	conn, err := pgx.Connect(t.Context(), pool.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	run := func(sql string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	if age := oldest(); age != 0 {
		t.Fatalf("%g with nothing open; want 0", age)
	}
	run(`begin`)
	if age := oldest(); age != 0 {
		t.Errorf("%g with a transaction that did nothing; want 0: it holds nothing back", age)
	}
	run(`select pg_sleep(0.05)`)
	run(`create table written (x int)`)
	first := oldest()
	if first < 0.05 {
		t.Errorf("%g with a transaction that has written and waits; want its age, at least 0.05", first)
	}
	run(`commit`)
	if age := oldest(); age != 0 {
		t.Errorf("%g after its commit; want 0", age)
	}
	run(`begin isolation level repeatable read; select 1`)
	if age := oldest(); age <= 0 {
		t.Errorf("%g with a snapshot; want its age", age)
	}
	run(`commit`)

	var most int
	if err := pool.QueryRow(t.Context(),
		`select current_setting('max_prepared_transactions')::int`).Scan(&most); err != nil {
		t.Fatal(err)
	}
	if most == 0 {
		t.Skip("this server has no prepared transactions")
	}
	run(`begin; insert into written values (1); prepare transaction 'forgotten'`)
	defer run(`rollback prepared 'forgotten'`)
	if age := oldest(); age <= 0 {
		t.Errorf("%g with a prepared transaction; want its age", age)
	}
}

// A role that may not see the transactions of others has no metric, instead of a 0, and its log names the grant.
func TestOldestTransactionIsAbsentWhereItIsHidden(t *testing.T) {
	pool := pgtest.New(t)
	exec(t, pool, `create role claim_test_blind login password 'secret' in role pg_write_all_data, pg_read_all_data`)
	t.Cleanup(func() {
		conn, err := pgx.Connect(t.Context(), pool.Config().ConnString())
		if err == nil {
			_, err = conn.Exec(t.Context(), `drop role claim_test_blind`)
		}
		if err != nil {
			t.Log(err) // the test's context has ended
		}
	})
	cfg, err := pgxpool.ParseConfig(pool.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	cfg.ConnConfig.User, cfg.ConnConfig.Password = "claim_test_blind", "secret"
	blind, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer blind.Close()
	var log strings.Builder
	q, err := New(DefaultConfig(), blind, NewMetrics(prometheus.NewRegistry()),
		slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	count := func(want int) {
		t.Helper()
		if err := q.count(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := testutil.CollectAndCount(q.metrics.oldest); got != want {
			t.Errorf("oldest_snapshot_seconds has %d series; want %d", got, want)
		}
	}
	if err := pool.Ping(t.Context()); err != nil { // a session that the role may not look into
		t.Fatal(err)
	}
	count(0)
	count(0)
	if n := strings.Count(log.String(), "grant pg_read_all_stats to claim_test_blind"); n != 1 {
		t.Errorf("the log names the grant %d times; want once:\n%s", n, log.String())
	}
	exec(t, pool, `grant pg_read_all_stats to claim_test_blind`)
	count(1)
}

// A slot says for which transaction it keeps rows and not since when: it counts for as long as that stands still.
func TestSlotsThatStandStill(t *testing.T) {
	s, now := slots{}, time.Now()
	check := func(want float64, held ...string) {
		t.Helper()
		if got := s.oldest(now, held); got != want {
			t.Errorf("oldest(%v) = %g; want %g", held, got, want)
		}
	}
	check(0)
	check(0, "a 700", "b 800")
	now = now.Add(time.Minute)
	check(60, "a 700", "b 801")
	now = now.Add(time.Minute)
	check(60, "b 801")
	check(0, "a 700") // it went on, and came back
}

// A count costs what it may cost, and not what the backlog is: it reads as many entries as it says, along the indexes.
func TestBacklogIsCountedAtBoundedCost(t *testing.T) {
	pool := pgtest.New(t)
	exec(t, pool, `insert into outbox (tenant_id, type, dedupe_key, destination, payload, status, run_after)
		select 1, 't', gen_random_uuid()::text, d, '{}', status, now() + after from generate_series(1, 20000),
		(values ('crm', 'pending', interval '-1 hour'), ('crm', 'failed', '1 hour'), ('crm', 'dead', '0'),
			('sales', 'sent', '0')) as v (d, status, after)`)
	insert(t, pool, "mail", 5)
	exec(t, pool, `analyze outbox`)
	q := newQueue(t, pool)
	if err := q.count(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][2]float64{"due": {10_001, 5}, "scheduled": {10_001, 0}, "dead": {10_001, 0}} {
		g := map[string]*prometheus.GaugeVec{"due": q.metrics.due, "scheduled": q.metrics.scheduled,
			"dead": q.metrics.dead}[name]
		for i, d := range []string{"crm", "mail"} {
			if got := testutil.ToFloat64(g.WithLabelValues(d)); got != want[i] {
				t.Errorf("%s{%s} = %g; want %g", name, d, got, want[i])
			}
		}
	}
	if age := testutil.ToFloat64(q.metrics.oldestDue.WithLabelValues("crm")); age < 3600 || age > 7200 {
		t.Errorf("oldest_due_seconds = %g; want a little more than 3600", age)
	}
	if at := testutil.ToFloat64(q.metrics.counted); time.Since(time.Unix(int64(at), 0)) > time.Minute {
		t.Errorf("counted_timestamp_seconds = %g; want the time of this count", at)
	}
	plan := explain(t, pool, backlogSQL, CountedUpTo)
	if strings.Contains(plan, "Seq Scan") || strings.Contains(plan, "Bitmap") ||
		strings.Contains(plan, "Sort Key: outbox") {
		t.Errorf("the backlog is counted by reading the whole table:\n%s", plan)
	}
}

// The series of configured destinations are there from the start, and those of others go with what they count.
func TestSeriesOfDestinations(t *testing.T) {
	m := NewMetrics(prometheus.NewRegistry(), "crm", "mail")
	series := func(want string) {
		t.Helper()
		reg := prometheus.NewRegistry()
		reg.MustRegister(m.due)
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, metric := range families[0].GetMetric() {
			got += fmt.Sprintf("%s %g ", metric.GetLabel()[0].GetValue(), metric.GetGauge().GetValue())
		}
		if got != want {
			t.Errorf("series: %s; want %s", got, want)
		}
	}
	series("crm 0 mail 0 ")
	m.backlog([]Backlog{{Destination: "crm", Due: 3}, {Destination: "gone", Due: 7}})
	series("crm 3 gone 7 mail 0 ")
	m.backlog([]Backlog{{Destination: "mail", Due: 1}})
	series("crm 0 mail 1 ")
	for name, want := range map[string]int{"finished": 4, "errors": 6, "leases": 2} {
		c := map[string]*prometheus.CounterVec{"finished": m.finished, "errors": m.errors, "leases": m.leases}[name]
		if got := testutil.CollectAndCount(c); got != want {
			t.Errorf("%s has %d series from the start; want %d", name, got, want)
		}
	}
	if got := testutil.CollectAndCount(NewNotifierMetrics(prometheus.NewRegistry()).failed); got != 2 {
		t.Errorf("failures of notifications have %d series from the start; want 2", got)
	}
}
