// Package audit keeps what operators have changed: who, when, what, and why. A row is written in the transaction of its
// change, so there is one for each change that was made and none for any other; nobody changes or removes rows.
package audit

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/user"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Actor is who changes something.
type Actor struct {
	// Name is a login of the console, or user@host.
	Name string
	// Via is Command or Console.
	Via string
	// Why is the reason that was given, if any.
	Why string
}

// The ways by which something is changed.
const (
	Command = "command"
	Console = "console"
)

// CommandLine is whoever runs this process.
func CommandLine() Actor {
	name := "unknown"
	if u, err := user.Current(); err == nil && u.Username != "" {
		name = u.Username
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return Actor{Name: name + "@" + host, Via: Command}
}

// Entry is a row.
type Entry struct {
	ID     int64           `db:"audit_id" json:"audit_id"`
	At     time.Time       `db:"at" json:"at"`
	Actor  string          `db:"actor" json:"actor"`
	Via    string          `db:"via" json:"via"`
	Action string          `db:"action" json:"action"`
	Target string          `db:"target" json:"target"`
	Why    string          `db:"why" json:"why"`
	Before json.RawMessage `db:"before" json:"before,omitempty"`
	After  json.RawMessage `db:"after" json:"after,omitempty"`
}

// Execer is a transaction, or a connection where the row is all there is to write.
type Execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

const writeSQL = `
insert into operator_audit (actor, via, action, target, why, before, after)
values ($1, $2, $3, $4, $5, $6::text::jsonb, $7::text::jsonb)`

// Write adds a row: who did what to what. before and after are written as JSON; nil is none.
func Write(ctx context.Context, tx Execer, by Actor, action, target string, before, after any) error {
	args := []any{pgx.QueryExecModeCacheDescribe, by.Name, by.Via, action, target, by.Why}
	for _, v := range []any{before, after} {
		if v == nil {
			args = append(args, nil)
			continue
		}
		text, err := json.Marshal(v)
		if err != nil {
			return fmt.Errorf("audit: %w", err)
		}
		args = append(args, string(text))
	}
	if _, err := tx.Exec(ctx, writeSQL, args...); err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	return nil
}

// DB is a connection, a pool or a transaction.
type DB interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Filter picks rows; empty fields match all. Target and Action are parts of theirs.
type Filter struct{ Actor, Action, Target string }

const listSQL = `
select audit_id, at, actor, via, action, target, why, before, after
from operator_audit
where ($1 = '' or actor = $1) and position($2 in action) > 0 and position($3 in target) > 0
    and ($4::bigint = 0 or audit_id < $4)
order by audit_id desc
limit $5`

// List returns the newest rows that match: at most limit of those before an id (0: from the newest).
func List(ctx context.Context, db DB, f Filter, before int64, limit int) (Entries, error) {
	rows, err := db.Query(ctx, listSQL, pgx.QueryExecModeCacheDescribe, f.Actor, f.Action, f.Target, before, limit)
	if err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	entries, err := pgx.AppendRows(Entries{}, rows, pgx.RowToStructByName[Entry])
	if err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	return entries, nil
}

// Entries are rows, the newest first. As JSON they are an array.
type Entries []Entry

// Print writes a line for each.
func (entries Entries) Print(w io.Writer) error {
	var b strings.Builder
	for _, e := range entries {
		fmt.Fprintf(&b, "%s  %s (%s)  %s  %s", e.At.UTC().Format(time.RFC3339), e.Actor, e.Via, e.Action, e.Target)
		if e.Why != "" {
			fmt.Fprintf(&b, "  %q", e.Why)
		}
		b.WriteByte('\n')
	}
	if len(entries) == 0 {
		b.WriteString("nothing is on record\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}
