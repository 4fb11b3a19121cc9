package main

import (
	"log/slog"
	"time"

	"sluice.example/sluice/internal/cli"
	"sluice.example/sluice/internal/duration"
)

// newLogger writes text for a person at a terminal and JSON otherwise, to stderr.
func newLogger(env cli.Env, cfg *config) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(cfg.logLevel)); err != nil {
		level = slog.LevelInfo // validated before
	}
	options := &slog.HandlerOptions{Level: level, ReplaceAttr: readable}
	if cfg.logFormat == "text" || cfg.logFormat == "auto" && env.Terminal {
		return slog.New(slog.NewTextHandler(env.Stderr, options))
	}
	return slog.New(slog.NewJSONHandler(env.Stderr, options))
}

// readable writes every duration of a record in the one form that settings have, and not as a number of nanoseconds.
func readable(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() != slog.KindDuration {
		return a
	}
	d := a.Value.Duration()
	if d > time.Second {
		d = d.Round(time.Millisecond)
	}
	return slog.String(a.Key, duration.Format(d))
}

// logSettings records what is in force, secrets masked: what differs from the defaults, since the rest is in the
// documents of this version.
func logSettings(log *slog.Logger, settings []*setting) {
	var changed []any
	for _, s := range settings {
		if s.source != "default" {
			changed = append(changed, slog.String(s.key, s.text()))
		}
	}
	log.Info("starting", "version", version(), slog.Group("settings", changed...))
	for _, s := range settings {
		log.Debug("setting", "key", s.key, "value", s.text(), "source", s.source)
	}
}
