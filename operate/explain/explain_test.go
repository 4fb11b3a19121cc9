package explain

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline"
	"sluice.example/sluice/pipeline/evaluate"
	"sluice.example/sluice/pipeline/rules"
)

// world is a database in which rules decide about stored events.
type world struct {
	t      *testing.T
	db     *pgxpool.Pool
	engine *evaluate.Engine
	sweep  *evaluate.Sweeper
	set    *rules.Set
}

func newWorld(t *testing.T, text string) *world {
	t.Helper()
	w := &world{t: t, db: pgtest.New(t)}
	engine, err := evaluate.New(evaluate.DefaultConfig(), evaluate.NewMetrics(prometheus.NewRegistry()),
		slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	w.engine = engine
	w.sweep = evaluate.NewSweeper(engine, w.db, evaluate.NewSweepMetrics(prometheus.NewRegistry()))
	w.use(text)
	return w
}

func (w *world) use(text string) {
	w.t.Helper()
	dir := w.t.TempDir()
	text = "version: 1\nruleset: t\ndefaults: {owner: me, response: r.md}\nrules:\n" + text
	for name, content := range map[string]string{"rules.yaml": text, "r.md": "x"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			w.t.Fatal(err)
		}
	}
	set, err := rules.Load(filepath.Join(dir, "rules.yaml"), rules.DefaultOptions())
	if err != nil {
		w.t.Fatal(err)
	}
	w.set = set
	w.engine.Use(set)
}

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	if _, err := w.db.Exec(context.Background(), sql, args...); err != nil {
		w.t.Fatalf("%v\nin %s", err, sql)
	}
}

// event happened some time ago and arrives now.
func event(name, user string, ago time.Duration) pipeline.Event {
	now := time.Now().UTC().Truncate(time.Microsecond)
	return pipeline.Event{ID: pipeline.NewUUIDv7(now), Tenant: 1, Name: name, UserID: user, OccurredAt: now.Add(-ago),
		ReceivedAt: now}
}

// store stores a batch, as copyin does.
func (w *world) store(events ...pipeline.Event) {
	w.t.Helper()
	ctx := context.Background()
	plan := w.engine.Decide(events)
	err := pgx.BeginFunc(ctx, w.db, func(tx pgx.Tx) error {
		stored := make([]bool, len(events))
		for i, e := range events {
			if _, err := tx.Exec(ctx, `insert into events (event_id, tenant_id, event_name, occurred_at, user_id, received_at)
				values ($1, $2, $3, $4, $5, $6)`, e.ID, e.Tenant, e.Name, e.OccurredAt, e.UserID, e.ReceivedAt); err != nil {
				return err
			}
			stored[i] = true
		}
		return plan.Record(ctx, tx, stored)
	})
	if err != nil {
		w.t.Fatal(err)
	}
	plan.Committed()
}

// told is what explain prints about an id.
func (w *world) told(id string) string {
	w.t.Helper()
	conn, err := w.db.Acquire(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	defer conn.Release()
	s, err := (&Explainer{Conn: conn.Conn(), Set: w.set, Tenant: 1}).Explain(w.t.Context(), Anything, id)
	if err != nil {
		w.t.Fatal(err)
	}
	var b strings.Builder
	if err := s.Print(&b); err != nil {
		w.t.Fatal(err)
	}
	return b.String()
}

func (w *world) want(id pipeline.UUID, texts ...string) {
	w.t.Helper()
	told := w.told(id.String())
	for _, text := range texts {
		if !strings.Contains(told, text) {
			w.t.Errorf("explain does not say %q:\n%s", text, told)
		}
	}
}

func TestExplainARefusedDecision(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "  - {id: r, on: x, send_to: crm, payload: 'event.user_id == \"b\" ? \"a\\u0000b\" : \"c\"'}\n")
	a, b := event("x", "a", 0), event("x", "b", 0)
	w.store(a, b)
	w.want(a.ID, "matched", "next: attempt 1")
	w.want(b.ID, "PostgreSQL would not store what the rule made of it", "22P05", "Messages because of it:\n  none")
}

