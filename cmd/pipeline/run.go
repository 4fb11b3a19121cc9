package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"sluice.example/sluice/internal/cli"
	"sluice.example/sluice/internal/httpserve"
	"sluice.example/sluice/operate/books"
	"sluice.example/sluice/outbox"
	"sluice.example/sluice/pipeline/copyin"
)

const runAbout = `Takes events at POST /v1/events, stores them, decides by the rules, and delivers. Without a
database-url it makes a private PostgreSQL under data-dir. Several processes may share one database, each with any of
the roles.

SIGTERM and SIGINT drain, from the socket inwards, for at most drain-timeout; exit status 0 means that all was
done in time. A second signal stops at once, with 128 + its number; nothing that was acknowledged is lost by
that either.

--ready-file names a file for whoever starts the process: it is written once everything runs, as one JSON
object with "url" (of the events API), "admin", "database_url" (without its password) and "pid", and removed
when the process ends.`

func runPipeline(ctx context.Context, args []string, env cli.Env) error {
	cfg := defaultConfig()
	settings, err := readConfig(cfg, "run", runAbout, "pipeline run --rules rules/shop.yaml --destinations "+
		"destinations.yaml", args, env)
	if err != nil {
		return err
	}
	log := newLogger(env, cfg)
	logSettings(log, settings)
	return run(ctx, cfg, log)
}

// run is the process: the admin address first, so that the start can be watched; then the database, the stages, and the
// stop in the opposite direction.
func run(ctx context.Context, cfg *config, log *slog.Logger) (err error) {
	// SIGHUP asks the watcher of rules to look. A process without rules, or one that starts or drains, ignores it.
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	if err := cli.RemoveReady(cfg.readyFile); err != nil {
		return err
	}
	reg := newRegistry()
	ready := &readiness{}
	pages := &books.Handler{}
	admin, err := net.Listen("tcp", cfg.adminListen)
	if err != nil {
		return fmt.Errorf("admin.listen: %w", err)
	}
	adminCtx, stopAdmin := context.WithCancel(context.WithoutCancel(ctx))
	adminDone := make(chan error, 1)
	go func() {
		adminDone <- httpserve.Serve(adminCtx, admin, adminHandler(reg, ready, pages, log), time.Second)
	}()
	defer func() {
		stopAdmin()
		err = errors.Join(err, <-adminDone)
	}()
	log.Info("admin address", "url", "http://"+admin.Addr().String(), "paths",
		"/healthz /readyz /metrics /v1/books /debug/pprof/")

	db, err := openDatabase(ctx, cfg, log)
	if err != nil {
		if ctx.Err() != nil {
			return errors.New("stopped while starting")
		}
		return err
	}
	left := cfg.drainTimeout
	defer func() {
		// At least a moment, so that a private PostgreSQL gets its signal even where draining took all the time.
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), max(left, time.Second))
		defer cancel()
		err = errors.Join(err, db.close(limit))
		if err == nil {
			log.Info("stopped")
		}
	}()

	p, err := db.openPools(cfg, reg)
	if err != nil {
		return err
	}
	made, err := build(cfg, p, reg, log)
	if err != nil {
		return err
	}
	if cfg.destinations != "" {
		// Applications that enqueue are told of a wrong name in their own transaction.
		if err := outbox.SyncTopics(ctx, p.query, made.destinations.Names(), made.topics); err != nil {
			return err
		}
	}
	if err := pages.Begin(ctx, reg, p.query, made.tenants.IDs()); err != nil {
		return err
	}
	told := cli.Ready{
		Admin:    "http://" + admin.Addr().String(),
		Database: cli.StripPassword(db.url),
		Pid:      os.Getpid(),
	}
	var door net.Listener
	if made.server != nil {
		if door, err = net.Listen("tcp", cfg.listen); err != nil {
			return fmt.Errorf("listen: %w", err)
		}
		scheme := "http"
		if cfg.ingest.TLSCertFile != "" {
			scheme = "https"
		}
		told.URL = scheme + "://" + door.Addr().String()
		log.Info("taking events", "url", told.URL+"/v1/events")
	}
	checks := []func(context.Context) error{func(ctx context.Context) error {
		if err := p.query.Ping(ctx); err != nil {
			return fmt.Errorf("database: %w", err)
		}
		return nil
	}}
	if made.queue != nil {
		checks = append(checks, made.queue.Check)
	}
	if made.buffer != nil {
		checks = append(checks, func(ctx context.Context) error { return copyin.Check(ctx, p.query) })
		checks = append(checks, func(context.Context) error {
			if fill := made.buffer.Fill(); fill > cfg.readyFill {
				return fmt.Errorf("buffer: %.0f %% full (admin.ready-fill is %g)", 100*fill, cfg.readyFill)
			}
			return nil
		})
	}
	ready.started(checks...)
	// Last, since whoever reads the file relies on what it says.
	if err := told.Write(cfg.readyFile); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cli.RemoveReady(cfg.readyFile)) }()
	stopNotice := context.AfterFunc(ctx, func() { ready.draining.Store(true) })
	defer stopNotice()
	left, err = runStages(ctx, cfg.drainTimeout, log, made.stages(door))
	return err
}
