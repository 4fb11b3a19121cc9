package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/internal/cli"
	"sluice.example/sluice/operate/audit"
	"sluice.example/sluice/operate/tune"
	"sluice.example/sluice/pipeline/buffer"
)

const tuneAbout = `Changes settings while processes run. A change ends by itself after --for, unless that is 0, and
every node says whether it took it. The file stays what it is: write what proves itself there.

  pipeline tune                   what is changed, by whom, why, until when, and what each node made of it
  pipeline tune set KEY VALUE     for all nodes, or the one of --node
  pipeline tune unset KEY         as configured again

KEY is buffer.max-events, buffer.max-wait, deliver.claim-batch, or destination.NAME.paused.`

func tuneCommand(ctx context.Context, args []string, env cli.Env) error {
	fs := cli.NewFlags(env, "tune", tuneAbout, `pipeline tune
pipeline tune set deliver.claim-batch 2000 --for 10m --why "fewer claims"
pipeline tune set destination.crm.paused true --for 0 --why "their deploy"
pipeline tune unset deliver.claim-batch --why "no difference"`)
	by := audit.CommandLine()
	within := 10 * time.Minute
	cli.Duration(fs, &within, "for", within, "the `time` after which it ends by itself; 0 is never")
	fs.StringVar(&by.Why, "why", "", "the `reason`; set needs one")
	node := fs.String("node", "", "only the node of this `name` (default: all)")
	asJSON := fs.Bool("json", false, "list as JSON")
	settings := databaseFlags(fs)
	rest, err := cli.Parse(fs, args, 3)
	if err != nil {
		return err
	}
	action := append(rest, "list")[0]
	if want := map[string]int{"list": 1, "set": 3, "unset": 2}[action]; want == 0 || len(rest) != want && len(rest) > 0 {
		return cli.Usagef("write tune, tune set KEY VALUE, or tune unset KEY")
	}
	cfg, err := settings(env.Environ)
	if err != nil {
		return err
	}
	return withDatabase(ctx, cfg, func(conn *pgx.Conn) error {
		switch action {
		case "set":
			revision, err := tune.Set(ctx, conn, *node, rest[1], rest[2], within, by)
			if err == nil {
				fmt.Fprintf(env.Stdout, "%s = %s, revision %d; \"pipeline tune\" shows what each node made of it\n", rest[1],
					rest[2], revision)
			}
			return err
		case "unset":
			err := tune.Unset(ctx, conn, *node, rest[1], by)
			if err == nil {
				fmt.Fprintf(env.Stdout, "%s is as configured again\n", rest[1])
			}
			return err
		}
		all, err := tune.Show(ctx, conn)
		if err != nil {
			return err
		}
		return cli.Print(env.Stdout, *asJSON, all)
	})
}

// live are the settings of this process that can change while it runs.
func (p *parts) live() tune.Live {
	live := tune.Live{}
	if b := p.buffer; b != nil {
		live[tune.MaxEvents] = numbered(b.SetMaxEvents)
		live[tune.MaxWait] = func(value string) error {
			if value == "" {
				return b.SetMaxWait(p.cfg.buffer.MaxWait)
			}
			d, err := tune.Wait(value, buffer.Auto)
			if err != nil {
				return err
			}
			return b.SetMaxWait(d)
		}
	}
	if d := p.dispatcher; d != nil {
		live[tune.ClaimBatch] = numbered(d.SetClaimBatch)
		for _, name := range p.destinations.Names() {
			live[tune.Of(tune.Paused, name)] = func(value string) error {
				if value == "" {
					return d.Unpause(name)
				}
				paused, err := strconv.ParseBool(value)
				if err != nil {
					return err
				}
				return d.Pause(name, paused)
			}
			live[tune.Of(tune.Probe, name)] = func(value string) error {
				if value == "" {
					return nil
				}
				return d.Probe(name)
			}
		}
	}
	return live
}

// numbered reads a number for set; 0 is the configuration's.
func numbered(set func(int) error) tune.Apply {
	return func(value string) error {
		if value == "" {
			return set(0)
		}
		n, err := strconv.Atoi(value)
		if err != nil {
			return err
		}
		return set(n)
	}
}
