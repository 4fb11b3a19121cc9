package backtest

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline"
	"sluice.example/sluice/pipeline/evaluate"
	"sluice.example/sluice/pipeline/rules"
	"sluice.example/sluice/pipeline/rules/replay"
)

// Of several events of one request a cooldown, a cap and a key let the same ones through in a backtest as they did
// live, although the place of an event in its request is not stored.
func TestABacktestChoosesTheEventsOfTheLiveRun(t *testing.T) {
	t.Parallel()
	db, ctx := pgtest.New(t), context.Background()
	dir := t.TempDir()
	text := "version: 1\nruleset: t\ndefaults: {owner: me, response: r.md}\nrules:\n" +
		"  - {id: cooling, on: x, send_to: crm, subject: event.user_id, cooldown: 1h}\n" +
		"  - {id: capped, on: x, send_to: crm, subject: event.user_id, cap: {max: 2, per: 1h}}\n" +
		"  - {id: keyed, on: x, send_to: crm, dedupe_key: event.user_id}\n"
	for name, content := range map[string]string{"rules.yaml": text, "r.md": "x"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	set, err := rules.Load(dir, rules.DefaultOptions())
	if err != nil {
		t.Fatal(err)
	}
	engine, err := evaluate.New(evaluate.DefaultConfig(), evaluate.NewMetrics(prometheus.NewRegistry()),
		slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	engine.Use(set)
	var batch []pipeline.Event
	now := time.Now().UTC().Truncate(time.Microsecond)
	for request := range 20 { // each from another user, all in one batch, in another order than they arrived
		at := now.Add(-time.Duration(request) * time.Millisecond)
		for range 5 {
			batch = append(batch, pipeline.Event{ID: pipeline.NewUUIDv4(), Tenant: 1, Name: "x",
				UserID: fmt.Sprint("u", request%10), OccurredAt: at, ReceivedAt: at})
		}
	}
	plan := engine.Decide(batch)
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		for _, e := range batch {
			if _, err := tx.Exec(ctx, `insert into events (event_id, tenant_id, event_name, occurred_at, user_id, received_at)
				values ($1, $2, $3, $4, $5, $6)`, e.ID, e.Tenant, e.Name, e.OccurredAt, e.UserID, e.ReceivedAt); err != nil {
				return err
			}
		}
		return plan.Record(ctx, tx, slices.Repeat([]bool{true}, len(batch)))
	})
	if err != nil {
		t.Fatal(err)
	}
	rows, err := db.Query(ctx, `select rule_id || ' ' || event_id from outbox order by 1`)
	if err != nil {
		t.Fatal(err)
	}
	live, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}

	b := backtest{Options: Options{To: now.Add(time.Hour)}, start: now.Add(-time.Hour)}
	b.replays = []*replay.Run{replay.New(set, b.start)}
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error { return b.feed(ctx, tx) })
	if err != nil {
		t.Fatal(err)
	}
	var again []string
	for _, d := range b.replays[0].Decided() {
		if d.Suppressed == "" {
			again = append(again, d.Rule+" "+d.Event.String())
		}
	}
	slices.Sort(again)
	if len(live) != 10+20+10 || strings.Join(live, "\n") != strings.Join(again, "\n") {
		t.Errorf("live, %d messages:\n%s\nin the backtest, %d:\n%s", len(live), strings.Join(live, "\n"), len(again),
			strings.Join(again, "\n"))
	}
}
