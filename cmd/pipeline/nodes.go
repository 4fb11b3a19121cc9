package main

import (
	"context"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/internal/cli"
	"sluice.example/sluice/operate/nodes"
)

const nodesAbout = `Prints the processes that share the database, those that ended within a day among them: roles,
address, version, load, and destinations that they send nothing to. Each says every five seconds that it runs.`

func nodesCommand(ctx context.Context, args []string, env cli.Env) error {
	fs := cli.NewFlags(env, "nodes", nodesAbout, "pipeline nodes\npipeline nodes --json")
	asJSON := fs.Bool("json", false, "print the answer as JSON")
	settings := databaseFlags(fs)
	if _, err := cli.Parse(fs, args, 0); err != nil {
		return err
	}
	cfg, err := settings(env.Environ)
	if err != nil {
		return err
	}
	return withDatabase(ctx, cfg, func(conn *pgx.Conn) error {
		all, err := nodes.List(ctx, conn)
		if err != nil {
			return err
		}
		return cli.Print(env.Stdout, *asJSON, nodes.Answer{Nodes: all})
	})
}
