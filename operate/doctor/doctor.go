// Package doctor looks at everything that the database tells of a pipeline, and says what is wrong in sentences, the
// worst first, each with what to do. What it looks at are the conditions of the alerts in monitoring/, as far as the
// database knows them; the sections of docs/operations.md on the alerts are its runbook. It only reads, at bounded
// cost.
package doctor

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/internal/duration"
	"sluice.example/sluice/operate/nodes"
	"sluice.example/sluice/operate/quarantine"
	"sluice.example/sluice/operate/rulelist"
	"sluice.example/sluice/pipeline/claim"
)

// The levels, the worst first: somebody should act now, or soon.
const (
	Bad  = "bad"
	Warn = "warn"
)

// Finding is one thing that is wrong.
type Finding struct {
	// ID is the name of the alert of the same kind, and of its section in docs/operations.md.
	ID    string `json:"id"`
	Level string `json:"level"`
	// Sentence says what is wrong, and Do what to do.
	Sentence string `json:"sentence"`
	Do       string `json:"do"`
	// Page is where the console shows more, relative to its root.
	Page string `json:"page,omitempty"`
}

// Report is what Look found.
type Report struct {
	Findings []Finding `json:"findings"`
	// Nodes and Backlogs are what it looked at.
	Nodes    []nodes.Node    `json:"nodes"`
	Backlogs []claim.Backlog `json:"backlogs"`
}

// DB is a connection or a transaction.
type DB interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// The bounds of the alerts.
const (
	latestDue      = 5 * time.Minute
	oldestSnapshot = 10 * time.Minute
	fullestBuffer  = 0.9
	mostUsed       = 0.9
	fewestDays     = 2
)

// Look looks at everything.
func Look(ctx context.Context, db DB) (*Report, error) {
	r := &Report{Findings: []Finding{}}
	for _, look := range []func(context.Context, DB) error{r.nodes, r.backlog, r.rules, r.quarantine, r.server} {
		if err := look(ctx, db); err != nil {
			return nil, fmt.Errorf("doctor: %w", err)
		}
	}
	slices.SortStableFunc(r.Findings, func(a, b Finding) int { return strings.Compare(a.Level, b.Level) })
	return r, nil
}

func (r *Report) add(level, id, page, do, format string, args ...any) {
	r.Findings = append(r.Findings, Finding{id, level, fmt.Sprintf(format, args...), do, page})
}

// roles are those without which something is left undone, and what that is.
var roles = []struct{ role, undone string }{
	{"ingest", "no events are taken"}, {"sweep", "rules that wait do not fire"}, {"deliver", "nothing is sent"},
	{"retain", "no partitions are made, and nothing old goes"},
}

func (r *Report) nodes(ctx context.Context, db DB) (err error) {
	if r.Nodes, err = nodes.List(ctx, db); err != nil {
		return err
	}
	versions := map[string]bool{}
	running := nodes.Named(r.Nodes, "")
	for _, need := range roles {
		if !slices.ContainsFunc(running, func(n nodes.Node) bool { return n.HasRole(need.role) }) {
			r.add(Bad, "SluiceDown", "nodes", "start a process with this role: pipeline run --roles "+need.role,
				"No process with the role %s runs: %s.", need.role, need.undone)
		}
	}
	for _, n := range r.Nodes {
		if !n.Running && n.EndedAt == nil && time.Since(n.SeenAt) < time.Hour && !replaced(n, running) {
			r.add(Warn, "SluiceDown", "nodes", "look at its log, and whether its machine and its database answer",
				"Node %s is %s.", n.Name, n.Word())
		}
		if !n.Running {
			continue
		}
		versions[n.Version] = true
		if fill := n.State.BufferFill; fill != nil && *fill > fullestBuffer {
			r.add(Warn, "SluiceBufferNearlyFull", "nodes", "clients are refused when it is full: look what limits the writers",
				"The buffer of node %s is %.0f %% full.", n.Name, 100**fill)
		}
	}
	if len(versions) > 1 {
		r.add(Warn, "SluiceVersionsDiffer", "nodes", "finish the upgrade", "Nodes run %d different versions.", len(versions))
	}
	return nil
}

// replaced: another process of that name runs, which began later.
func replaced(n nodes.Node, running []nodes.Node) bool {
	return slices.ContainsFunc(running, func(o nodes.Node) bool {
		return o.Name == n.Name && o.StartedAt.After(n.StartedAt)
	})
}

func (r *Report) backlog(ctx context.Context, db DB) (err error) {
	if r.Backlogs, err = claim.Backlogs(ctx, db); err != nil {
		return err
	}
	gates := map[string][]string{}
	paused := map[string]bool{}
	for _, n := range nodes.Named(r.Nodes, "") {
		for _, g := range n.State.Gates {
			if g.Open {
				gates[g.Destination] = append(gates[g.Destination], n.Name)
			}
			paused[g.Destination] = paused[g.Destination] || g.Paused
		}
	}
	for destination, on := range gates {
		r.add(Warn, "SluiceBreakerOpen", "destinations/"+url.PathEscape(destination),
			"look at the last errors, and at the receiver; it is tried again by itself",
			"%s is closed by its circuit breaker on %s: it fails time after time.", destination,
			strings.Join(on, ", "))
	}
	for _, b := range r.Backlogs {
		page := "destinations/" + url.PathEscape(b.Destination)
		due := time.Duration(b.Oldest * float64(time.Second)).Round(time.Second)
		if due > latestDue && !paused[b.Destination] {
			r.add(Warn, "SluiceDeliveriesLate", page, "compare how fast it takes messages with how fast they come, "+
				"and see its errors", "%s messages to %s are due, the oldest for %s.", count(b.Due), b.Destination,
				duration.Format(due))
		}
		if paused[b.Destination] && b.Due > 0 {
			r.add(Warn, "SluiceDeliveriesLate", page, "resume it once its receiver is well",
				"%s is paused, and %s messages to it are due.", b.Destination, count(b.Due))
		}
		if b.Dead > 0 {
			r.add(Warn, "SluiceMessagesDead", "messages?status=dead&destination="+b.Destination,
				"once the cause is gone: pipeline outbox retry --destination "+b.Destination+", or discard",
				"%s messages to %s were given up.", count(b.Dead), b.Destination)
		}
	}
	return nil
}

