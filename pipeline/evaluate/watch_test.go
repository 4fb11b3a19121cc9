package evaluate

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline"
	"sluice.example/sluice/pipeline/rules"
)

// TestWatch: a good file comes into force, a bad one leaves the old rules in force and says so, also when an editor
// puts another file in its place.
func TestWatch(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "rules.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "r.md"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	write(ruleText("subject: event.user_id"))
	set, err := rules.Load(file, rules.DefaultOptions())
	if err != nil {
		t.Fatal(err)
	}
	e, reg := engineWith(t, set, nil)
	inForce := func() string {
		return e.Decide([]pipeline.Event{event("x", "u", "")}).found.Matches[0].Subject
	}
	reloads := func(result string) float64 {
		return counted(t, reg, "sluice_evaluate_rules_reloads_total", result)
	}
	ctx, cancel := context.WithCancel(t.Context())
	again, done := make(chan struct{}), make(chan error)
	go func() {
		done <- e.Watch(ctx, file, func() (*rules.Set, error) { return rules.Load(file, rules.DefaultOptions()) }, again)
	}()
	again <- struct{}{} // it watches now
	pgtest.Eventually(t, "the reload that was asked for", func() bool { return reloads("ok") == 1 })

	write(ruleText(`subject: '"second"'`))
	pgtest.Eventually(t, "the second version", func() bool { return inForce() == "second" })
	write(ruleText("subject: nonsense"))
	pgtest.Eventually(t, "a failed reload", func() bool { return reloads("failed") == 1 })
	if got := counted(t, reg, "sluice_evaluate_rules_reload_ok"); got != 0 || inForce() != "second" {
		t.Errorf("after a bad file: reload_ok %v, in force %q; want 0 and the old rules", got, inForce())
	}
	write("rules: &r\n  <<: *r\n") // an anchor that contains itself
	pgtest.Eventually(t, "another failed reload", func() bool { return reloads("failed") == 2 })
	if got := counted(t, reg, "sluice_evaluate_rules_reload_ok"); got != 0 || inForce() != "second" {
		t.Errorf("after a file that would never end: reload_ok %v, in force %q; want 0 and the old rules", got, inForce())
	}
	write(ruleText(`subject: '"third"'`))
	pgtest.Eventually(t, "the third version", func() bool { return inForce() == "third" })
	if got := counted(t, reg, "sluice_evaluate_rules_reload_ok"); got != 1 {
		t.Errorf("after a good file: reload_ok %v, want 1", got)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Watch = %v; want nil when ctx ends", err)
	}
}

// TestUnchangedRulesAreNotReadAgain: what notices a change, or only looks, reads the rules if their text is another.
func TestUnchangedRulesAreNotReadAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "rules.yaml")
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	e, _ := engineWith(t, &rules.Set{}, nil)
	loads := 0
	look := func(want int) {
		t.Helper()
		e.reloadChanged(dir, func() (*rules.Set, error) { loads++; return rules.Load(dir, rules.DefaultOptions()) })
		if loads != want {
			t.Fatalf("read %d times, want %d", loads, want)
		}
	}
	write("rules.yaml", ruleText())
	look(1)
	look(2) // the runbook was missing: an error is tried again
	write("r.md", "x")
	look(3)
	look(3)
	write("notes.txt", "x")
	look(3)
	if err := os.Chtimes(file, time.Time{}, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	look(3)
	write("rules.yaml", ruleText("subject: event.user_id"))
	look(4)
	write("other.yaml", strings.Replace(ruleText(), "ruleset: t", "ruleset: u", 1))
	look(5)
	look(5)
}

// TestAFolderThatChangesAllTheTime: the rules are read within seconds all the same.
func TestAFolderThatChangesAllTheTime(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "rules.yaml")
	for name, text := range map[string]string{"r.md": "", "rules.yaml": ruleText()} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	e, reg := engineWith(t, &rules.Set{}, nil)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		done <- e.Watch(ctx, file, func() (*rules.Set, error) { return rules.Load(file, rules.DefaultOptions()) }, nil)
	}()
	start := time.Now()
	pgtest.Eventually(t, "the rules, while another file is written all the time", func() bool {
		_ = os.WriteFile(filepath.Join(dir, "log.txt"), []byte(time.Now().String()), 0o600)
		return counted(t, reg, "sluice_evaluate_rules_reloads_total", "ok") > 0
	})
	if took := time.Since(start); took > 10*settleMost {
		t.Errorf("that took %s, want about %s", took, settleMost)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Watch = %v; want nil when ctx ends", err)
	}
}
