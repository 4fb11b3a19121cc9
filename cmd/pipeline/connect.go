package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/internal/cli"
)

// databaseFlags adds the flags that say where the database is to a command with flags of its own. The returned func
// gives the settings once the flags are parsed: flags over environment over file, as everywhere.
func databaseFlags(fs *flag.FlagSet) func(environ []string) (*config, error) {
	file := fs.String("config", "", "configuration `file`, the one of \"pipeline run\"")
	address := fs.String("database-url", "", "`URL` of the database; also DATABASE_URL")
	dir := fs.String("data-dir", "", "`folder` of the private PostgreSQL (default .pipeline); not used with a database-url")
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

// withDatabase calls f with a connection to the configured database, or to the private PostgreSQL of a pipeline that runs.
func withDatabase(ctx context.Context, cfg *config, f func(*pgx.Conn) error) error {
	address := cfg.databaseURL
	if address == "" {
		var err error
		if address, err = runningPostgres(cfg.dataDir); err != nil {
			return err
		}
	}
	settings, err := pgx.ParseConfig(address)
	if err != nil {
		return fmt.Errorf("database-url: %w", err)
	}
	if settings.ConnectTimeout == 0 {
		settings.ConnectTimeout = 10 * time.Second
	}
	conn, err := pgx.ConnectConfig(ctx, settings)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return f(conn)
}

// runningPostgres gives the address of the private PostgreSQL that a pipeline runs under dir.
func runningPostgres(dir string) (string, error) {
	text, err := os.ReadFile(filepath.Join(dir, "postgres", "postmaster.pid"))
	if errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("no pipeline runs on %s: start it, or name the database with --database-url", dir)
	}
	if err != nil {
		return "", err
	}
	// PostgreSQL's own file: process id, data directory, start time, port, socket directory.
	lines := strings.Split(string(text), "\n")
	if len(lines) < 5 {
		return "", fmt.Errorf("the PostgreSQL under %s is just starting", dir)
	}
	return fmt.Sprintf("postgres:///sluice?host=%s&port=%s&user=sluice&sslmode=disable",
		url.QueryEscape(strings.TrimSpace(lines[4])), strings.TrimSpace(lines[3])), nil
}
