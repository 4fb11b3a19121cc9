package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/internal/cli"
	"sluice.example/sluice/operate/audit"
	"sluice.example/sluice/operate/quarantine"
)

const quarantineAbout = `Events that passed the door but that PostgreSQL would not store.

  pipeline quarantine list            what is there, newest first
  pipeline quarantine export [FILE]   as NDJSON, ready for "pipeline import" once the cause is gone
  pipeline quarantine delete          shows how many would go; with --yes they go`

func quarantineCommand(ctx context.Context, args []string, env cli.Env) error {
	var f quarantine.Filter
	fs := cli.NewFlags(env, "quarantine", quarantineAbout,
		"pipeline quarantine export refused.ndjson --sqlstate 22P05\npipeline quarantine delete --before 30d --yes")
	tenant := fs.Int("tenant", 0, "only this tenant's `id`; 0 is all")
	fs.StringVar(&f.SQLState, "sqlstate", "", "only this `code` of PostgreSQL")
	fs.StringVar(&f.Event, "event", "", "only this event `id`, as it was sent or as a UUID")
	cli.Duration(fs, &f.OlderThan, "before", 0, "only what is there for `longer` than this, such as 12h or 30d")
	limit := fs.Int("limit", 50, "most `rows` to list")
	yes := fs.Bool("yes", false, "delete, do not only say how many")
	asJSON := fs.Bool("json", false, "list as JSON")
	settings := databaseFlags(fs)
	action, rest, err := cli.ParseAction(fs, args, map[string]int{"list": 0, "export": 1, "delete": 0})
	if err != nil {
		return err
	}
	f.Tenant = int32(*tenant)
	cfg, err := settings(env.Environ)
	if err != nil {
		return err
	}
	return withDatabase(ctx, cfg, func(conn *pgx.Conn) error {
		switch {
		case action == "list":
			events, err := quarantine.List(ctx, conn, f, *limit)
			if err != nil {
				return err
			}
			return cli.Print(env.Stdout, *asJSON, events)
		case action == "export":
			return exportQuarantine(ctx, conn, f, append(rest, "-")[0], env)
		case *yes:
			n, err := quarantine.Delete(ctx, conn, f, audit.CommandLine())
			if err == nil {
				fmt.Fprintf(env.Stdout, "quarantine: %d events deleted\n", n)
			}
			return err
		}
		n, err := quarantine.Count(ctx, conn, f)
		if err == nil {
			fmt.Fprintf(env.Stdout, "quarantine: %d events would be deleted; repeat with --yes\n", n)
		}
		return err
	})
}

// exportQuarantine writes to a new file, or to standard output for "-".
func exportQuarantine(ctx context.Context, conn *pgx.Conn, f quarantine.Filter, name string, env cli.Env) (err error) {
	var out io.Writer = env.Stdout
	if name != "-" {
		file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, file.Close()) }()
		out = file
	}
	n, err := quarantine.Export(ctx, conn, f, out)
	fmt.Fprintf(env.Stderr, "quarantine: %d events exported\n", n)
	return err
}
