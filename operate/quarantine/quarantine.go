// Package quarantine lists, exports and deletes the events that passed the door but that PostgreSQL would not store.
//
// Package copyin puts them there, and package retain removes them by age; the deletion that an operator asks for stands
// here, since no stage ever does it. What is deleted is gone: export it first.
package quarantine

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/internal/pgtx"
	"sluice.example/sluice/operate/audit"
	"sluice.example/sluice/pipeline"
)

// Filter picks events; fields without a value match all.
type Filter struct {
	Tenant int32
	// SQLState is PostgreSQL's code for why it would not store the event.
	SQLState string
	// Event is an id, as it was sent or as a UUID.
	Event string
	// OlderThan leaves out what came within this time.
	OlderThan time.Duration
}

func (f Filter) arguments() pgx.NamedArgs {
	var id *pipeline.UUID
	if f.Event != "" {
		u, ok := pipeline.ParseUUID(f.Event)
		if !ok {
			u = pipeline.HashUUID(f.Event)
		}
		id = &u
	}
	return pgx.NamedArgs{"tenant": f.Tenant, "sqlstate": f.SQLState, "event": id, "older": f.OlderThan.Seconds()}
}

// whereSQL reads the whole table, which is small in any healthy system.
const whereSQL = `
where (@tenant = 0 or tenant_id = @tenant)
    and (@sqlstate = '' or sqlstate = @sqlstate)
    and (@event::uuid is null or event_id = @event)
    and quarantined_at <= now() - @older::float8 * interval '1 second'`

// DB is a connection, a pool or a transaction of pgx.
type DB interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Event is one of them.
type Event struct {
	Tenant        int32         `db:"tenant_id" json:"tenant_id"`
	ID            pipeline.UUID `db:"event_id" json:"event_id"`
	OccurredAt    time.Time     `db:"occurred_at" json:"occurred_at"`
	QuarantinedAt time.Time     `db:"quarantined_at" json:"quarantined_at"`
	SQLState      string        `db:"sqlstate" json:"sqlstate"`
	Reason        string        `db:"reason" json:"reason"`
	// Bytes is the length of the event as JSON.
	Bytes int `db:"bytes" json:"bytes"`
}

// Events is a list of them, the newest first. As JSON it is an array.
type Events []Event

const listSQL = `
select tenant_id, event_id, occurred_at, quarantined_at, sqlstate, reason, octet_length(event) as bytes
from quarantine` + whereSQL + `
order by quarantined_at desc, event_id limit @limit`

// List returns the newest events that match, at most limit of them.
func List(ctx context.Context, db DB, f Filter, limit int) (Events, error) {
	args := f.arguments()
	args["limit"] = limit
	rows, err := db.Query(ctx, listSQL, args)
	if err != nil {
		return nil, fmt.Errorf("quarantine list: %w", err)
	}
	events, err := pgx.AppendRows(Events{}, rows, pgx.RowToStructByName[Event])
	if err != nil {
		return nil, fmt.Errorf("quarantine list: %w", err)
	}
	return events, nil
}

// Group counts events that the database would not store for one reason.
type Group struct {
	Tenant   int32  `json:"tenant_id"`
	SQLState string `json:"sqlstate"`
	// Reason is the beginning of PostgreSQL's text, of at most 200 characters.
	Reason string    `json:"reason"`
	Events int64     `json:"events"`
	Newest time.Time `json:"newest"`
}

// mostGrouped bounds how many events Groups looks at, and mostGroups how many groups it returns.
const (
	mostGrouped = 100_000
	mostGroups  = 200
)

const groupsSQL = `
select tenant_id as tenant, sqlstate, left(reason, 200) as reason, count(*) as events, max(quarantined_at) as newest
from (select tenant_id, sqlstate, reason, quarantined_at from quarantine limit $1) q
group by 1, 2, 3 order by events desc, newest desc limit $2`

