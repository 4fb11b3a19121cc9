package evaluate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"sluice.example/sluice/internal/pgsession"
	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline"
	"sluice.example/sluice/pipeline/rules"
)

// world is a database with a clock that only the test moves, and what decides in it.
type world struct {
	t      testing.TB
	db     *pgxpool.Pool
	now    time.Time
	engine *Engine
	sweep  *Sweeper
}

// newWorld makes unqualified now() in every statement, and the default of when a message is due, mean the test's clock:
// a schema before pg_catalog has its own.
func newWorld(t testing.TB, text string) *world {
	t.Helper()
	return newWorldIn(t, pgx.QueryExecModeCacheStatement, text)
}

// modes are the ways in which pgx may talk to PostgreSQL; the last two are for poolers without prepared statements.
var modes = []pgx.QueryExecMode{
	pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
}

func newWorldIn(t testing.TB, mode pgx.QueryExecMode, text string) *world {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(pgtest.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	cfg.ConnConfig.DefaultQueryExecMode = mode
	pgsession.ConfigurePool(cfg)
	cfg.ConnConfig.RuntimeParams["search_path"] = "clock, pg_catalog, public"
	db, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	w := &world{t: t, db: db}
	w.exec(`create schema clock`)
	w.exec(`create table clock.moment (at timestamptz)`)
	w.exec(`insert into clock.moment values (pg_catalog.now())`)
	w.exec(`create function clock.now() returns timestamptz language sql stable as 'select at from clock.moment'`)
	w.exec(`alter table outbox alter column run_after set default clock.now()`)
	w.set(time.Now().UTC().Truncate(time.Minute))
	w.restart(text)
	return w
}

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	if _, err := w.db.Exec(context.Background(), sql, args...); err != nil {
		w.t.Fatalf("%v\nin %s", err, sql)
	}
}

func (w *world) set(now time.Time) {
	w.t.Helper()
	w.now = now
	w.exec(`update clock.moment set at = $1`, now)
}

func (w *world) advance(d time.Duration) { w.t.Helper(); w.set(w.now.Add(d)) }

// restart starts with nothing but the rules and what is in the database.
func (w *world) restart(text string) {
	w.t.Helper()
	w.engine = w.newEngine(text)
	w.sweep = NewSweeper(w.engine, w.db, NewSweepMetrics(prometheus.NewRegistry()))
	w.sweep.sweepBatch = 7 // so that several transactions are needed
}

func (w *world) newEngine(text string) *Engine {
	w.t.Helper()
	engine := w.withoutRules()
	engine.Use(w.load(text))
	return engine
}

func (w *world) withoutRules() *Engine {
	w.t.Helper()
	engine, err := New(DefaultConfig(), NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler), nil)
	if err != nil {
		w.t.Fatal(err)
	}
	return engine
}

func (w *world) use(text string) { w.t.Helper(); w.engine.Use(w.load(text)) }

func (w *world) load(text string) *rules.Set {
	w.t.Helper()
	dir := w.t.TempDir()
	for name, text := range map[string]string{"rules.yaml": "version: 1\nruleset: t\ndefaults: {owner: me, response: " +
		"r.md}\nrules:\n" + text, "r.md": "x"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			w.t.Fatal(err)
		}
	}
	set, err := rules.Load(filepath.Join(dir, "rules.yaml"), rules.DefaultOptions())
	if err != nil {
		w.t.Fatalf("%v\n%s", err, text)
	}
	return set
}

// event is an event of a session that is received now.
func (w *world) event(name, session string, ago time.Duration) pipeline.Event {
	ev := pipeline.Event{ID: pipeline.NewUUIDv7(w.now), Tenant: 1, Name: name, SessionID: session,
		OccurredAt: w.now.Add(-ago), ReceivedAt: w.now, Properties: []byte(`{"sku":"s1","amount_cents":100}`)}
	return ev
}

// ingest stores a batch as copyin does: the first of equal events only.
func (w *world) ingest(events ...pipeline.Event) {
	w.t.Helper()
	if err := w.store(w.engine, events, func() {}); err != nil {
		w.t.Fatal(err)
	}
}

