package evaluate

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sluice.example/sluice/pipeline"
	"sluice.example/sluice/pipeline/rules"
)

// event makes a valid event of tenant 1.
func event(name, user, properties string) pipeline.Event {
	now := time.Now().UTC().Truncate(time.Microsecond)
	ev := pipeline.Event{ID: pipeline.NewUUIDv7(now), Tenant: 1, Name: name, UserID: user, OccurredAt: now,
		ReceivedAt: now}
	if properties != "" {
		ev.Properties = []byte(properties)
	}
	return ev
}

// load loads rules from a text. The runbook r.md is there.
func load(t testing.TB, text string) *rules.Set {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{"rules.yaml": text, "r.md": "do something"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	set, err := rules.Load(filepath.Join(dir, "rules.yaml"), rules.DefaultOptions())
	if err != nil {
		t.Fatalf("rules do not load:\n%v\n%s", err, text)
	}
	return set
}

// ruleText is a rules file with one event rule on "x"; lines are added to the rule.
func ruleText(lines ...string) string {
	return "version: 1\nruleset: t\nrules:\n" + oneRule("r", lines...)
}

func oneRule(id string, lines ...string) string {
	return "  - id: " + id + "\n    owner: me\n    response: r.md\n    on: x\n    send_to: crm\n    " +
		strings.Join(lines, "\n    ") + "\n"
}

func engine(t testing.TB, set *rules.Set) *Engine {
	t.Helper()
	e, err := New(DefaultConfig(), NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	e.Use(set)
	return e
}