// Groups returns the reasons of all events, the most frequent first, at most 200 of them. capped is true where only
// 100,000 events were looked at.
func Groups(ctx context.Context, db DB) (groups []Group, capped bool, err error) {
	rows, err := db.Query(ctx, groupsSQL, mostGrouped, mostGroups)
	if err == nil {
		groups, err = pgx.AppendRows([]Group{}, rows, pgx.RowToStructByName[Group])
	}
	if err != nil {
		return nil, false, fmt.Errorf("quarantine: group: %w", err)
	}
	var n int64
	for _, g := range groups {
		n += g.Events
	}
	return groups, n == mostGrouped, nil
}

// Whole is an event with the text that would have to be posted again.
type Whole struct {
	Event
	Text []byte `db:"event" json:"-"`
}

const showSQL = `
select tenant_id, event_id, occurred_at, quarantined_at, sqlstate, reason, octet_length(event) as bytes, event
from quarantine` + whereSQL + `
order by quarantined_at desc limit 20`

// Show returns the newest 20 that match, whole.
func Show(ctx context.Context, db DB, f Filter) ([]Whole, error) {
	rows, err := db.Query(ctx, showSQL, f.arguments())
	if err != nil {
		return nil, fmt.Errorf("quarantine show: %w", err)
	}
	events, err := pgx.CollectRows(rows, pgx.RowToStructByName[Whole])
	if err != nil {
		return nil, fmt.Errorf("quarantine show: %w", err)
	}
	return events, nil
}

// Print writes a list for people.
func (events Events) Print(w io.Writer) error {
	var b strings.Builder
	for _, e := range events {
		fmt.Fprintf(&b, "%s  tenant %d  %s  %d bytes, occurred %s\n    %s: %s\n",
			e.QuarantinedAt.UTC().Format(time.RFC3339), e.Tenant, e.ID, e.Bytes, e.OccurredAt.UTC().Format(time.RFC3339),
			e.SQLState, strings.ReplaceAll(e.Reason, "\n", " "))
	}
	if len(events) == 0 {
		b.WriteString("nothing is in quarantine\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

const exportSQL = `select event from quarantine` + whereSQL + ` order by quarantined_at, event_id`

// Export writes the events that match, the oldest first, one a line, as they would have to be posted again. It returns
// how many there were.
func Export(ctx context.Context, conn *pgx.Conn, f Filter, w io.Writer) (n int, err error) {
	rows, err := conn.Query(ctx, exportSQL, f.arguments())
	if err != nil {
		return 0, fmt.Errorf("quarantine export: %w", err)
	}
	out := bufio.NewWriter(w)
	var event json.RawMessage
	_, err = pgx.ForEachRow(rows, []any{&event}, func() error {
		n++
		_, err := fmt.Fprintf(out, "%s\n", event)
		return err
	})
	if err == nil {
		err = out.Flush()
	}
	if err != nil {
		return n, fmt.Errorf("quarantine export: %w", err)
	}
	return n, nil
}

const countSQL = `select count(*) from quarantine` + whereSQL

// Count returns how many events match.
func Count(ctx context.Context, conn *pgx.Conn, f Filter) (n int64, err error) {
	if err := conn.QueryRow(ctx, countSQL, f.arguments()).Scan(&n); err != nil {
		return 0, fmt.Errorf("quarantine: %w", err)
	}
	return n, nil
}

const deleteSQL = `delete from quarantine` + whereSQL

// Delete removes the events that match for good, puts that into the audit, and returns how many there were.
func Delete(ctx context.Context, db pgtx.Beginner, f Filter, by audit.Actor) (n int64, err error) {
	err = pgtx.InTx(ctx, db, pgx.TxOptions{}, pgtx.Bounds{Idle: pgtx.Idle}, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, deleteSQL, f.arguments())
		if n = tag.RowsAffected(); err != nil || n == 0 {
			return err
		}
		return audit.Write(ctx, tx, by, "delete", fmt.Sprintf("%d events in quarantine", n), f, nil)
	})
	if err != nil {
		return 0, fmt.Errorf("quarantine delete: %w", err)
	}
	return n, nil
}
