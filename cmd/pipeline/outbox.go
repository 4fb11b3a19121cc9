package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"sluice.example/sluice/internal/cli"
	"sluice.example/sluice/internal/wait"
	"sluice.example/sluice/pipeline/claim"

	"github.com/jackc/pgx/v5"
)

const outboxAbout = `What was promised to be delivered, and what became of it.

  pipeline outbox list            messages, newest first
  pipeline outbox show ID         one message, its payload, and every attempt
  pipeline outbox retry [ID...]   make dead messages due again; --status picks others
  pipeline outbox discard [ID...] give messages up that are not final, and dead ones

retry and discard say what they would do; with --yes they do it, --rate messages a second. What they did is done, so
after an interruption the same command goes on; --after ID skips what was looked at.
A retried message keeps its Idempotency-Key; a broker that drops repeats gets another id for it.`

type outboxOptions struct {
	filter claim.Filter
	limit  int
	before int64
	after  int64
	rate   float64
	asJSON bool
	yes    bool
}

func outboxCommand(ctx context.Context, args []string, env cli.Env) error {
	var o outboxOptions
	fs := cli.NewFlags(env, "outbox", outboxAbout, `pipeline outbox list --status dead --destination crm
pipeline outbox show 1017
pipeline outbox retry --destination crm --error "HTTP 410" --newer 2d --rate 50 --yes
pipeline outbox discard 1017 1018 --yes`)
	duration := func(name, usage string, target *time.Duration) {
		fs.Func(name, usage, func(s string) (err error) {
			*target, err = cli.ParseDuration(s)
			return err
		})
	}
	fs.StringVar(&o.filter.Destination, "destination", "", "only this destination's `name`")
	fs.StringVar(&o.filter.Type, "type", "", "only this rule's `id` or event type")
	fs.StringVar(&o.filter.Subject, "subject", "", "only this subject `key`")
	fs.StringVar(&o.filter.Error, "error", "", "only where the last error holds this `text`")
	fs.Func("tenant", "only this tenant's `id`", func(s string) error {
		id, err := strconv.ParseInt(s, 10, 32)
		o.filter.Tenant = int32(id)
		return err
	})
	fs.Func("status", "only these `statuses`, comma-separated: pending, failed, sent, skipped, dead", func(s string) error {
		known := []string{"pending", "failed", "sent", "skipped", "dead"}
		for status := range strings.SplitSeq(s, ",") {
			if !slices.Contains(known, status) {
				return fmt.Errorf("unknown status %q%s", status, cli.DidYouMean(status, known))
			}
			o.filter.Statuses = append(o.filter.Statuses, status)
		}
		return nil
	})
	duration("older", "only messages made longer ago than this `age`, such as 12h or 30d", &o.filter.OlderThan)
	duration("newer", "only messages made within this `age`", &o.filter.NewerThan)
	fs.IntVar(&o.limit, "limit", 50, "most `messages` to list")
	fs.Int64Var(&o.before, "before", 0, "list messages before this `id`: the next page")
	fs.Int64Var(&o.after, "after", 0, "retry or discard only messages after this `id`: go on after an interruption")
	fs.Float64Var(&o.rate, "rate", 500, "retry or discard so many `messages` a second")
	fs.BoolVar(&o.asJSON, "json", false, "list and show as JSON, one message a line")
	fs.BoolVar(&o.yes, "yes", false, "do it, do not only say what would be done")
	settings := databaseFlags(fs)
	action, rest, err := cli.ParseAction(fs, args, map[string]int{"list": 0, "show": 1, "retry": math.MaxInt, "discard": math.MaxInt})
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
			return listOutbox(ctx, conn, o, env.Stdout)
		case "show":
			return showOutbox(ctx, conn, o, env.Stdout)
		case "retry":
			if o.filter.Statuses == nil {
				o.filter.Statuses = []string{"dead"}
			}
			return changeOutbox(ctx, conn, o, "retried", claim.Retry, env.Stdout)
		}
		if o.filter.Statuses == nil {
			o.filter.Statuses = []string{"pending", "failed", "dead"}
		}
		return changeOutbox(ctx, conn, o, "discarded", claim.Discard, env.Stdout)
	})
}

func listOutbox(ctx context.Context, db claim.DB, o outboxOptions, w io.Writer) error {
	rows, err := claim.List(ctx, db, o.filter, o.before, o.limit)
	if err != nil {
		return err
	}
	for _, r := range rows {
		if err := printMessage(w, r, o.asJSON); err != nil {
			return err
		}
	}
	switch {
	case o.asJSON:
	case len(rows) == 0:
		fmt.Fprintln(w, "no such messages")
	case len(rows) == o.limit:
		fmt.Fprintf(w, "there may be more: --before %d\n", rows[len(rows)-1].ID)
	}
	return nil
}