// store is ingest with other rules; underWay is called before COMMIT.
func (w *world) store(engine *Engine, events []pipeline.Event, underWay func()) error {
	ctx := context.Background()
	plan := engine.Decide(events)
	err := pgx.BeginFunc(ctx, w.db, func(tx pgx.Tx) error {
		stored := make([]bool, len(events))
		for i, e := range events {
			tag, err := tx.Exec(ctx, `insert into events (event_id, tenant_id, event_name, occurred_at, session_id, user_id,
				properties, received_at)
				values ($1, $2, $3, $4, $5, nullif($6, ''), $7, $8) on conflict do nothing`, e.ID, e.Tenant, e.Name, e.OccurredAt,
				e.SessionID, e.UserID, string(e.Properties), e.ReceivedAt)
			if err != nil {
				return err
			}
			stored[i] = tag.RowsAffected() == 1
		}
		if plan != nil {
			if err := plan.Record(ctx, tx, stored); err != nil {
				return err
			}
		}
		underWay()
		return nil
	})
	if err == nil && plan != nil {
		plan.Committed()
	}
	return err
}

func (w *world) tick() {
	w.t.Helper()
	if err := errors.Join(w.sweep.Fill(context.Background()), w.sweep.Sweep(context.Background())); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) texts(sql string, args ...any) []string {
	w.t.Helper()
	rows, err := w.db.Query(context.Background(), sql, args...)
	if err != nil {
		w.t.Fatal(err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

func (w *world) want(sql string, want ...string) {
	w.t.Helper()
	if got := w.texts(sql); strings.Join(got, "\n") != strings.Join(want, "\n") {
		w.t.Fatalf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// leases are those of all messages.
func (w *world) leases() (leases []pipeline.Lease) {
	for _, id := range w.texts(`select message_id::text from outbox order by message_id`) {
		l := pipeline.Lease{}
		fmt.Sscan(id, &l.ID)
		l.Rule = true
		leases = append(leases, l)
	}
	return leases
}

// cart is the shop's cart recovery; lines are added to it.
func cart(lines ...string) string {
	return `  - id: cart
    kind: absence
    trigger: {on: add_to_cart}
    cancel: {on: purchase_completed}
    key: event.session_id
    within: 60m
    grace: 5m
    send_to: crm
    payload: {session: key, sku: trigger.properties.sku, since: since}
    ` + strings.Join(lines, "\n    ") + "\n"
}

func TestAbandonedCart(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(mode.String(), func(t *testing.T) { t.Parallel(); abandonedCart(t, mode) })
	}
}

func abandonedCart(t *testing.T, mode pgx.QueryExecMode) {
	w := newWorldIn(t, mode, cart())
	w.tick()
	start := w.now
	w.ingest(w.event("add_to_cart", "leaves", 0), w.event("add_to_cart", "buys", 0), w.event("add_to_cart", "returns", 0))
	w.advance(30 * time.Minute)
	w.ingest(w.event("purchase_completed", "buys", 0), w.event("add_to_cart", "returns", 0))
	w.advance(29 * time.Minute)
	w.tick()
	w.want(`select 'nothing yet' from outbox`)
	w.advance(time.Minute)
	w.tick()
	w.tick()
	w.want(`select concat_ws(' ', subject_key, dedupe_key, status, run_after - clock.now(), payload ->> 'sku',
		payload ->> 'since') from outbox order by message_id`,
		"leaves leaves pending 00:05:00 s1 "+start.Format(time.RFC3339))
	// Once per key: another cart in the session that was told already leads to nothing.
	w.ingest(w.event("add_to_cart", "leaves", 0))
	w.advance(2 * time.Hour)
	w.tick()
	w.want(`select subject_key from outbox order by message_id`, "leaves", "returns")
}

func TestRecheck(t *testing.T) {
	t.Parallel()
	w := newWorld(t, cart("once_per: episode"))
	w.tick()
	for _, s := range []string{"a-quiet", "b-buys-late", "c-returns", "d-bought-before"} {
		w.ingest(w.event("add_to_cart", s, 0))
	}
	w.advance(time.Hour)
	w.tick()
	check := NewRechecker(w.db, slog.New(slog.DiscardHandler))
	skip, err := check.look(t.Context(), w.leases())
	if err != nil || len(skip) != 0 {
		t.Fatalf("look = %v, %v; want nothing to skip", skip, err)
	}
	w.advance(3 * time.Minute) // within the grace
	w.ingest(w.event("purchase_completed", "b-buys-late", 20*time.Minute), w.event("add_to_cart", "c-returns", 0),
		w.event("purchase_completed", "d-bought-before", 2*time.Hour))
	if skip, err = check.look(t.Context(), w.leases()); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, l := range w.leases() {
		got = append(got, skip[l.ID])
	}
	if want := []string{"", "cancelled", "superseded", ""}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("skip reasons %q, want %q", got, want)
	}
	// The one who returned and leaves again is a new episode.
	w.advance(time.Hour)
	w.tick()
	w.want(`select subject_key from outbox order by message_id offset 4`, "c-returns")
}

// TestRecheckOfIdle: the wait counts from the last activity, and a cancel counts from the trigger on.
func TestRecheckOfIdle(t *testing.T) {
	t.Parallel()
	w := newWorld(t, cart("anchor: idle"))
	w.tick()
	w.ingest(w.event("add_to_cart", "a-buys-before-a-view", 0), w.event("add_to_cart", "b-bought-before", 0))
	w.advance(30 * time.Minute)
	w.ingest(w.event("page_viewed", "a-buys-before-a-view", 0), w.event("page_viewed", "b-bought-before", 0))
	w.advance(time.Hour)
	w.tick()
	w.advance(2 * time.Minute) // within the grace
	w.ingest(w.event("purchase_completed", "a-buys-before-a-view", 67*time.Minute),
		w.event("purchase_completed", "b-bought-before", 95*time.Minute))
	leases := w.leases()
	skip, err := NewRechecker(w.db, slog.New(slog.DiscardHandler)).look(t.Context(), leases)
	if err != nil || len(leases) != 2 {
		t.Fatalf("%d leases, %v; want 2", len(leases), err)
	}
	if skip[leases[0].ID] != rules.Cancelled || skip[leases[1].ID] != "" {
		t.Errorf("skip reasons %v; want the first cancelled, since its purchase came after its cart", skip)
	}
}

// delivered lets everything that is due be checked and sent, and returns subject and status of all messages.
func (w *world) delivered() []string {
	w.t.Helper()
	var due []pipeline.Lease
	for _, id := range w.texts(`select message_id::text from outbox
		where status = 'pending' and run_after <= now() order by message_id`) {
		l := pipeline.Lease{}
		l.Rule = true
		fmt.Sscan(id, &l.ID)
		due = append(due, l)
	}
	finish := func(_ context.Context, results []pipeline.Result) (int, error) {
		for _, r := range results {
			w.exec(`update outbox set status = $2, last_error = $3 where message_id = $1`, r.MessageID, string(r.Status),
				r.Error)
		}
		return 0, nil
	}
	holding, err := NewRechecker(w.db, slog.New(slog.DiscardHandler)).Holding(context.Background(), due, finish)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, l := range holding {
		w.exec(`update outbox set status = 'sent' where message_id = $1`, l.ID)
	}
	return w.texts(`select concat_ws(' ', subject_key, status, last_error) from outbox order by message_id`)
}

// TestSupersededMeansThatTheNewWaitFires: with anchor first a trigger within the grace begins no other wait, so the
// message goes out; with anchor idle a trigger from before the last activity doesn't either.
func TestSupersededMeansThatTheNewWaitFires(t *testing.T) {
	t.Parallel()
	check := func(anchor string, ago time.Duration, want ...string) {
		t.Helper()
		w := newWorld(t, cart("once_per: episode", "anchor: "+anchor))
		w.tick()
		w.ingest(w.event("add_to_cart", "s", 0))
		w.advance(30 * time.Minute)
		w.ingest(w.event("page_viewed", "s", 0))
		for range 20 {
			w.advance(5 * time.Minute)
			w.tick()
			if len(w.texts(`select '' from outbox`)) > 0 {
				break
			}
		}
		w.advance(2 * time.Minute) // within the grace
		w.ingest(w.event("add_to_cart", "s", ago))
		for range 20 {
			w.advance(5 * time.Minute)
			w.tick()
			w.delivered()
		}
		if got := w.delivered(); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("anchor %s, triggered again %s before: %q, want %q", anchor, ago, got, want)
		}
	}
	check("first", 0, "s sent")
	check("last", 0, "s skipped superseded", "s sent")
	check("idle", 0, "s skipped superseded", "s sent")
	check("idle", 65*time.Minute, "s sent")
}

// TestASkippedMessageFreesItsKey: with once_per key, a session that bought within the grace and leaves another cart is
// told of that. One that was told is not told again, also where one of several messages was skipped.
func TestASkippedMessageFreesItsKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t, strings.Replace(cart(), "send_to: crm", "send_to: [crm, sales]", 1))
	w.tick()
	w.ingest(w.event("add_to_cart", "buys", 0), w.event("add_to_cart", "leaves", 0), w.event("add_to_cart", "half", 0))
	w.advance(time.Hour)
	w.tick()
	w.ingest(w.event("purchase_completed", "buys", 0), w.event("purchase_completed", "half", 0))
	w.exec(`update outbox set status = 'sent' where subject_key = 'half' and destination = 'crm'`)
	w.advance(6 * time.Minute)
	if got := strings.Join(w.delivered(), ", "); strings.Count(got, "buys skipped cancelled") != 2 ||
		strings.Count(got, "half skipped cancelled") != 1 {
		t.Fatalf("got %s; want what was bought to be skipped", got)
	}
	w.ingest(w.event("add_to_cart", "buys", 0), w.event("add_to_cart", "leaves", 0), w.event("add_to_cart", "half", 0))
	w.advance(time.Hour)
	w.tick()
	w.advance(6 * time.Minute)
	got := w.delivered()
	if got := strings.Join(got[6:], ", "); got != "buys sent, buys sent" {
		t.Errorf("for other carts: %s; want messages about the one who was not told yet", got)
	}
}

