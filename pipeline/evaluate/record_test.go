package evaluate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/sourcegraph/conc/pool"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline"
	"sluice.example/sluice/pipeline/rules"
)

// commit decides about a batch and records it as copyin does, with every event newly stored.
func commit(ctx context.Context, db *pgxpool.Pool, e *Engine, events ...pipeline.Event) (*Plan, error) {
	plan := e.Decide(events)
	if plan == nil {
		return nil, nil
	}
	stored := make([]bool, len(events))
	for i := range stored {
		stored[i] = true
	}
	tx, err := db.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer tx.Rollback(ctx)
	if err := plan.Record(ctx, tx, stored); err != nil {
		return nil, err
	}
	if err := tx.Commit(ctx); err != nil {
		return nil, err
	}
	plan.Committed()
	return plan, nil
}

func mustCommit(t testing.TB, db *pgxpool.Pool, e *Engine, events ...pipeline.Event) *Plan {
	t.Helper()
	plan, err := commit(t.Context(), db, e, events...)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

// query returns one text for each row.
func query(t testing.TB, db *pgxpool.Pool, sql string, args ...any) []string {
	t.Helper()
	rows, err := db.Query(t.Context(), sql, args...)
	if err != nil {
		t.Fatal(err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func countRows(t testing.TB, db *pgxpool.Pool, sql string, args ...any) int {
	t.Helper()
	var n int
	if err := db.QueryRow(t.Context(), sql, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return n
}

func wantRows(t testing.TB, got []string, want ...string) {
	t.Helper()
	if g, w := strings.Join(got, "\n"), strings.Join(want, "\n"); g != w {
		t.Fatalf("got\n%s\nwant\n%s", g, w)
	}
}

// counted returns a counter's value by the values of its labels.
func counted(t testing.TB, reg *prometheus.Registry, name string, labels ...string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			var got []string
			for _, l := range m.GetLabel() {
				got = append(got, l.GetValue())
			}
			if strings.Join(got, " ") == strings.Join(labels, " ") {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return 0
}

func engineWith(t testing.TB, set *rules.Set, onDecided func(int)) (*Engine, *prometheus.Registry) {
	t.Helper()
	reg := prometheus.NewRegistry()
	e, err := New(DefaultConfig(), NewMetrics(reg), slog.New(slog.NewTextHandler(io.Discard, nil)), onDecided)
	if err != nil {
		t.Fatal(err)
	}
	e.Use(set)
	return e, reg
}

func TestShopRulesRecord(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	set, err := rules.Load("../../rules/shop.yaml", rules.DefaultOptions())
	if err != nil {
		t.Fatal(err)
	}
	due := 0
	e, reg := engineWith(t, set, func(n int) { due += n })
	buy := func(order string, cents int) pipeline.Event {
		return event("purchase_completed", "u1", fmt.Sprintf(`{"order_id":%q,"amount_cents":%d}`, order, cents))
	}
	mustCommit(t, db, e, event("signup_completed", "u1", `{"plan":"pro"}`), event("signup_completed", "u1", ""),
		buy("o1", 50000))
	mustCommit(t, db, e, event("signup_completed", "u1", ""), event("signup_completed", "u2", ""), buy("o1", 50000),
		buy("o2", 60000), buy("o3", 1))
	wantRows(t, query(t, db, `select concat_ws(' ', tenant_id, rule_id, type, subject_key, dedupe_key, destination,
		status, attempts,
		length(rule_hash), event_id is not null, event_occurred_at is not null, payload - 'signed_up_at') from outbox
			order by message_id`),
		`1 shop/welcome welcome u1 u1 welcome pending 0 16 t t {"plan": "pro", "user_id": "u1"}`,
		`1 shop/big-purchase big-purchase sales-team o1 sales pending 0 16 t t `+
			`{"user_id": "u1", "order_id": "o1", "amount_cents": 50000}`,
		`1 shop/welcome welcome u2 u2 welcome pending 0 16 t t {"plan": "free", "user_id": "u2"}`)
	for _, c := range []struct {
		want float64
		name string
		args []string
	}{
		{2, "sluice_evaluate_decided_messages_total", []string{"shop/welcome", "1"}},
		{1, "sluice_evaluate_decided_messages_total", []string{"shop/big-purchase", "1"}},
		{2, "sluice_evaluate_suppressed_total", []string{"duplicate", "shop/welcome"}},
		{1, "sluice_evaluate_suppressed_total", []string{"duplicate", "shop/big-purchase"}},
		{1, "sluice_evaluate_suppressed_total", []string{"cooldown", "shop/big-purchase"}},
		{8, "sluice_evaluate_evaluated_events_total", []string{"1"}},
	} {
		if got := counted(t, reg, c.name, c.args...); got != c.want {
			t.Errorf("%s%v = %v, want %v", c.name, c.args, got, c.want)
		}
	}
	if due != 3 {
		t.Errorf("onDecided was told of %d messages, want 3", due)
	}
}

// TestOnlyStoredEventsCount: duplicates decide nothing, also when a retry finds other events stored than before.
func TestOnlyStoredEventsCount(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	e, reg := engineWith(t, load(t, ruleText("dedupe_key: event.user_id",
		"match: event.user_id != 'bad' || event.properties.none")), nil)
	plan := e.Decide([]pipeline.Event{event("x", "a", ""), event("x", "b", ""), event("x", "bad", "")})
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	if err := plan.Record(t.Context(), tx, []bool{true, true, true}); err != nil {
		t.Fatal(err)
	}
	tx.Rollback(t.Context())
	if tx, err = db.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := plan.Record(t.Context(), tx, []bool{false, true, false}); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := counted(t, reg, "sluice_evaluate_decided_messages_total", "t/r", "1"); got != 0 {
		t.Errorf("%v decided before Committed, want 0", got)
	}
	plan.Committed()
	wantRows(t, query(t, db, `select dedupe_key from outbox`), "b")
	if got := counted(t, reg, "sluice_evaluate_decided_messages_total", "t/r", "1"); got != 1 {
		t.Errorf("%v decided, want 1", got)
	}
	if got := counted(t, reg, "sluice_evaluate_rule_errors_total", "expression", "t/r"); got != 0 {
		t.Errorf("%v errors about events that were not stored, want 0", got)
	}
}

func TestCapIsASlidingWindow(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	e, reg := engineWith(t, load(t, ruleText("subject: event.user_id", "cap: {max: 3, per: 1h}")), nil)
	send := func(n int) {
		t.Helper()
		for range n {
			mustCommit(t, db, e, event("x", "u", ""), event("x", "v", ""))
		}
	}
	back := func(d string) {
		t.Helper()
		if _, err := db.Exec(t.Context(), `update rule_subjects set decided_at = decided_at - $1::interval,
			recent = (select array_agg(r - $1::interval order by r desc) from unnest(recent) r)`, d); err != nil {
			t.Fatal(err)
		}
	}
	sent := func(want int) {
		t.Helper()
		if got := countRows(t, db, `select count(*) from outbox where subject_key = 'u'`); got != want {
			t.Fatalf("%d sent, want %d", got, want)
		}
	}
	send(2)
	back("40 minutes")
	send(5)
	sent(3)
	back("25 minutes") // the first two are outside the hour now, the third is not
	send(5)
	sent(5)
	back("61 minutes")
	send(1)
	sent(6)
	if got := counted(t, reg, "sluice_evaluate_suppressed_total", "cap", "t/r"); got != 2*7 {
		t.Errorf("%v suppressed by the cap, want 14", got)
	}
}

// TestACapThatChanges: what was sent counts, whatever the cap was meanwhile, and however nodes disagree about it.
func TestACapThatChanges(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	limit := func(most string) *Engine {
		e, _ := engineWith(t, load(t, ruleText("subject: event.user_id", "cap: {max: "+most+"}")), nil)
		return e
	}
	sent := func(user string) int {
		t.Helper()
		return countRows(t, db, `select count(*) from outbox where subject_key = '`+user+`'`)
	}
	five, one := limit("5, per: 1h"), limit("1, per: 1h")
	for _, e := range []*Engine{five, one, five, one, one, five} {
		for range 4 {
			mustCommit(t, db, e, event("x", "edited", ""))
		}
	}
	if got := sent("edited"); got != 5 {
		t.Errorf("%d sent under caps of 5, 1 and 5, want 5", got)
	}
	two, three := limit("2, per: 1h"), limit("3, per: 1h")
	for i := range 20 {
		mustCommit(t, db, []*Engine{two, three}[i%2], event("x", "disagreed", ""))
	}
	if got := sent("disagreed"); got > 3 {
		t.Errorf("%d sent by nodes with caps of 2 and 3, want 3 at most", got)
	}
	day, hour, cooling := limit("3, per: 1d"), limit("2, per: 1h"), func() *Engine {
		e, _ := engineWith(t, load(t, ruleText("subject: event.user_id", "cooldown: 1m")), nil)
		return e
	}()
	for _, e := range []*Engine{day, day, hour, hour, cooling, cooling, day, day, day} {
		mustCommit(t, db, e, event("x", "window", ""))
		if _, err := db.Exec(t.Context(), `update rule_subjects set
			recent = array(select r - interval '61 minutes' from unnest(recent) with ordinality u(r, i) order by i),
			decided_at = decided_at - interval '61 minutes'`); err != nil {
			t.Fatal(err)
		}
	}
	if got := sent("window"); got != 6 { // two by day, four by the others, which know no day
		t.Errorf("%d sent under caps of other windows, want 6", got)
	}
}

func TestDedupeForExpires(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	e, _ := engineWith(t, load(t, ruleText("dedupe_key: event.user_id", "dedupe_for: 1h")), nil)
	for range 2 {
		mustCommit(t, db, e, event("x", "u", ""))
	}
	if got := countRows(t, db, `select count(*) from outbox`); got != 1 {
		t.Fatalf("%d sent, want 1", got)
	}
	if _, err := db.Exec(t.Context(), `update dedupe_keys set expires_at = now() - interval '1 second'`); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		mustCommit(t, db, e, event("x", "u", ""))
	}
	if got := countRows(t, db, `select count(*) from outbox`); got != 2 {
		t.Fatalf("%d sent after the key ran out, want 2", got)
	}
}

func TestShadowDecidesAndDoesNotSend(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	due := 0
	e, _ := engineWith(t, load(t, ruleText("state: shadow", "dedupe_key: event.user_id", "cooldown: 1h",
		"subject: event.user_id")), func(n int) { due += n })
	mustCommit(t, db, e, event("x", "u", ""), event("x", "u", ""))
	e.Use(load(t, ruleText("dedupe_key: event.user_id", "cooldown: 1h", "subject: event.user_id")))
	mustCommit(t, db, e, event("x", "u", ""))
	wantRows(t, query(t, db, `select status || ' ' || (finished_at is not null) from outbox order by message_id`),
		"skipped true", "pending false")
	if due != 1 {
		t.Errorf("onDecided was told of %d messages, want 1", due)
	}
}

func TestSeveralDestinations(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	text := strings.Replace(ruleText("dedupe_key: event.user_id", "cap: {max: 1, per: 1h}"), "send_to: crm",
		"send_to: [sales, crm]", 1)
	e, reg := engineWith(t, load(t, text), nil)
	mustCommit(t, db, e, event("x", "u", ""), event("x", "v", ""))
	wantRows(t, query(t, db, `select destination || ' ' || dedupe_key from outbox order by message_id`), "sales u",
		"crm u")
	if got := counted(t, reg, "sluice_evaluate_decided_messages_total", "t/r", "1"); got != 2 {
		t.Errorf("%v decided, want 2", got)
	}
}

// TestARuleThatPostgreSQLRefuses: what one rule makes cannot be stored; the batch and the other rules go on.
func TestARuleThatPostgreSQLRefuses(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	text := "version: 1\nruleset: t\nrules:\n" + oneRule("nul", `payload: '"a\u0000b"'`) +
		oneRule("nulkey", `dedupe_key: '"a\u0000b"'`) +
		oneRule("good", "dedupe_key: event.user_id", "cooldown: 1h", "subject: event.user_id")
	e, reg := engineWith(t, load(t, text), nil)
	var events []pipeline.Event
	for i := range 100 {
		events = append(events, event("x", fmt.Sprint("u", i), ""))
	}
	mustCommit(t, db, e, events...)
	if got := countRows(t, db, `select count(*) from outbox where rule_id = 't/good'`); got != 100 {
		t.Errorf("%d decisions of the good rule, want 100", got)
	}
	if got := countRows(t, db, `select count(*) from outbox where rule_id <> 't/good'`); got != 0 {
		t.Errorf("%d decisions of the others, want 0", got)
	}
	for _, rule := range []string{"t/nul", "t/nulkey"} {
		want := 100.0
		if rule == "t/nulkey" {
			want = 1 // the other 99 are repeats of its key within the batch
		}
		if got := counted(t, reg, "sluice_evaluate_rule_errors_total", "refused", rule); got != want {
			t.Errorf("%v refused of %s, want %v", got, rule, want)
		}
	}
}

// TestOneDecisionThatPostgreSQLRefuses: what a rule makes of one event can't be stored; the rule's decisions about the
// others are, and it is noted which one was refused, also if the batch is recorded again.
func TestOneDecisionThatPostgreSQLRefuses(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	text := "version: 1\nruleset: t\nrules:\n" +
		oneRule("r", `payload: 'event.user_id in ["u3", "u60"] ? "a\u0000b" : event.user_id'`) +
		oneRule("key", `dedupe_key: 'event.user_id == "u70" ? "a\u0000b" : event.user_id'`) +
		"  - {id: wait, kind: absence, owner: me, response: r.md, trigger: {on: x}, cancel: {on: y}, within: 1h, " +
		"send_to: crm,\n     key: 'event.user_id == \"u5\" ? \"a\\u0000b\" : event.user_id'}\n"
	e, reg := engineWith(t, load(t, text), nil)
	var events []pipeline.Event
	for i := range 100 {
		events = append(events, event("x", fmt.Sprint("u", i), ""))
	}
	mustCommit(t, db, e, events...)
	wantRows(t, query(t, db, `select rule_id || ' ' || count(*) from outbox group by rule_id order by 1`), "t/key 99",
		"t/r 98")
	if got := countRows(t, db, `select count(*) from absence_timers`); got != 99 {
		t.Errorf("%d timers, want 99", got)
	}
	for rule, want := range map[string]float64{"t/r": 2, "t/key": 1, "t/wait": 1} {
		if got := counted(t, reg, "sluice_evaluate_rule_errors_total", "refused", rule); got != want {
			t.Errorf("%v refused of %s, want %v", got, rule, want)
		}
	}
	var want []string
	for _, r := range []struct {
		event int
		rule  string
	}{{3, "r"}, {5, "wait"}, {60, "r"}, {70, "key"}} {
		want = append(want, events[r.event].ID.String()+" t/"+r.rule)
	}
	slices.Sort(want)
	wantRows(t, query(t, db, `select concat_ws(' ', event_id, rule_id) from rule_refusals
		where reason <> '' and tenant_id = 1 order by event_id`), want...)
}

// A trigger on outbox that refuses one message costs that message, whatever code it raises of its own.
func TestOneMessageThatATriggerRefuses(t *testing.T) {
	t.Parallel()
	for _, code := range []string{"P0001", "45000", "SL001", "23514"} {
		db := pgtest.New(t)
		text := "version: 1\nruleset: t\nrules:\n" + oneRule("r", "payload: event.user_id")
		e, reg := engineWith(t, load(t, text), nil)
		query(t, db, fmt.Sprintf(`create function refuse() returns trigger language plpgsql as $$
begin
    if new.payload = '"u3"' then raise exception 'not this one' using errcode = '%s'; end if;
    return new;
end $$`, code))
		query(t, db, `create trigger refuse before insert on outbox for each row execute function refuse()`)
		var events []pipeline.Event
		for i := range 10 {
			events = append(events, event("x", fmt.Sprint("u", i), ""))
		}
		mustCommit(t, db, e, events...)
		if got := countRows(t, db, `select count(*) from outbox where rule_id = 't/r'`); got != 9 {
			t.Errorf("%s: %d messages, want 9", code, got)
		}
		if got := counted(t, reg, "sluice_evaluate_rule_errors_total", "refused", "t/r"); got != 1 {
			t.Errorf("%s: %v refused, want 1", code, got)
		}
	}
}

// TestDecisionsCommitWithTheBatch: a rollback leaves nothing, and the same events decide again.
func TestDecisionsCommitWithTheBatch(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	e, _ := engineWith(t, load(t, ruleText("dedupe_key: event.user_id", "cooldown: 1h", "subject: event.user_id")), nil)
	events := []pipeline.Event{event("x", "u", "")}
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Decide(events).Record(t.Context(), tx, []bool{true}); err != nil {
		t.Fatal(err)
	}
	tx.Rollback(t.Context())
	mustCommit(t, db, e, events...)
	if got := countRows(t, db, `select count(*) from outbox`); got != 1 {
		t.Fatalf("%d rows, want 1", got)
	}
}

// TestConcurrentBatchesAreExact: 8 writers, few hot subjects, keys in opposite orders. No window is broken, no key used
// twice, no deadlock, and every candidate is accounted for.
func TestConcurrentBatchesAreExact(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	text := "version: 1\nruleset: t\nrules:\n" +
		oneRule("cap", "subject: event.user_id", "dedupe_key: event.properties.k", "cap: {max: 3, per: 24h}",
			"digest: {after: 1h}") +
		oneRule("cool", "subject: event.user_id", "dedupe_key: event.properties.k", "cooldown: 3h", "digest: {after: 1h}") +
		oneRule("free", "dedupe_key: event.properties.k")
	e, reg := engineWith(t, load(t, text), nil)
	const writers, batches, size, subjects = 8, 12, 40, 5
	var deadlocks, keys atomic.Int64
	p := pool.New().WithErrors()
	for w := range writers {
		p.Go(func() error {
			for b := range batches {
				var events []pipeline.Event
				for i := range size {
					k := b*size + i
					if w%2 == 1 {
						k = b*size + size - 1 - i
					}
					// Pairs of writers send the same keys, in opposite order.
					events = append(events, event("x", fmt.Sprint("s", k%subjects), fmt.Sprintf(`{"k":"%d-%d"}`, w/2, k)))
				}
				for {
					_, err := commit(t.Context(), db, e, events...)
					var pg *pgconn.PgError
					if errors.As(err, &pg) && pg.Code == "40P01" {
						deadlocks.Add(1)
						continue
					}
					if err != nil {
						return err
					}
					break
				}
				keys.Add(size)
			}
			return nil
		})
	}
	if err := p.Wait(); err != nil {
		t.Fatal(err)
	}
	if n := deadlocks.Load(); n != 0 {
		t.Errorf("%d deadlocks, want 0", n)
	}
	unique := writers / 2 * batches * size
	wantRows(t,
		query(t, db,
			`select rule_id || ' ' || count(*) || ' ' || count(distinct dedupe_key) from outbox group by rule_id order by 1`),
		fmt.Sprintf("t/cap %d %d", 3*subjects, 3*subjects), fmt.Sprintf("t/cool %d %d", subjects, subjects),
		fmt.Sprintf("t/free %d %d", unique, unique))
	wantRows(t, query(t, db, `select rule_id || ' ' || sum(suppressed) from rule_subjects group by rule_id order by 1`),
		fmt.Sprintf("t/cap %d", unique-3*subjects), fmt.Sprintf("t/cool %d", unique-subjects))
	for _, rule := range []string{"t/cap", "t/cool", "t/free"} {
		all := counted(t, reg, "sluice_evaluate_decided_messages_total", rule, "1") +
			counted(t, reg, "sluice_evaluate_suppressed_total", "duplicate", rule) +
			counted(t, reg, "sluice_evaluate_suppressed_total", "cap", rule) +
			counted(t, reg, "sluice_evaluate_suppressed_total", "cooldown", rule)
		if all != float64(keys.Load()) {
			t.Errorf("%s accounts for %v candidates, want %d", rule, all, keys.Load())
		}
	}
}

// TestStarRuleHasLimits: cooldown and cap hold for a rule that listens to every name.
func TestStarRuleHasLimits(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	star := func(id, limit string) string {
		return strings.Replace(oneRule(id, "subject: event.user_id", limit), "on: x", `on: "*"`, 1)
	}
	e := engine(t, load(t, "version: 1\nruleset: t\nrules:\n"+star("cool", "cooldown: 1h")+star("capped",
		"cap: {max: 3, per: 1h}")))
	var batch []pipeline.Event
	for i := range 20 {
		batch = append(batch, pipeline.Event{ID: pipeline.NewUUIDv7(time.Now()), Tenant: 1, Name: fmt.Sprint("name-", i),
			UserID:     fmt.Sprint("u", i%2),
			OccurredAt: time.Now().UTC(), ReceivedAt: time.Now().UTC()})
	}
	mustCommit(t, db, e, batch[:7]...)
	mustCommit(t, db, e, batch[7:]...)
	wantRows(t,
		query(t, db,
			`select rule_id || ' ' || subject_key || ' ' || count(*) from outbox group by rule_id, subject_key order by 1`),
		"t/capped u0 3", "t/capped u1 3", "t/cool u0 1", "t/cool u1 1")
}
