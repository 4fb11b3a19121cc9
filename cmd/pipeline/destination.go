package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/internal/cli"
	"sluice.example/sluice/operate/audit"
	"sluice.example/sluice/operate/destinations"
)

const destinationAbout = `Steers a destination on all nodes, within seconds and over restarts.

  pipeline destination pause NAME    claim no more messages for it; what is under way is still sent
  pipeline destination resume NAME
  pipeline destination probe NAME    try it now where its circuit breaker is open, with the next message that is due
  pipeline destination test NAME     send it a message of type sluice.test, signed as any other, and print its id;
                                     "pipeline outbox show ID" tells what came back

What waits for each is in "pipeline doctor --json" and in the console.`

func destinationCommand(ctx context.Context, args []string, env cli.Env) error {
	fs := cli.NewFlags(env, "destination", destinationAbout,
		"pipeline destination pause crm --why \"their deploy\"\npipeline destination test crm")
	by := audit.CommandLine()
	fs.StringVar(&by.Why, "why", "", "the `reason`, which all but test need")
	settings := databaseFlags(fs)
	action, rest, err := cli.ParseAction(fs, args, map[string]int{"pause": 1, "resume": 1, "probe": 1, "test": 1})
	if err != nil {
		return err
	}
	if len(rest) == 0 {
		return cli.Usagef("destination %s: give the name of a destination", action)
	}
	if by.Why == "" && action != "test" {
		return cli.Usage(errors.New("--why: say why: whoever is paged at night will want to know"))
	}
	cfg, err := settings(env.Environ)
	if err != nil {
		return err
	}
	name := rest[0]
	return withDatabase(ctx, cfg, func(conn *pgx.Conn) (err error) {
		switch action {
		case "pause":
			err = destinations.Pause(ctx, conn, name, by)
		case "resume":
			err = destinations.Resume(ctx, conn, name, by)
		case "probe":
			err = destinations.Probe(ctx, conn, name, by)
		case "test":
			id, err := destinations.Test(ctx, conn, name, by)
			if err == nil {
				fmt.Fprintf(env.Stdout, "message %d; pipeline outbox show %d\n", id, id)
			}
			return err
		}
		if err == nil {
			fmt.Fprintf(env.Stdout, "%s: %s; \"pipeline tune\" shows what each node made of it\n", name, action)
		}
		return err
	})
}
