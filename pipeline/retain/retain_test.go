package retain

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/sourcegraph/conc/pool"

	"sluice.example/sluice/internal/pgtest"
)

func newKeeper(t *testing.T, db *pgxpool.Pool, change func(*Config)) *Keeper {
	t.Helper()
	cfg := DefaultConfig()
	if change != nil {
		change(&cfg)
	}
	k, err := New(cfg, db, NewMetrics(prometheus.NewRegistry()), slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func mustPass(t *testing.T, k *Keeper) {
	t.Helper()
	if !k.pass(t.Context()) {
		t.Fatal("a pass failed")
	}
}

func mustExec(t *testing.T, db *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := db.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// column gives one column of text, in order.
func column(t *testing.T, db *pgxpool.Pool, sql string, args ...any) string {
	t.Helper()
	rows, err := db.Query(t.Context(), sql, args...)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	values, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return strings.Join(values, " ")
}

func TestConfigNamesEveryFault(t *testing.T) {
	cfg := Config{Events: time.Hour, Outbox: -1, Processed: time.Hour}
	_, err := New(cfg, nil, nil, nil)
	if err == nil {
		t.Fatal("want an error")
	}
	for _, key := range []string{"events", "outbox", "processed"} {
		if !strings.Contains(err.Error(), "retain."+key+" is") {
			t.Errorf("error = %q; want it to name retain.%s", err, key)
		}
	}
	if _, err := New(DefaultConfig(), nil, nil, nil); err != nil {
		t.Errorf("the defaults are refused: %v", err)
	}
}

func TestRunMakesPartitionsAheadAndSurvivesAnOutage(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	proxy := pgtest.NewProxy(t, db.Config().ConnString())
	through, err := pgxpool.New(t.Context(), proxy.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(through.Close)
	k := newKeeper(t, through, nil)
	k.interval = time.Millisecond

	proxy.SetDown(true)
	ctx, stop := context.WithCancel(t.Context())
	run := pool.New().WithErrors()
	run.Go(func() error { return k.Run(ctx) })
	pgtest.Eventually(t, "the outage is counted", func() bool {
		return testutil.ToFloat64(k.metrics.failures.WithLabelValues("partitions-ahead")) > 0
	})
	proxy.SetDown(false)
	pgtest.Eventually(t, "a pass went well", func() bool { return testutil.ToFloat64(k.metrics.lastPass) > 0 })
	stop()
	if err := run.Wait(); err != nil {
		t.Fatalf("Run = %v; want nil after its context ended", err)
	}
	// Two days ahead were there before.
	if made, ahead := testutil.ToFloat64(k.metrics.made), testutil.ToFloat64(k.metrics.ahead); made != 5 || ahead != 7 {
		t.Errorf("partitions made, ahead = %v, %v; want 5, 7", made, ahead)
	}
	mustExec(t, db, `
insert into events (event_id, tenant_id, event_name, occurred_at, received_at)
select gen_random_uuid(), 1, 'x', now() + i * interval '1 day', now() from generate_series(0, 7) as i`)
}

// oldDays makes days of that age, in days, with an event each.
func oldDays(t *testing.T, db *pgxpool.Pool, ages ...int) {
	t.Helper()
	mustExec(t, db, `
select create_events_partition((now() at time zone 'UTC')::date - age) from unnest($1::integer[]) as age`, ages)
	mustExec(t, db, `
insert into events (event_id, tenant_id, event_name, occurred_at, received_at)
select gen_random_uuid(), 1, age::text, now() - age * interval '1 day', now() from unnest($1::integer[]) as age`, ages)
}

const eventsLeftSQL = `select event_name from events order by occurred_at`

const tablesLeftSQL = `
select ((now() at time zone 'UTC')::date - to_date(substr(relname, 8), 'YYYYMMDD'))::text from pg_class
where relkind = 'r' and relname ~ '^events_[0-9]{8}$'
	and relname < 'events_' || to_char((now() at time zone 'UTC')::date - 2, 'YYYYMMDD')
order by relname`

func TestDropsOldDaysOnly(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	oldDays(t, db, 3, 29, 30, 31, 32, 400)
	forever := newKeeper(t, db, nil)
	mustPass(t, forever)
	if got := column(t, db, eventsLeftSQL); got != "400 32 31 30 29 3" {
		t.Fatalf("events left by the defaults = %s; want all", got)
	}
	k := newKeeper(t, db, func(c *Config) { c.Events = 30 * day })
	mustPass(t, k)
	// The day that is 30 days ago is in part younger than that.
	if got := column(t, db, eventsLeftSQL); got != "30 29 3" {
		t.Errorf("events left = %s; want those of 30 days and less", got)
	}
	if got := column(t, db, tablesLeftSQL); got != "30 29 3" {
		t.Errorf("partitions left = %s; want those of 30 days and less", got)
	}
	if n := testutil.ToFloat64(k.metrics.dropped); n != 3 {
		t.Errorf("partitions dropped = %v, want 3", n)
	}
}

func TestDropHoldsUpNobodyAndIsFinishedAfterACut(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	db := pgtest.New(t)
	oldDays(t, db, 40, 41, 42)
	// What a pass leaves that is killed between its two statements.
	mustExec(t, db, `do $$ begin execute format('alter table events detach partition %I',
		'events_' || to_char((now() at time zone 'UTC')::date - 41, 'YYYYMMDD')); end $$`)
	report, err := db.Begin(ctx) // somebody's long look at all events
	if err != nil {
		t.Fatal(err)
	}
	defer report.Rollback(context.Background())
	if _, err := report.Exec(ctx, `select count(*) from events`); err != nil {
		t.Fatal(err)
	}

	k := newKeeper(t, db, func(c *Config) { c.Events = 30 * day })
	k.lockTimeout = 50 * time.Millisecond
	cut, cancel := context.WithCancel(ctx)
	passes := pool.New()
	passes.Go(func() { k.pass(cut) })
	pgtest.Eventually(t, "the oldest day waits for the report", func() bool {
		return column(t, db, `select inhrelid::regclass::text from pg_inherits where inhdetachpending`) != ""
	})
	mustExec(t, db, `
insert into events (event_id, tenant_id, event_name, occurred_at, received_at)
values (gen_random_uuid(), 1, 'now', now(), now())`)
	mustExec(t, db, `select create_events_partition((now() at time zone 'UTC')::date + 30)`)
	if got := column(t, db, eventsLeftSQL); got != "40 now" {
		t.Errorf("events seen while a day is being dropped = %s; want 40 now", got)
	}
	cancel()
	passes.Wait()
	if got := column(t, db, tablesLeftSQL); got != "42 41 40" {
		t.Fatalf("tables after the cut = %s; want all three still there", got)
	}
	pgtest.Eventually(t, "the cut session is gone, and with it the turn to retain", func() bool {
		return column(t, db, `select pid::text from pg_locks where locktype = 'advisory' and database =
			(select oid from pg_database where datname = current_database())`) == ""
	})

	if k.pass(ctx) || testutil.ToFloat64(k.metrics.failures.WithLabelValues("events")) != 1 {
		t.Error("a day was dropped that a report may still look at, or the failure was not counted")
	}
	if _, err := report.Exec(ctx, `select count(*) from events`); err != nil {
		t.Fatalf("the report, after a pass gave up on its day: %v", err)
	}
	if err := report.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	mustPass(t, k)
	if got := column(t, db, tablesLeftSQL); got != "" {
		t.Errorf("tables left = %s; want none", got)
	}
	if got := column(t, db, eventsLeftSQL); got != "now" {
		t.Errorf("events left = %s; want the new one", got)
	}
}

// fillOutbox makes a row for each status and age in days, ordered by age as they would have been made.
func fillOutbox(t *testing.T, db *pgxpool.Pool) {
	t.Helper()
	mustExec(t, db, `
insert into outbox (tenant_id, type, dedupe_key, destination, payload, status, created_at, finished_at)
select 1, status || age, status || age, 'd', '{}', status, now() - age * interval '1 day',
    case when status in ('sent', 'skipped', 'dead') then now() - age * interval '1 day' end
from unnest(array[40, 35, 20, 10, 8, 6, 0]) as age,
    unnest(array['pending', 'failed', 'sent', 'skipped', 'dead']) as status
order by age desc, status`)
}

const outboxLeftSQL = `select type from outbox order by message_id`

func TestPrunesTheOutbox(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	fillOutbox(t, db)
	busy, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Rollback(context.Background())
	if _, err := busy.Exec(t.Context(), `select from outbox where type = 'sent40' for update`); err != nil {
		t.Fatal(err)
	}
	k := newKeeper(t, db, nil)
	k.batchRows = 3
	mustPass(t, k)
	const want = "failed40 pending40 failed35 pending35 dead20 failed20 pending20 dead10 failed10 pending10 " +
		"dead8 failed8 pending8 dead6 failed6 pending6 sent6 skipped6 dead0 failed0 pending0 sent0 skipped0"
	if got := column(t, db, `select type from outbox where type <> 'sent40' order by message_id`); got != want {
		t.Errorf("outbox = %s\nwant %s", got, want)
	}
	if got := column(t, db, `select type from outbox where type = 'sent40'`); got != "sent40" {
		t.Error("a row that somebody held was deleted")
	}
	if err := busy.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustPass(t, k)
	if got := column(t, db, outboxLeftSQL); got != want {
		t.Errorf("outbox = %s\nwant %s", got, want)
	}
	if n := testutil.ToFloat64(k.metrics.pruned.WithLabelValues("outbox")); n != 12 {
		t.Errorf("rows counted = %v, want 12", n)
	}
}

func TestPrunesTheOutboxByEachPeriodAlone(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name         string
		outbox, dead time.Duration
		finished     string
	}{
		{"for ever", 0, 0, "dead40 sent40 dead20 sent20 dead0 sent0"},
		{"sent only", 7 * day, 0, "dead40 dead20 dead0 sent0"},
		{"dead only", 0, 30 * day, "sent40 dead20 sent20 dead0 sent0"},
		{"dead sooner than sent", 30 * day, 7 * day, "sent20 dead0 sent0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			fillOutbox(t, db)
			k := newKeeper(t, db, func(cfg *Config) { cfg.Outbox, cfg.Dead, cfg.Processed = c.outbox, c.dead, 0 })
			k.batchRows = 2
			mustPass(t, k)
			got := column(t, db, `
select type from outbox where type = any ('{sent40,dead40,sent20,dead20,sent0,dead0}') order by message_id`)
			if got != c.finished {
				t.Errorf("finished messages left = %s; want %s", got, c.finished)
			}
		})
	}
}

// A dead message stays as long as others of its subject may wait for it, however long that takes.
func TestKeepsDeadMessagesThatOthersWaitFor(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	mustExec(t, db, `
insert into outbox (tenant_id, type, subject_key, dedupe_key, destination, payload, status, created_at, finished_at)
select 1, subject || ' ' || status || ' ' || destination, subject, gen_random_uuid()::text, destination, '{}', status,
    now() - interval '90 days', case when status <> 'pending' then now() - interval '89 days' end
from (values
    ('a', 'dead', 'crm'), ('a', 'pending', 'crm'), ('a', 'dead', 'mail'),
    ('b', 'pending', 'crm'), ('b', 'dead', 'crm'), ('b', 'sent', 'crm'),
    ('', 'dead', 'crm'), ('', 'pending', 'crm')) as v (subject, status, destination)`)
	mustPass(t, newKeeper(t, db, nil))
	const want = "a dead crm, a pending crm, b pending crm,  pending crm"
	if got := column(t, db, `select string_agg(type, ', ' order by message_id) from outbox`); got != want {
		t.Errorf("outbox = %s\nwant %s", got, want)
	}
	mustExec(t, db, `update outbox set status = 'sent', finished_at = now() where status = 'pending'`)
	mustPass(t, newKeeper(t, db, nil))
	if got := column(t, db, `select count(*)::text from outbox where status = 'dead'`); got != "0" {
		t.Errorf("%s dead messages are left that nobody waits for", got)
	}
}

func TestPrunesByAge(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	mustExec(t, db, `
insert into quarantine (tenant_id, event_id, occurred_at, quarantined_at, event, sqlstate, reason)
select 1, gen_random_uuid(), now(), now() - age * interval '1 day', '', '22P05', age::text
from unnest(array[0, 89, 91, 92, 93]) as age`)
	mustExec(t, db, `
insert into processed_messages (consumer, message_id, processed_at)
select 'c', age, now() - age * interval '1 day' from unnest(array[0, 89, 91, 92, 93]) as age`)
	mustExec(t, db, `
insert into outbox_attempts (message_id, attempt, started_at, latency_seconds, status)
select age, 1, now() - age * interval '1 day', 0.1, 'failed' from unnest(array[0, 6, 8, 9, 10]) as age`)
	mustExec(t, db, `
insert into operator_jobs (kind, filter, max_id, after_id, state, made_at, actor, why)
select 'retried', '{}', 1, 0, state, now() - age * interval '1 day', 'ann', age || state
from unnest(array[0, 89, 91, 92]) as age, unnest(array['done', 'cancelled', 'running']) as state`)
	k := newKeeper(t, db, nil)
	k.batchRows = 2
	mustPass(t, k)
	check := func(table, sql, want string) {
		t.Helper()
		if got := column(t, db, sql); got != want {
			t.Errorf("%s left = %s; want %s", table, got, want)
		}
	}
	check("quarantine", `select reason from quarantine order by 1`, "0 89")
	check("processed_messages", `select message_id from processed_messages order by 1`, "0 89")
	check("outbox_attempts", `select message_id::text from outbox_attempts order by 1`, "0 6")
	check("operator_jobs", `select string_agg(why, ' ' order by made_at desc, state) from operator_jobs`,
		"0cancelled 0done 0running 89cancelled 89done 89running 91running 92running")
	for table, want := range map[string]float64{
		"quarantine": 3, "processed_messages": 3, "outbox_attempts": 3, "operator_jobs": 4,
	} {
		if n := testutil.ToFloat64(k.metrics.pruned.WithLabelValues(table)); n != want {
			t.Errorf("rows of %s counted = %v, want %v", table, n, want)
		}
	}
}

func TestOneNodeAtATime(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	fillOutbox(t, db)
	oldDays(t, db, 40)
	node := func() *Keeper {
		k := newKeeper(t, db, func(c *Config) { c.Events = 30 * day })
		k.batchRows = 1
		return k
	}
	other, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Rollback(context.Background())
	if _, err := other.Exec(t.Context(), aloneSQL); err != nil {
		t.Fatal(err)
	}
	before := column(t, db, outboxLeftSQL)
	mustPass(t, node())
	if after := column(t, db, outboxLeftSQL); after != before || column(t, db, tablesLeftSQL) != "40" {
		t.Fatal("a node deleted while another one was at it")
	}
	if err := other.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	nodes := []*Keeper{node(), node(), node()}
	all := pool.New()
	for _, k := range nodes {
		all.Go(func() {
			if !k.pass(t.Context()) {
				t.Error("a pass beside others failed")
			}
		})
	}
	all.Wait()
	mustPass(t, nodes[0]) // what the others left to each other
	var rows, dropped float64
	for _, k := range nodes {
		rows += testutil.ToFloat64(k.metrics.pruned.WithLabelValues("outbox"))
		dropped += testutil.ToFloat64(k.metrics.dropped)
	}
	if rows != 12 || dropped != 1 || column(t, db, tablesLeftSQL) != "" {
		t.Errorf("all nodes together deleted %v rows and %v days; want 12 and 1", rows, dropped)
	}
}

// Debezium, and providers' replication, make a publication for all tables. Everything that a pass deletes from takes
// it.
func TestPrunesUnderAPublicationOfAllTables(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	oldDays(t, db, 40)
	mustExec(t, db, `create publication everything for all tables`) // wal_level makes no difference here
	mustExec(t, db, `
insert into outbox (tenant_id, type, dedupe_key, destination, payload, status, finished_at)
    values (1, 't', 'k', 'crm', '{}', 'sent', now() - interval '100 days');
insert into outbox_attempts (message_id, started_at, latency_seconds, status)
    values (1, now() - interval '100 days', 1, 'failed');
insert into quarantine values (1, gen_random_uuid(), now(), now() - interval '100 days', '{}', '22P05', 'r');
insert into processed_messages values ('c', 'm', now() - interval '100 days')`)
	k := newKeeper(t, db, func(c *Config) { c.Events = 30 * day })
	if !k.pass(t.Context()) {
		t.Error("the pass failed")
	}
	for _, table := range []string{"outbox", "outbox_attempts", "quarantine", "processed_messages"} {
		if got := column(t, db, `select count(*)::text from `+table); got != "0" {
			t.Errorf("%s has %s rows; want 0", table, got)
		}
	}
	if got := testutil.ToFloat64(k.metrics.dropped); got != 1 {
		t.Errorf("partitions dropped = %v, want 1", got)
	}
	if testutil.ToFloat64(k.metrics.lastPass) == 0 {
		t.Error("the last pass is not noted")
	}
}

// owner is another stage with one table.
type owner struct{}

func (owner) Tables() []string { return []string{"theirs"} }

func (owner) Prune(context.Context, pgx.Tx, string, int) (gone int64, more bool, err error) {
	return 0, false, nil
}

// Every task has its series at 0 before the first pass, so that its first failure is a change.
func TestSeriesAreThereFromTheStart(t *testing.T) {
	t.Parallel()
	metrics, log := NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler)
	k, err := New(DefaultConfig(), pgtest.New(t), metrics, log, owner{})
	if err != nil {
		t.Fatal(err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if err := k.Run(ended); err != nil {
		t.Fatal(err)
	}
	// Two tasks of partitions, and one for each table.
	tables := len(k.tables())
	if got := testutil.CollectAndCount(k.metrics.failures); got != tables+2 || tables < 5 {
		t.Errorf("%d series of failures before the first pass, want %d", got, tables+2)
	}
	if got := testutil.CollectAndCount(k.metrics.pruned); got != tables {
		t.Errorf("%d series of pruned rows before the first pass, want %d", got, tables)
	}
}
