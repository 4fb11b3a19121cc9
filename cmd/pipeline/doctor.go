package main

import (
	"context"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/internal/cli"
	"sluice.example/sluice/operate/doctor"
)

const doctorAbout = `Says what is wrong, the worst first, and what to do about it: roles that nobody has, nodes that
are gone, destinations that fail or fall behind, messages given up, rules that fail, events in quarantine, and
what PostgreSQL runs out of. It looks at the database alone, as the overview of the console does, and the name in
brackets is a section of docs/operations.md. Exit status 1 where somebody should act now.`

func doctorCommand(ctx context.Context, args []string, env cli.Env) error {
	fs := cli.NewFlags(env, "doctor", doctorAbout, "pipeline doctor\npipeline doctor --json")
	asJSON := fs.Bool("json", false, "print the findings, and what was looked at, as JSON")
	settings := databaseFlags(fs)
	if _, err := cli.Parse(fs, args, 0); err != nil {
		return err
	}
	cfg, err := settings(env.Environ)
	if err != nil {
		return err
	}
	return withDatabase(ctx, cfg, func(conn *pgx.Conn) error {
		report, err := doctor.Look(ctx, conn)
		if err != nil {
			return err
		}
		if err := cli.Print(env.Stdout, *asJSON, report); err != nil {
			return err
		}
		return report.Err()
	})
}
