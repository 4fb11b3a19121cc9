package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/internal/cli"
	"sluice.example/sluice/internal/localpg"
	"sluice.example/sluice/internal/pgsession"
)

// databaseFlags adds the flags that say where the database is to a command with flags of its own. The returned func
// returns the settings once the flags are parsed: flags over environment over file, as everywhere.
func databaseFlags(fs *flag.FlagSet) func(environ []string) (*config, error) {
	file := fs.String("config", "", "configuration `file`, the one of \"pipeline run\"")
	address := fs.String("database-url", "", "`URL` of the database; also DATABASE_URL")
	dir := fs.String("data-dir", "", "`folder` of the private PostgreSQL (default .pipeline); not used with a "+
		"database-url")
	return func(environ []string) (*config, error) {
		flags := map[string]string{}
		for key, value := range map[string]string{"config": *file, "database-url": *address, "data-dir": *dir} {
			if value != "" {
				flags[key] = value
			}
		}
		cfg := defaultConfig()
		if err := loadSettings(cfg.settings(), flags, environ); err != nil {
			return nil, cli.Usage(err)
		}
		return cfg, nil
	}
}

// withDatabase calls f with a connection to the configured database, or to the private PostgreSQL of a pipeline that
// runs.
func withDatabase(ctx context.Context, cfg *config, f func(*pgx.Conn) error) error {
	address := cfg.databaseURL
	if address == "" {
		var err error
		if address, err = runningPostgres(cfg.dataDir); err != nil {
			return err
		}
	}
	settings, err := pgx.ParseConfig(address)
	if err := cli.AddressError(address, err); err != nil {
		return err
	}
	if settings.ConnectTimeout == 0 {
		settings.ConnectTimeout = 10 * time.Second
	}
	pgsession.Configure(settings)
	conn, _, err := pgsession.Connect(ctx, settings)
	if err != nil {
		return pgsession.Explain(err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	pgsession.Register(conn)
	return f(conn)
}

// runningPostgres returns the URL of the private PostgreSQL that a pipeline runs under dir.
func runningPostgres(dir string) (string, error) {
	server, err := localpg.Find(dir)
	if errors.Is(err, localpg.ErrNotRunning) {
		return "", fmt.Errorf("no pipeline runs on %s: start it, or name the database with --database-url", dir)
	}
	return server.URL, err
}
