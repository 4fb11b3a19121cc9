package evaluate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"

	"sluice.example/sluice/internal/yamlfile"
	"sluice.example/sluice/pipeline/rules"
)

const (
	// settleTime is how long a file has to be left alone before it is read: editors and copies write in steps.
	// settleMost bounds that in a folder that changes all the time.
	settleTime = 200 * time.Millisecond
	settleMost = 2 * time.Second
	// lookAgain is how often the rules are read although nothing was noticed, for file systems that tell nothing.
	lookAgain = time.Minute
)

// Watch puts the rules of a file or folder into force again whenever they change, and whenever something comes from
// again, which may be nil. All or nothing: while the rules have errors, the ones in force stay,
// sluice_evaluate_rules_reload_ok is 0 and each error is logged. It blocks until ctx ends, and returns an error only
// if path cannot be watched at all.
func (e *Engine) Watch(ctx context.Context, path string, load func() (*rules.Set, error), again <-chan struct{}) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("evaluate: watch %s: %w", path, err)
	}
	defer watcher.Close()
	// The folder, not the file: an editor that saves puts another file in its place.
	for _, dir := range []string{filepath.Dir(path), path} {
		if err := watcher.Add(dir); err != nil {
			return fmt.Errorf("evaluate: watch %s: %w", dir, err)
		}
	}
	settled := time.NewTimer(settleTime)
	defer settled.Stop()
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	noticed := time.Time{} // the first change since the file was read last
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-watcher.Events:
			if noticed.IsZero() {
				noticed = time.Now()
			}
			settled.Reset(min(settleTime, time.Until(noticed.Add(settleMost))))
		case err := <-watcher.Errors:
			e.log.Warn("the rules may have changed unnoticed; they are read again", "error", err)
			e.reloadChanged(path, load)
		case <-settled.C:
			noticed = time.Time{}
			_ = watcher.Add(path) // again, if another file is in its place
			e.reloadChanged(path, load)
		case <-tick.C:
			e.reloadChanged(path, load)
		case <-again:
			e.reload(load, true)
		}
	}
}

// reloadChanged reloads rules whose files are not as they were when they were loaded last. To read thousands of rules
// takes seconds of a processor, to compare their text milliseconds. After an error they are always read: what was
// missing may be there.
func (e *Engine) reloadChanged(path string, load func() (*rules.Set, error)) {
	sum, err := rules.Sum(path)
	if err == nil && sum == e.lastSum && e.lastError == "" {
		return
	}
	e.reload(load, false)
	if e.lastSum = sum; err != nil {
		e.lastSum = [len(sum)]byte{}
	}
}

// reload reads the rules and uses them if they changed. What was asked for is answered in the log in any case.
func (e *Engine) reload(load func() (*rules.Set, error), asked bool) {
	set, err := load()
	old := e.set.Load()
	if err != nil {
		e.metrics.reloadOK.Set(0)
		if !asked && err.Error() == e.lastError {
			return
		}
		e.lastError = err.Error()
		e.metrics.reloads.WithLabelValues("failed").Inc()
		var errs yamlfile.Faults
		if !errors.As(err, &errs) {
			errs = yamlfile.Faults{{Message: err.Error()}}
		}
		for _, l := range errs {
			e.log.Error("rules not reloaded", "error", l.String())
		}
		e.log.Error("rules not reloaded: the old ones stay in force", "errors", len(errs), "in_force", describe(old))
		return
	}
	e.lastError = ""
	e.metrics.reloadOK.Set(1)
	if old != nil && old.Fingerprint() == set.Fingerprint() && !asked {
		return
	}
	e.Use(set)
	e.metrics.reloads.WithLabelValues("ok").Inc()
	e.log.LogAttrs(context.Background(), slog.LevelInfo, "rules reloaded", slog.String("in_force", describe(set)),
		slog.String("before", describe(old)))
	for _, w := range set.Warnings() {
		e.log.Warn("rules", "warning", w.String())
	}
	for _, r := range set.Renames(old) {
		if r.Kept {
			e.log.Info("rules", "renamed", r.Message.String())
		} else {
			e.log.Warn("rules", "warning", r.Message.String())
		}
	}
}

func describe(s *rules.Set) string {
	if s == nil {
		return "none"
	}
	return fmt.Sprintf("%d rules, version %s", len(s.Rules()), s.Fingerprint())
}