// TestExplainALimitOverRules names the limit, which another rule has used up, and its quiet hours.
func TestExplainALimitOverRules(t *testing.T) {
	t.Parallel()
	two := "  - {id: a, on: x, send_to: crm}\n  - {id: b, on: y, send_to: crm}\nlimits:\n"
	w := newWorld(t, two+"  - {id: calm, subject: event.user_id, at_most: 1, per: 1d, send_to: crm}\n")
	a, b := event("x", "u", 0), event("y", "u", 0)
	w.store(a)
	w.store(b)
	w.want(a.ID, "next: attempt 1")
	w.want(b.ID, "held back by the limit t/calm of 1 in 24h0m0s over several rules: the subject was granted 1")
	now := time.Now().UTC()
	w.use(two + "  - {id: night, rules: [b], hours: {from: '" + now.Add(-time.Hour).Format("15:04") + "', to: '" +
		now.Add(time.Hour).Format("15:04") + "'}}\n")
	c := event("y", "v", 0)
	w.store(c)
	w.want(c.ID, "held back by the limit t/night: it arrived in its quiet hours")
	// A limit over one destination holds back what goes there alone.
	w.use("  - {id: a, on: x, send_to: [crm, mail]}\nlimits:\n" +
		"  - {id: mails, subject: event.user_id, at_most: 1, per: 1d, send_to: mail}\n")
	d := event("x", "w", 0)
	w.store(event("x", "w", 0))
	w.store(d)
	w.want(d.ID, "what goes to mail was held back by the limit t/mails of 1 in 24h0m0s", "to crm")
	// A digest tells of it later.
	w.use("  - {id: a, on: x, send_to: crm}\nlimits:\n" +
		"  - {id: folded, subject: event.user_id, at_most: 1, per: 1d, send_to: crm, over: digest}\n")
	f := event("x", "z", 0)
	w.store(event("x", "z", 0))
	w.store(f)
	w.want(f.ID, "held back by the limit t/folded of 1 in 24h0m0s", "1 held back so far; next: a digest tells so at")
}

// A cap let two of five events of one request through.
func TestExplainACapWithinOneRequest(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "  - {id: r, on: x, send_to: [crm, sales], subject: event.user_id, cap: {max: 2, per: 1h}}\n")
	now, batch := time.Now().UTC().Truncate(time.Microsecond), []pipeline.Event{}
	for i := range 5 {
		e := event("x", "u", 0)
		e.ID[0], e.ReceivedAt = byte(i), now // in this order
		batch = append(batch, e)
	}
	w.store(batch...)
	w.want(batch[1].ID, "next: attempt 1")
	for _, e := range batch[2:] {
		w.want(e.ID, "held back by a cap of 2 in 1h0m0s: the subject was granted 2")
	}
}

// An event from before its rule was not held back by what the rule sent later.
func TestExplainAnEventOlderThanItsRule(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "  - {id: r, on: x, send_to: crm, subject: event.user_id, cooldown: 12h}\n")
	old := event("x", "u", 0)
	old.ReceivedAt, old.OccurredAt = old.ReceivedAt.Add(-3*time.Hour), old.OccurredAt.Add(-3*time.Hour)
	w.exec(`insert into events (event_id, tenant_id, event_name, occurred_at, user_id, received_at)
		values ($1, 1, 'x', $2, 'u', $2)`, old.ID, old.OccurredAt)
	w.store(event("x", "u", 0))
	w.exec(`insert into rule_hours (rule_id, hour, evaluated, messages, duplicate, cooldown, cap, errors)
		values ('t/r', date_trunc('hour', now()), 1, 1, 0, 0, 0, 0)`)
	w.exec(`update rule_subjects set recent = array[now() - interval '4 hours'], decided_at = now()`)
	w.want(old.ID, "the rule was not in force")
}

