package main

import (
	"log/slog"
	"strings"
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

// warnOfEnvironment names variables that look as if they were meant for us and are not used.
func warnOfEnvironment(log *slog.Logger, cfg *config, environ []string) {
	var services []string
	for _, v := range environ {
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "PIPELINE_") && cli.IsServiceVariable(name) {
			services = append(services, name)
		}
	}
	if len(services) > 0 {
		log.Warn("variables that Kubernetes or Docker sets for a service are no settings, and are ignored", "variables",
			services)
	}
	if name := cli.DatabaseVariable(environ); cfg.databaseURL == "" && name != "" {
		log.Warn("no database-url is set, so a private PostgreSQL starts; is the address of yours meant, which another "+
			"variable has? Its name has to be DATABASE_URL or PIPELINE_DATABASE_URL", "variable", name)
	}
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