// count writes a count that ends at claim.CountedUpTo.
func count(n int64) string {
	if n >= claim.CountedUpTo {
		return fmt.Sprintf("more than %d", claim.CountedUpTo-1)
	}
	return fmt.Sprint(n)
}

func (r *Report) rules(ctx context.Context, db DB) error {
	list, err := rulelist.Read(ctx, db)
	for _, rule := range list {
		if rule.Health() != "failing" {
			continue
		}
		why := ""
		if rule.LastError != nil {
			why = ": " + *rule.LastError
		}
		r.add(Warn, "SluiceRuleFailing", RulePage(rule.ID),
			"what fails counts as no match: mend the rule, or what is sent", "Rule %s keeps failing%s.", rule.ID, why)
	}
	return err
}

func (r *Report) quarantine(ctx context.Context, db DB) error {
	groups, _, err := quarantine.Groups(ctx, db)
	var n int64
	for _, g := range groups {
		n += g.Events
	}
	if n > 0 {
		r.add(Warn, "SluiceQuarantine", "quarantine",
			"read the reasons; export and import them once the cause is gone, or delete",
			"%d events are in quarantine, the most for: %s %s.", n, groups[0].SQLState, groups[0].Reason)
	}
	return err
}

// serverSQL asks what is about to run out, and what holds vacuum back.
const serverSQL = `
select
    coalesce((select extract(epoch from max(clock_timestamp() - xact_start)) from pg_stat_activity
        where (backend_xid is not null or backend_xmin is not null) and pid <> pg_backend_pid()
            and datname = current_database()), 0)::float8 as snapshot,
    (select count(*) from pg_stat_activity where backend_type = 'client backend')::float8 as used,
    current_setting('max_connections')::float8 - current_setting('superuser_reserved_connections')::float8 as most,
    (select coalesce(min(i), 8) - 1 from generate_series(0, 7) as i
        where to_regclass('events_' || to_char((now() at time zone 'UTC')::date + i, 'YYYYMMDD')) is null) as ahead,
    current_setting('default_transaction_read_only') = 'on' or pg_is_in_recovery() as readonly`

func (r *Report) server(ctx context.Context, db DB) error {
	rows, err := db.Query(ctx, serverSQL)
	if err != nil {
		return err
	}
	type answer struct {
		Snapshot, Used, Most float64
		Ahead                int
		Readonly             bool
	}
	s, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[answer])
	if err != nil {
		return err
	}
	if age := time.Duration(s.Snapshot * float64(time.Second)).Round(time.Second); age > oldestSnapshot {
		r.add(Warn, "SluiceSnapshotOld", "", "find it in pg_stat_activity, and end it: claims slow down meanwhile",
			"A transaction is open for %s, and keeps PostgreSQL from clearing finished messages away.", duration.Format(age))
	}
	if s.Used > mostUsed*s.Most {
		r.add(Warn, "SluiceConnectionsUsed", "", "raise max_connections, or lower what the pools of all nodes take",
			"%.0f of %.0f connections of PostgreSQL are in use.", s.Used, s.Most)
	}
	if s.Ahead < fewestDays {
		r.add(Bad, "SluicePartitionsMissing", "", "run a process with the role retain as the owner of the table events",
			"The table events has partitions for %d days after today only.", max(s.Ahead, 0))
	}
	if s.Readonly {
		r.add(Bad, "SluiceReadOnly", "", "send the pipeline to the primary, or end the database's read-only mode",
			"The database is read-only: nothing is stored, decided or sent.")
	}
	return nil
}

// Print writes the findings for people.
func (r *Report) Print(w io.Writer) error {
	var b strings.Builder
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "%-4s  %s\n      To do: %s. (%s)\n", f.Level, f.Sentence, f.Do, f.ID)
	}
	if len(r.Findings) == 0 {
		fmt.Fprintf(&b, "all is well: %d nodes run, and nothing waits longer than it should\n", len(nodes.Named(r.Nodes, "")))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Err says how much is bad; nil where nothing is.
func (r *Report) Err() error {
	n := 0
	for _, f := range r.Findings {
		if f.Level == Bad {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	return fmt.Errorf("findings that somebody should act on now: %d", n)
}

// RulePage is where the console shows a rule. Slashes of its id stay, unless a browser would clean them away.
func RulePage(id string) string {
	escaped := url.PathEscape(id)
	if plain := strings.ReplaceAll(escaped, "%2F", "/"); path.Clean("/"+plain) == "/"+plain {
		return "rules/" + plain
	}
	return "rules/" + escaped
}
