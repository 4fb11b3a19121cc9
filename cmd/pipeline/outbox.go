package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"sluice.example/sluice/internal/cli"
	"sluice.example/sluice/internal/spell"
	"sluice.example/sluice/operate/audit"
	"sluice.example/sluice/operate/outbox"
	"sluice.example/sluice/pipeline/claim"

	"github.com/jackc/pgx/v5"
)

const outboxAbout = `What was promised to be delivered, and what became of it.

  pipeline outbox list            messages, newest first
  pipeline outbox show ID         one message, its payload, and every attempt
  pipeline outbox retry [ID...]   make dead messages due again; --status picks others
  pipeline outbox discard [ID...] give messages up that are not final, and dead ones

retry and discard say what they would do; with --yes they do it, --rate messages a second, as a job: after
an interruption the same command goes on where it ended, and changes each message once. A retried
message keeps its Idempotency-Key; a broker that drops repeats gets another id for it.`

type outboxOptions struct {
	filter claim.Filter
	limit  int
	before int64
	after  int64
	rate   float64
	asJSON bool
	yes    bool
	why    string
}

func outboxCommand(ctx context.Context, args []string, env cli.Env) error {
	var o outboxOptions
	fs := cli.NewFlags(env, "outbox", outboxAbout, `pipeline outbox list --status dead --destination crm
pipeline outbox show 1017
pipeline outbox retry --destination crm --error "HTTP 410" --newer 2d --rate 50 --yes
pipeline outbox discard 1017 1018 --yes`)
	o.addFlags(fs)
	settings := databaseFlags(fs)
	action, rest, err := cli.ParseAction(fs, args, map[string]int{"list": 0, "show": 1, "retry": math.MaxInt,
		"discard": math.MaxInt})
	if err != nil {
		return err
	}
	for _, text := range rest {
		id, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return cli.Usagef("unexpected argument %q", text)
		}
		o.filter.IDs = append(o.filter.IDs, id)
	}
	switch {
	case action == "show" && len(o.filter.IDs) != 1:
		return cli.Usage(errors.New("give the id of one message"))
	case !(o.rate > 0):
		return cli.Usagef("--rate: %g; has to be above 0", o.rate)
	case o.limit < 1:
		return cli.Usagef("--limit: %d; has to be above 0", o.limit)
	}
	cfg, err := settings(env.Environ)
	if err != nil {
		return err
	}
	return withDatabase(ctx, cfg, func(conn *pgx.Conn) error {
		switch action {
		case "list":
			return listOutbox(ctx, conn, o, env.Stdout, env.Stderr)
		case "show":
			return showMessage(ctx, conn, o, env.Stdout)
		case "retry":
			return changeOutbox(ctx, conn, o, outbox.Retry, env.Stdout)
		}
		return changeOutbox(ctx, conn, o, outbox.Discard, env.Stdout)
	})
}

