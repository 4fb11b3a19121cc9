package main

import (
	"context"
	"fmt"

	"sluice.example/sluice/internal/cli"
)

const migrateAbout = `Applies the migrations that the database lacks, one transaction each, and ends. Several processes
may do so at once. "pipeline run" does the same at its start.`

// migrateCommand brings the schema up to date and ends; "pipeline run" does the same at its start.
func migrateCommand(ctx context.Context, args []string, env cli.Env) error {
	cfg := defaultConfig()
	_, err := readConfig(cfg, "migrate", migrateAbout,
		"DATABASE_URL=postgres://owner@db/events pipeline migrate", args, env)
	if err != nil {
		return err
	}
	log := newLogger(env, cfg)
	start, cancel := context.WithTimeout(ctx, cfg.startTimeout)
	defer cancel()
	if cfg.databaseURL != "" {
		applied, err := (&database{url: cfg.databaseURL}).migrate(start, log)
		if err != nil {
			return err
		}
		fmt.Fprintf(env.Stdout, "migrate: %d applied\n", applied)
		return nil
	}
	db, err := openDatabase(start, cfg, log)
	if err != nil {
		return err
	}
	fmt.Fprintf(env.Stdout, "migrate: the private PostgreSQL under %s is up to date\n", cfg.dataDir)
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), cfg.drainTimeout)
	defer cancel()
	return db.close(stop, cfg.drainTimeout)
}