// TestTheClockOfANodeDoesNotDecide: a cart that is taken by a node whose clock is days ahead, or an hour behind, waits
// as long as any other, and one of a customer whose clock is ahead as well.
func TestTheClockOfANodeDoesNotDecide(t *testing.T) {
	t.Parallel()
	for _, anchor := range []string{"last", "first", "idle"} {
		w := newWorld(t, cart("anchor: "+anchor))
		w.tick()
		w.advance(10 * time.Minute)
		received := func(session string, off time.Duration) {
			e := w.event("add_to_cart", session, 0)
			e.ReceivedAt = w.now.Add(off)
			w.ingest(e)
		}
		received("a-ahead", 48*time.Hour)
		received("b-behind", -time.Hour)
		w.ingest(w.event("add_to_cart", "c-customer-ahead", -3*time.Hour))
		old := w.event("add_to_cart", "d-old", 40*time.Hour)
		old.ReceivedAt = w.now.Add(-40 * time.Hour)
		w.ingest(old)
		w.advance(59 * time.Minute)
		w.tick()
		w.want(`select subject_key from outbox`)
		w.advance(time.Minute)
		w.tick()
		w.want(`select subject_key from outbox order by 1`, "a-ahead", "b-behind", "c-customer-ahead")
		if anchor != "first" {
			w.want(`select key from absence_timers where key = 'd-old'`)
		}
	}
}

