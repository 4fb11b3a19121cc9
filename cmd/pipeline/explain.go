package main

import (
	"context"
	"flag"
	"fmt"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/internal/cli"
	"sluice.example/sluice/operate/explain"
	"sluice.example/sluice/pipeline/rules"
)

const explainAbout = `Tells the story of an event or a message: what was stored, which rules looked at it, which
matched, what was suppressed and by what, what was sent where with which answer, and what happens next.

  pipeline explain EVENT_ID            as it was sent, or as a UUID
  pipeline explain MESSAGE_ID          the number from the outbox, or its idempotency key
  pipeline explain event|message ID    where an id may be either

What was stored, decided and sent is read. Why a match made no message is not on record: it is worked out from
the rules as they are now and from what is still remembered, and says so where that does not tell any more. A
message made by another version of its rule says so.

An event is looked up in every partition, and its messages among those made since it arrived; only a key that
was used before is looked for in the whole outbox.`

func explainCommand(ctx context.Context, args []string, env cli.Env) error {
	fs := cli.NewFlags(env, "explain", explainAbout, "pipeline explain order-4711 --rules rules/shop.yaml\npipeline "+
		"explain 12345")
	tenant := fs.Int("tenant", 1, "`id` of the tenant that the event belongs to")
	file := fs.String("rules", "", "rules `file` (default: the configured one)")
	asJSON := fs.Bool("json", false, "print the story as JSON")
	settings := databaseFlags(fs)
	rest, err := cli.Parse(fs, args, 2)
	if err != nil {
		return err
	}
	if len(rest) == 0 {
		fs.Usage()
		return flag.ErrHelp
	}
	as, id := explain.Anything, rest[len(rest)-1]
	if len(rest) == 2 {
		if as = explain.Kind(rest[0]); as != explain.AnEvent && as != explain.AMessage {
			return cli.Usagef("explain %s ID: say event or message", rest[0])
		}
	}
	cfg, err := settings(env.Environ)
	if err != nil {
		return err
	}
	if *file != "" {
		cfg.evaluate.Rules = *file
	}
	x := explain.Explainer{Tenant: int32(*tenant)}
	if cfg.evaluate.Rules != "" {
		known, err := knownNames(cfg)
		if err != nil {
			return err
		}
		if x.Set, err = rules.Load(cfg.evaluate.Rules, known); err != nil {
			return fmt.Errorf("the rules have errors; see \"pipeline rules check %s\"", cfg.evaluate.Rules)
		}
	}
	return withDatabase(ctx, cfg, func(conn *pgx.Conn) error {
		x.Conn = conn
		story, err := x.Explain(ctx, as, id)
		if err != nil {
			return err
		}
		return cli.Print(env.Stdout, *asJSON, story)
	})
}