// messageJSON is a message as --json prints it.
type messageJSON struct {
	ID             int64             `json:"message_id"`
	Tenant         int32             `json:"tenant_id"`
	Type           string            `json:"type"`
	Subject        string            `json:"subject_key"`
	DedupeKey      string            `json:"dedupe_key"`
	IdempotencyKey string            `json:"idempotency_key"`
	Destination    string            `json:"destination"`
	Status         string            `json:"status"`
	State          string            `json:"state"`
	Attempts       int               `json:"attempts"`
	Redrives       int               `json:"redrives"`
	CreatedAt      time.Time         `json:"created_at"`
	RunAfter       time.Time         `json:"run_after"`
	FinishedAt     *time.Time        `json:"finished_at"`
	LastError      string            `json:"last_error"`
	Headers        map[string]string `json:"headers"`
	Payload        json.RawMessage   `json:"payload"`
}

// messageState says more than the status does.
func messageState(r claim.Row) string {
	switch {
	case r.Leased:
		return r.Status + ", leased"
	case r.Overdue && r.Due:
		return r.Status + ", due; its last worker gave no result"
	case r.Due:
		return r.Status + ", due"
	case r.FinishedAt == nil && (r.Status == "pending" || r.Status == "failed"):
		return r.Status + ", due at " + r.RunAfter.UTC().Format(time.RFC3339)
	}
	return r.Status
}

func printMessage(w io.Writer, r claim.Row, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(messageJSON{r.ID, r.Tenant, r.Type, r.SubjectKey, r.DedupeKey, r.IdempotencyKey.String(), r.Destination, r.Status,
			messageState(r), r.Attempts, r.Redrives, r.CreatedAt.UTC(), r.RunAfter.UTC(), r.FinishedAt, r.LastError, r.Headers, r.Payload})
	}
	_, err := fmt.Fprintf(w, "%d  %s  %s  %s to %s for %q, %d attempts\n", r.ID, r.CreatedAt.UTC().Format(time.RFC3339), messageState(r), r.Type, r.Destination, r.SubjectKey, r.Attempts)
	if err == nil && r.LastError != "" {
		_, err = fmt.Fprintf(w, "    %s\n", oneLine(r.LastError))
	}
	return err
}

// oneLine keeps a receiver's answer from moving the operator's cursor.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return ' '
		}
		return r
	}, s)
}

func showOutbox(ctx context.Context, db claim.DB, o outboxOptions, w io.Writer) error {
	r, attempts, err := claim.Show(ctx, db, o.filter.IDs[0])
	if err != nil {
		return err
	}
	if err := printMessage(w, r, o.asJSON); err != nil {
		return err
	}
	if o.asJSON {
		for _, a := range attempts {
			line := map[string]any{"attempt": a.Number, "started_at": a.StartedAt.UTC(), "seconds": a.Latency.Seconds(), "status": a.Status, "http_status": a.HTTPStatus, "error": a.Error}
			if err := json.NewEncoder(w).Encode(line); err != nil {
				return err
			}
		}
		return nil
	}
	fmt.Fprintf(w, "    tenant %d, Idempotency-Key %s, dedupe key %q, redrives %d\n", r.Tenant, r.IdempotencyKey, r.DedupeKey, r.Redrives)
	if r.EventID != nil {
		fmt.Fprintf(w, "    decided by rule %s (%s) on event %s\n", r.RuleID, r.RuleHash, r.EventID)
	}
	fmt.Fprintf(w, "    payload: %s\n", r.Payload)
	for _, a := range attempts {
		number := "late"
		if a.Number > 0 {
			number = strconv.Itoa(a.Number)
		}
		fmt.Fprintf(w, "    attempt %s  %s  %s after %s  %s\n", number, a.StartedAt.UTC().Format(time.RFC3339Nano), a.Status, a.Latency.Round(time.Millisecond/10), oneLine(a.Error))
	}
	if len(attempts) == 0 {
		fmt.Fprintln(w, "    no attempts are on record")
	}
	return nil
}

// changeOutbox says what would be changed, or changes it in batches of what the rate allows in a second.
func changeOutbox(ctx context.Context, db claim.DB, o outboxOptions, done string,
	change func(context.Context, claim.DB, claim.Filter, int64, int) (int, int64, error), w io.Writer) error {
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
		fmt.Fprintf(w, "%d messages would be %s; with --yes they are\n", total, done)
		return nil
	}
	batch := min(max(1, int(o.rate)), 1000)
	pause := time.Duration(float64(batch) / o.rate * float64(time.Second))
	changed, last := 0, o.after
	for {
		n, next, err := change(ctx, db, o.filter, last, batch)
		if err != nil {
			return fmt.Errorf("%d messages %s, then: %w; go on with --after %d", changed, done, err, last)
		}
		changed, last = changed+n, next
		if n < batch {
			fmt.Fprintf(w, "%d messages %s\n", changed, done)
			return nil
		}
		fmt.Fprintf(w, "%d of %d %s, up to message %d\n", changed, total, done, last)
		if !wait.For(ctx, pause) {
			return fmt.Errorf("interrupted: %d messages %s; go on with --after %d", changed, done, last)
		}
	}
}
