package main

import (
	"context"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/internal/cli"
	"sluice.example/sluice/operate/audit"
)

const auditAbout = `Prints what operators have changed, by command or in the console, the newest first: when, who, what,
and why. A row is written in the transaction of its change, and nobody changes or removes one.`

func auditCommand(ctx context.Context, args []string, env cli.Env) error {
	var f audit.Filter
	fs := cli.NewFlags(env, "audit", auditAbout, "pipeline audit --action retry\npipeline audit --actor ann --json")
	fs.StringVar(&f.Actor, "actor", "", "only what this `name` did")
	fs.StringVar(&f.Action, "action", "", "only actions that hold this `text`")
	fs.StringVar(&f.Target, "target", "", "only where the target holds this `text`, such as \"message 17\"")
	before := fs.Int64("before", 0, "rows before this `id`: the next page")
	limit := fs.Int("limit", 50, "most `rows` to print")
	asJSON := fs.Bool("json", false, "print as JSON")
	settings := databaseFlags(fs)
	if _, err := cli.Parse(fs, args, 0); err != nil {
		return err
	}
	if *limit < 1 {
		return cli.Usagef("--limit: %d; has to be above 0", *limit)
	}
	cfg, err := settings(env.Environ)
	if err != nil {
		return err
	}
	return withDatabase(ctx, cfg, func(conn *pgx.Conn) error {
		entries, err := audit.List(ctx, conn, f, *before, *limit)
		if err != nil {
			return err
		}
		return cli.Print(env.Stdout, *asJSON, entries)
	})
}