// A timer that ran out made no message, since its key was used or its subject rests.
func TestExplainAnAbsenceThatWasHeldBack(t *testing.T) {
	t.Parallel()
	for limit, want := range map[string]string{
		"once_per: key": "suppressed as a duplicate: the key was used at",
		"once_per: episode, cooldown: 1d, subject: key, recheck: {skip_if: []}": "none, or they were pruned",
		"once_per: episode, cooldown: 1d, recheck: {skip_if: []}":               "held back by a cooldown of 24h0m0s",
	} {
		w := newWorld(t, "  - {id: r, kind: absence, trigger: {on: x}, cancel: {on: y}, key: event.user_id, within: 1h, "+
			"lookback: 12h, send_to: crm, "+limit+"}\n")
		sweep := func() {
			t.Helper()
			if err := w.sweep.Sweep(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		sweep()
		w.store(event("x", "u", 4*time.Hour))
		sweep()
		w.exec(`update outbox set created_at = now() - interval '3 hours'`)
		w.exec(`update rule_subjects set recent = array[now() - interval '3 hours'], decided_at = now() - interval '3 hours'`)
		again := event("x", "u", 90*time.Minute)
		w.store(again)
		sweep()
		w.want(again.ID, "it has run out and was decided about", want)
	}
}

// TestExplainAnOvertakenTrigger: a trigger that was cancelled is not told to wait since another came, and of one that a
// later one superseded, the later one is named.
func TestExplainAnOvertakenTrigger(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "  - {id: r, kind: absence, trigger: {on: x}, cancel: {on: y}, key: event.user_id, within: 1h, "+
		"lookback: 12h, send_to: crm}\n")
	if err := w.sweep.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	first, second := event("x", "cancelled", 50*time.Minute), event("x", "cancelled", 20*time.Minute)
	w.store(first)
	cancel := event("y", "cancelled", 40*time.Minute)
	w.store(cancel)
	w.store(second)
	w.want(first.ID, "what this event began to wait for was cancelled at "+stamp(cancel.OccurredAt),
		"a later trigger began again at "+stamp(second.OccurredAt), "it waits since "+stamp(second.OccurredAt))
	early, late := event("x", "superseded", 50*time.Minute), event("x", "superseded", 20*time.Minute)
	w.store(early)
	w.store(late)
	w.want(early.ID, "a later trigger of the key came at "+stamp(late.OccurredAt),
		"it waits since "+stamp(late.OccurredAt))
	for _, e := range []pipeline.Event{second, late} {
		if told := w.told(e.ID.String()); strings.Contains(told, "later trigger") {
			t.Errorf("explain names a later trigger of the last one:\n%s", told)
		}
	}
}

// A number may be that of a message and the id of an event.
func TestExplainANumber(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "  - {id: r, on: x, send_to: crm}\n")
	e := event("x", "u", 0)
	e.ID = pipeline.HashUUID("1")
	w.store(e)
	conn, err := w.db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	x := &Explainer{Conn: conn.Conn(), Set: w.set, Tenant: 1}
	if _, err := x.Explain(t.Context(), Anything, "1"); err == nil || !strings.Contains(err.Error(), "explain event 1") {
		t.Errorf("1 alone: %v, want an error that names both ways", err)
	}
	if s, err := x.Explain(t.Context(), AnEvent, "1"); err != nil || len(s.Events) != 1 {
		t.Errorf("event 1: %+v, %v", s, err)
	}
	if s, err := x.Explain(t.Context(), AMessage, "1"); err != nil || len(s.Events) != 0 || len(s.Messages) != 1 {
		t.Errorf("message 1: %+v, %v", s, err)
	}
	if s, err := x.Explain(t.Context(), AMessage, "2"); err == nil {
		t.Errorf("message 2: %+v, want an error", s)
	}
}
