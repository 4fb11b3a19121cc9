package main

import (
	"context"
	"fmt"
	"math"
	"strconv"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/internal/cli"
	"sluice.example/sluice/operate/audit"
	"sluice.example/sluice/operate/outbox"
)

const jobsAbout = `What operators change in bulk: jobs of "pipeline outbox retry" and "discard", which the command
itself does, and of the console, which processes with the role console do.

  pipeline jobs list         how far each is, the newest first
  pipeline jobs pause ID     no more messages are changed until it is resumed
  pipeline jobs resume ID
  pipeline jobs cancel ID    it ends where it is; what was changed stays`

func jobsCommand(ctx context.Context, args []string, env cli.Env) error {
	fs := cli.NewFlags(env, "jobs", jobsAbout,
		"pipeline jobs list\npipeline jobs pause 3 --why \"the receiver is down again\"")
	by := audit.CommandLine()
	fs.StringVar(&by.Why, "why", "", "the `reason`, for the audit")
	before := fs.Int64("before", 0, "list jobs before this `id`: the next page")
	asJSON := fs.Bool("json", false, "list as JSON")
	settings := databaseFlags(fs)
	action, rest, err := cli.ParseAction(fs, args, map[string]int{"list": 0, "pause": 1, "resume": 1, "cancel": 1})
	if err != nil {
		return err
	}
	id := int64(0)
	if action != "list" {
		if len(rest) == 0 {
			return cli.Usagef("jobs %s: give the id of a job", action)
		}
		if id, err = strconv.ParseInt(rest[0], 10, 64); err != nil || id < 1 || id == math.MaxInt64 {
			return cli.Usagef("jobs %s: %q is not the id of a job", action, rest[0])
		}
	}
	cfg, err := settings(env.Environ)
	if err != nil {
		return err
	}
	return withDatabase(ctx, cfg, func(conn *pgx.Conn) error {
		if action == "list" {
			jobs, err := outbox.Jobs(ctx, conn, *before, 50)
			if err != nil {
				return err
			}
			return cli.Print(env.Stdout, *asJSON, outbox.JobList(jobs))
		}
		steer := map[string]outbox.Steer{"pause": outbox.Pause, "resume": outbox.Resume, "cancel": outbox.Cancel}[action]
		if err := steer.Do(ctx, conn, id, by); err != nil {
			return err
		}
		fmt.Fprintf(env.Stdout, "job %d %s\n", id, steer.Done)
		return nil
	})
}