// TestActivationSeesWhoIsWaiting: a rule that comes into force finds the keys whose triggers were stored before, and,
// by the second seed, those of batches that were decided by the old rules but committed later.
func TestActivationSeesWhoIsWaiting(t *testing.T) {
	t.Parallel()
	w := newWorld(t, cart("state: off"))
	w.tick()
	w.ingest(w.event("add_to_cart", "early", 0), w.event("add_to_cart", "bought", 0))
	w.advance(10 * time.Minute)
	w.ingest(w.event("purchase_completed", "bought", 0))
	w.use(cart())
	w.tick()
	w.use(cart("state: off")) // a node that does not know the rule yet
	w.ingest(w.event("add_to_cart", "between", 0))
	w.use(cart())
	w.advance(10 * time.Minute)
	w.ingest(w.event("add_to_cart", "after", 0))
	w.tick()
	w.advance(40 * time.Minute)
	w.tick()
	w.want(`select subject_key from outbox order by message_id`, "early")
	w.advance(10 * time.Minute)
	w.tick()
	w.want(`select subject_key from outbox order by message_id`, "early", "between")
	// Switched off for a while and on again: what happened meanwhile counts.
	w.use(cart("state: off"))
	w.ingest(w.event("add_to_cart", "meanwhile", 0), w.event("purchase_completed", "after", 0))
	w.advance(30 * time.Minute)
	w.use(cart())
	w.tick()
	w.advance(30 * time.Minute)
	w.tick()
	w.want(`select subject_key from outbox order by message_id`, "early", "between", "meanwhile")
}