func (o *outboxOptions) addFlags(fs *flag.FlagSet) {
	fs.StringVar(&o.filter.Destination, "destination", "", "only this destination's `name`")
	fs.StringVar(&o.filter.Type, "type", "", "only this rule's `id` or event type")
	fs.StringVar(&o.filter.Subject, "subject", "", "only this subject `key`")
	fs.StringVar(&o.filter.Error, "error", "", "only where the last error holds this `text`")
	fs.Func("tenant", "only this tenant's `id`", func(s string) error {
		id, err := strconv.ParseInt(s, 10, 32)
		o.filter.Tenant = int32(id)
		return err
	})
	fs.Func("status", "only these `statuses`, comma-separated: pending, failed, sent, skipped, dead",
		func(s string) error {
			known := []string{"pending", "failed", "sent", "skipped", "dead"}
			for status := range strings.SplitSeq(s, ",") {
				if !slices.Contains(known, status) {
					return fmt.Errorf("unknown status %q%s", status, spell.DidYouMean(status, known))
				}
				o.filter.Statuses = append(o.filter.Statuses, status)
			}
			return nil
		})
	cli.Duration(fs, &o.filter.OlderThan, "older", 0, "only messages made longer ago than this `age`, such as 12h or 30d")
	cli.Duration(fs, &o.filter.NewerThan, "newer", 0, "only messages made within this `age`")
	cli.Duration(fs, &o.filter.WaitsOver, "waits", 0, "only messages that are to wait longer than this `time`, as after "+
		"a step of the database's clock; longer than every claim.lease")
	fs.IntVar(&o.limit, "limit", 50, "most `messages` to list")
	fs.Int64Var(&o.before, "before", 0, "list messages before this `id`: the next page")
	fs.Int64Var(&o.after, "after", 0, "retry or discard only messages after this `id`")
	fs.Float64Var(&o.rate, "rate", 500, "retry or discard at most this many `messages` a second")
	fs.BoolVar(&o.asJSON, "json", false, "list and show as JSON, one message a line")
	fs.StringVar(&o.why, "why", "", "retry or discard: the `reason`, for the audit")
	fs.BoolVar(&o.yes, "yes", false, "do it, do not only say what would be done")
}

func listOutbox(ctx context.Context, db claim.DB, o outboxOptions, w, notes io.Writer) error {
	messages, reached, err := outbox.List(ctx, db, o.filter, o.before, o.limit)
	if err != nil {
		return err
	}
	out := json.NewEncoder(w)
	for _, m := range messages {
		if o.asJSON {
			err = out.Encode(m)
		} else {
			err = m.Print(w)
		}
		if err != nil {
			return err
		}
	}
	switch {
	case reached > 0:
		if !o.asJSON {
			notes = w
		}
		fmt.Fprintf(notes, "messages were looked at down to %d; go on with --before %d\n", reached, reached)
	case o.asJSON:
	case len(messages) == 0:
		fmt.Fprintln(w, "no such messages")
	case len(messages) == o.limit:
		fmt.Fprintf(w, "there may be more: --before %d\n", messages[len(messages)-1].ID)
	}
	return nil
}

func showMessage(ctx context.Context, db claim.DB, o outboxOptions, w io.Writer) error {
	m, attempts, err := outbox.Show(ctx, db, o.filter.IDs[0])
	if err != nil {
		return err
	}
	if !o.asJSON {
		return outbox.PrintStory(w, m, attempts)
	}
	out := json.NewEncoder(w)
	err = out.Encode(m)
	for _, a := range attempts {
		err = errors.Join(err, out.Encode(a))
	}
	return err
}

// changeOutbox prints what would be changed, or changes it.
func changeOutbox(ctx context.Context, db *pgx.Conn, o outboxOptions, c outbox.Change, w io.Writer) error {
	if o.filter.Statuses == nil {
		o.filter.Statuses = c.Statuses
	}
	groups, err := claim.Count(ctx, db, o.filter)
	if err != nil {
		return err
	}
	var total int64
	for _, g := range groups {
		total += g.Messages
		fmt.Fprintf(w, "%s: %d %s\n", g.Destination, g.Messages, g.Status)
	}
	if !o.yes {
		fmt.Fprintf(w, "%d messages would be %s; with --yes they are\n", total, c.Done)
		return nil
	}
	by := audit.CommandLine()
	by.Why = o.why
	return c.Apply(ctx, db, o.filter, o.after, o.rate, by, func(p outbox.Progress) {
		if p.Done {
			fmt.Fprintf(w, "%d messages %s by job %d\n", p.Changed, c.Done, p.Job)
			if p.InFlight > 0 {
				fmt.Fprintf(w, "%d messages are in flight and were left alone; repeat the command after %s\n", p.InFlight,
					p.Until.UTC().Format(time.RFC3339))
			}
			return
		}
		fmt.Fprintf(w, "%d of %d %s, up to message %d\n", p.Changed, total, c.Done, p.Last)
	})
}
