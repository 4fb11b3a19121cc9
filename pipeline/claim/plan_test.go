package claim

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline"
)

// Claim and Finish read outbox by the indexes they were written for, before and after the table was analyzed.
func TestPlans(t *testing.T) {
	pool := pgtest.New(t)
	for _, state := range []string{"not analyzed", "analyzed"} {
		switch state {
		case "not analyzed":
			exec(t, pool, `insert into outbox (tenant_id, type, dedupe_key, destination, payload, status, finished_at)
				select 1, 'welcome', i::text, 'crm', '{}', 'sent', now() from generate_series(1, 50000) i`)
			insert(t, pool, "crm", 3000)
		case "analyzed":
			exec(t, pool, `analyze outbox`)
		}
		plan := explain(t, pool, claimSQL, []string{"crm", "sales"}, []int32{500, 500}, 60.0, pipeline.NewUUIDv4(),
			[]time.Time{{}, {}}, []int64{0, 0})
		if !strings.Contains(plan, "Index Scan using outbox_claimable on outbox m ") ||
			strings.Contains(plan, "Sort Key") || !strings.Contains(plan, "AND (ROW(run_after, message_id) > ROW(") ||
			!byKey.MatchString(plan) || strings.Contains(plan, "Seq Scan") {
			t.Errorf("claim, %s, is not planned as one walk along outbox_claimable and lookups by key:\n%s", state,
				plan)
		}
		ids, tokens := make([]int64, 500), slices.Repeat([]string{pipeline.NewUUIDv4().String()}, 500)
		for name, plan := range map[string]string{
			"sent": explain(t, pool, sentSQL, ids, tokens, make([]int32, 500), make([]float64, 500),
				make([]float64, 500), make([]string, 500)),
			"finish": explain(t, pool, finishSQL, ids, tokens, make([]string, 500), make([]float64, 500),
				make([]string, 500), make([]int32, 500), make([]float64, 500), make([]float64, 500), make([]int32, 500),
				make([]string, 500)),
		} {
			if !byKey.MatchString(plan) || strings.Contains(plan, "Seq Scan on outbox ") {
				t.Errorf("%s, %s, is not planned as lookups by key:\n%s", name, state, plan)
			}
		}
	}
}

var byKey = regexp.MustCompile(`Index Scan (on|using) outbox_pkey`)

func explain(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) string {
	t.Helper()
	rows, err := pool.Query(t.Context(), "explain "+sql, args...)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var b strings.Builder
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(&b, line)
	}
	if rows.Err() != nil {
		t.Fatal(rows.Err())
	}
	return b.String()
}

// A plan that was right for an empty table is not kept for a full one.
func TestPlansFollowTheTable(t *testing.T) {
	pool := pgtest.New(t)
	q := newQueue(t, pool)
	for range 10 { // the planner settles after five times, where it may keep a plan
		insertMore(t, pool, 1)
		finish(t, q, result(claim(t, q, "crm", 500)[0], pipeline.Sent))
	}
	insertMore(t, pool, 20_000)
	seqScans := func() (n int) {
		var claims int
		for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); {
			err := pool.QueryRow(t.Context(), `select seq_scan, (select idx_scan from pg_stat_user_indexes
				where indexrelname = 'outbox_claimable')
				from pg_stat_user_tables where relname = 'outbox'`).Scan(&n, &claims)
			if err != nil {
				t.Fatal(err)
			}
			if claims >= int(testutil.ToFloat64(q.metrics.claims)) { // statistics arrive with delay
				return n
			}
			exec(t, pool, `select pg_sleep(0.05)`)
		}
		t.Fatalf("%d scans of outbox_claimable in the statistics; want %v", claims,
			testutil.ToFloat64(q.metrics.claims))
		return 0
	}
	before := seqScans()
	for range 5 {
		var results []pipeline.Result
		for _, l := range claim(t, q, "crm", 500) {
			results = append(results, result(l, pipeline.Sent))
		}
		finish(t, q, results...)
	}
	if after := seqScans(); after != before {
		t.Errorf("claims and finishes read the whole table %d times", after-before)
	}
}

func insertMore(t *testing.T, pool *pgxpool.Pool, n int) {
	t.Helper()
	exec(t, pool, `insert into outbox (tenant_id, type, dedupe_key, destination, payload)
		select 1, 'welcome', gen_random_uuid()::text, 'crm', '{}' from generate_series(1, $1)`, n)
}

// A claim writes no index entry: its updates are HOT.
func TestClaimIsHOT(t *testing.T) {
	pool := pgtest.New(t)
	q := newQueue(t, pool)
	insert(t, pool, "crm", 1000)
	for i := range 2 {
		fromTheBeginning(q)
		if n := len(claim(t, q, "crm", 1000)); n != 1000 {
			t.Fatalf("claim %d got %d messages; want 1000", i, n)
		}
		exec(t, pool, `vacuum outbox`)
		if i == 0 {
			// Setting the time back is an update too, a HOT one.
			exec(t, pool, `update outbox set locked_until = now() - interval '1 second'`)
			exec(t, pool, `vacuum outbox`)
		}
	}
	deadline := time.Now().Add(30 * time.Second)
	for {
		var updated, hot int
		err := pool.QueryRow(t.Context(), `select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables
			where relname = 'outbox'`).Scan(&updated, &hot)
		if err != nil {
			t.Fatal(err)
		}
		if updated == 3000 { // statistics arrive with delay
			if hot < 2700 {
				t.Errorf("%d of %d updates were HOT; want nearly all", hot, updated)
			}
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d updates in the statistics; want 3000", updated)
		}
		exec(t, pool, `select pg_sleep(0.05)`)
	}
}