// TestMissedTicksAreMadeUp: nothing swept for 20 minutes; everything that came due fires at the next look.
func TestMissedTicksAreMadeUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t, cart())
	w.tick()
	for i := range 20 {
		w.ingest(w.event("add_to_cart", fmt.Sprint("s", i), 0))
		w.advance(time.Minute)
	}
	w.advance(70 * time.Minute)
	w.restart(cart())
	w.tick()
	w.want(`select count(*)::text || ' ' || count(distinct dedupe_key) from outbox`, "20 20")
}

func TestTimersAreForgotten(t *testing.T) {
	t.Parallel()
	w := newWorld(t, cart("lookback: 2h", "anchor: first"))
	w.tick()
	w.ingest(w.event("add_to_cart", "a", 0), w.event("purchase_completed", "b", 0))
	w.advance(3 * time.Hour) // nobody looked: too late to fire
	w.sweep.cleaned = time.Time{}
	w.tick()
	w.want(`select key || ' ' || (armed_at is null) from absence_timers order by key`, "a true", "b true")
	w.advance(24 * time.Hour)
	w.sweep.cleaned = time.Time{}
	w.tick()
	w.want(`select count(*) || ' ' || (select count(*) from absence_timers) from absence_history`, "0 0")
	w.want(`select subject_key from outbox`)
}

func TestDigest(t *testing.T) {
	t.Parallel()
	rule := "  - id: ev\n    on: x\n    subject: event.session_id\n    cooldown: 10m\n    send_to: [crm, sales]\n    " +
		"payload: {a: 1}\n    "
	w := newWorld(t, rule+"digest: {after: 1h, payload: {title: '\"+\" + string(digest.count) + \" more for \" + "+
		"digest.subject'}}\n")
	for range 320 {
		w.ingest(w.event("x", "s", 0))
	}
	w.tick()
	w.want(`select payload::text from outbox order by message_id`, `{"a": 1}`, `{"a": 1}`)
	w.advance(time.Hour)
	w.tick()
	w.tick()
	w.want(`select destination || ' ' || (payload ->> 'title') from outbox order by message_id offset 2`,
		"crm +319 more for s", "sales +319 more for s")
	w.want(`select suppressed || ' ' || coalesce(digest_due_at::text, 'none') from rule_subjects`, "0 none")
}

func TestConfigIsChecked(t *testing.T) {
	_, err := New(Config{SweepEvery: -1, RuleState: -1}, nil, nil, nil)
	for _, want := range []string{"evaluate.max-payload-bytes is 0", "sweep.every is -1ns", "retain.rule-state is -1ns"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New = %v; want it to name %s", err, want)
		}
	}
}

