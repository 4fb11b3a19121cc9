package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/internal/cli"
	"sluice.example/sluice/pipeline"
)

const quarantineAbout = `Events that passed the door but that PostgreSQL would not store.

  pipeline quarantine list            what is there, newest first
  pipeline quarantine export [FILE]   as NDJSON, ready for "pipeline import" once the cause is gone
  pipeline quarantine delete          says how many would go; with --yes they go`

// quarantineFilter picks rows; empty fields match all.
type quarantineFilter struct {
	tenant   int
	sqlstate string
	event    string
	before   time.Duration
}

func quarantineCommand(ctx context.Context, args []string, env cli.Env) error {
	var f quarantineFilter
	fs := cli.NewFlags(env, "quarantine", quarantineAbout, "pipeline quarantine export refused.ndjson --sqlstate 22P05\npipeline quarantine delete --before 30d --yes")
	fs.IntVar(&f.tenant, "tenant", 0, "only this tenant's `id`; 0 is all")
	fs.StringVar(&f.sqlstate, "sqlstate", "", "only this `code` of PostgreSQL")
	fs.StringVar(&f.event, "event", "", "only this event `id`, as it was sent or as a UUID")
	fs.Func("before", "only what is there for `longer` than this, such as 12h or 30d", func(s string) (err error) {
		f.before, err = cli.ParseDuration(s)
		return err
	})
	limit := fs.Int("limit", 50, "most `rows` to list")
	yes := fs.Bool("yes", false, "delete, do not only say how many")
	settings := databaseFlags(fs)
	action, rest, err := cli.ParseAction(fs, args, map[string]int{"list": 0, "export": 1, "delete": 0})
	if err != nil {
		return err
	}
	cfg, err := settings(env.Environ)
	if err != nil {
		return err
	}
	return withDatabase(ctx, cfg, func(conn *pgx.Conn) error {
		switch action {
		case "list":
			return listQuarantine(ctx, conn, f, *limit, env.Stdout)
		case "export":
			return exportQuarantine(ctx, conn, f, append(rest, "-")[0], env)
		}
		return deleteQuarantine(ctx, conn, f, *yes, env.Stdout)
	})
}

func (f quarantineFilter) arguments() []any {
	var id *pipeline.UUID
	if f.event != "" {
		u, ok := pipeline.ParseUUID(f.event)
		if !ok {
			u = pipeline.HashUUID(f.event)
		}
		id = &u
	}
	return []any{f.tenant, f.sqlstate, id, f.before.Seconds()}
}

// quarantineWhereSQL reads the whole table, which is small in any healthy system.
const quarantineWhereSQL = ` from quarantine
where ($1 = 0 or tenant_id = $1) and ($2 = '' or sqlstate = $2) and ($3::uuid is null or event_id = $3)
    and quarantined_at <= now() - $4::float8 * interval '1 second'`

const listQuarantineSQL = `select tenant_id, event_id::text, occurred_at, quarantined_at, sqlstate, reason, octet_length(event)` +
	quarantineWhereSQL + ` order by quarantined_at desc, event_id limit $5`

func listQuarantine(ctx context.Context, conn *pgx.Conn, f quarantineFilter, limit int, w io.Writer) error {
	rows, err := conn.Query(ctx, listQuarantineSQL, append(f.arguments(), limit)...)
	if err != nil {
		return err
	}
	var tenant, size int
	var id, state, reason string
	var occurred, since time.Time
	n := 0
	_, err = pgx.ForEachRow(rows, []any{&tenant, &id, &occurred, &since, &state, &reason, &size}, func() error {
		n++
		_, err := fmt.Fprintf(w, "%s  tenant %d  %s  %d bytes, occurred %s\n    %s: %s\n", since.UTC().Format(time.RFC3339), tenant, id, size,
			occurred.UTC().Format(time.RFC3339), state, strings.ReplaceAll(reason, "\n", " "))
		return err
	})
	if err == nil && n == 0 {
		fmt.Fprintln(w, "nothing is in quarantine")
	}
	return err
}

const exportQuarantineSQL = `select event` + quarantineWhereSQL + ` order by quarantined_at, event_id`

func exportQuarantine(ctx context.Context, conn *pgx.Conn, f quarantineFilter, name string, env cli.Env) (err error) {
	out := env.Stdout
	if name != "-" {
		file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, file.Close()) }()
		out = file
	}
	buffered := bufio.NewWriter(out)
	rows, err := conn.Query(ctx, exportQuarantineSQL, f.arguments()...)
	if err != nil {
		return err
	}
	var event []byte
	n := 0
	if _, err := pgx.ForEachRow(rows, []any{&event}, func() error {
		n++
		_, err := fmt.Fprintf(buffered, "%s\n", event)
		return err
	}); err != nil {
		return err
	}
	fmt.Fprintf(env.Stderr, "quarantine: %d events exported\n", n)
	return buffered.Flush()
}

const (
	countQuarantineSQL  = `select count(*)` + quarantineWhereSQL
	deleteQuarantineSQL = `delete` + quarantineWhereSQL
)

func deleteQuarantine(ctx context.Context, conn *pgx.Conn, f quarantineFilter, yes bool, w io.Writer) error {
	if !yes {
		var n int
		if err := conn.QueryRow(ctx, countQuarantineSQL, f.arguments()...).Scan(&n); err != nil {
			return err
		}
		fmt.Fprintf(w, "quarantine: %d events would be deleted; repeat with --yes\n", n)
		return nil
	}
	tag, err := conn.Exec(ctx, deleteQuarantineSQL, f.arguments()...)
	if err == nil {
		fmt.Fprintf(w, "quarantine: %d events deleted\n", tag.RowsAffected())
	}
	return err
}