// TestTimerMovesWhileItIsTaken: an event moves a timer after the sweep's statement began and before it locks the row.
// The row is then somewhere the statement did not see it, and has to be marked there.
func TestTimerMovesWhileItIsTaken(t *testing.T) {
	t.Parallel()
	w := newWorld(t, cart("once_per: episode"))
	w.tick()
	w.ingest(w.event("add_to_cart", "s", 0))
	w.advance(2 * time.Hour)
	// From here on the first row that a statement looks at waits for the lock.
	w.exec(`create or replace function clock.now() returns timestamptz language plpgsql as
		'begin perform pg_advisory_xact_lock_shared(14); return (select at from clock.moment); end'`)
	gate, err := w.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer gate.Rollback(context.Background())
	if _, err := gate.Exec(t.Context(), `select pg_advisory_xact_lock(14)`); err != nil {
		t.Fatal(err)
	}
	swept := make(chan error, 1)
	go func() {
		swept <- w.sweep.absence(context.Background(), w.engine.inForce(), w.engine.inForce().Absences()[0])
	}()
	pgtest.Until(t, w.db, `select exists (select from pg_stat_activity
		where datname = current_database() and wait_event = 'advisory')`)
	w.exec(`update absence_timers set trigger_at = trigger_at + interval '1 minute'`)
	if err := gate.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-swept; err != nil {
		t.Fatal(err)
	}
	w.want(`select concat_ws(' ', key, done_at = trigger_at, armed_at is null) from absence_timers`, "s t t")
	w.want(`select subject_key from outbox`, "s")
}

func TestCheckFailsWhereASweepWould(t *testing.T) {
	t.Parallel()
	w := newWorld(t, cart())
	if err := w.sweep.Check(t.Context()); err != nil {
		t.Errorf("Check = %v, want nil", err)
	}
	w.exec(`alter table absence_timers rename to elsewhere`)
	if err := w.sweep.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "42P01") {
		t.Errorf("Check without timers = %v, want 42P01", err)
	}
}

// The role or the database may have another isolation, under which a row that moved since the statement began is an
// error.
func TestSweepIsReadCommittedWhateverTheRoleSets(t *testing.T) {
	t.Parallel()
	w := newWorld(t, cart())
	w.tick()
	w.ingest(w.event("add_to_cart", "s", 0))
	w.advance(2 * time.Hour)
	w.exec(`create table seen (isolation text)`)
	w.exec(`create function note() returns trigger language plpgsql as
		'begin insert into seen values (current_setting(''transaction_isolation'')); return new; end'`)
	w.exec(`create trigger note before insert on outbox for each row execute function note()`)
	w.exec(`alter database ` + pgx.Identifier{w.db.Config().ConnConfig.Database}.Sanitize() +
		` set default_transaction_isolation = 'repeatable read'`)
	w.db.Reset()
	w.tick()
	w.want(`select isolation from seen`, "read committed")
}

// TestADigestWaitsForItsRule: a process that does not know the rule, or has no rules at all, leaves a due digest alone.
func TestADigestWaitsForItsRule(t *testing.T) {
	t.Parallel()
	told := "  - id: ev\n    on: x\n    subject: event.session_id\n    cooldown: 10m\n    send_to: crm\n    digest: " +
		"{after: 1h}\n"
	w := newWorld(t, told)
	for range 49 {
		w.ingest(w.event("x", "s", 0))
	}
	w.advance(2 * time.Hour)
	for name, text := range map[string]string{"other rules": cart(), "off": told + "    state: off\n", "shadow": told +
		"    state: shadow\n"} {
		w.use(text)
		w.tick()
		if got := w.texts(
			`select suppressed || ' ' || (digest_due_at is not null) from rule_subjects
				where rule_id = 't/ev'`); got[0] != "48 true" {
			t.Fatalf("with %s: %v are held back; want 48, still to be told", name, got)
		}
	}
	none := engine(t, &rules.Set{})
	if err := NewSweeper(none, w.db, NewSweepMetrics(prometheus.NewRegistry())).Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.restart(told)
	w.tick()
	w.want(`select payload ->> 'count' from outbox where dedupe_key like 'digest%'`, "48")
	w.want(`select suppressed || ' ' || (digest_due_at is not null) from rule_subjects`, "0 false")
}
