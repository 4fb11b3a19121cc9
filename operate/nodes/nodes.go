// Package nodes is the processes that share a database. Each registers itself when it starts, says every five seconds
// that it runs and how it is, and says so when it ends in order. A process that is killed stops saying so.
package nodes

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/internal/duration"
	"sluice.example/sluice/pipeline"
)

// Node is a process as the others see it.
type Node struct {
	ID pipeline.UUID `json:"node_id"`
	// Name outlasts a restart; Address is that of admin.listen.
	Name    string   `json:"name"`
	Address string   `json:"address"`
	Version string   `json:"version"`
	Roles   []string `json:"roles"`

	StartedAt time.Time `json:"started_at"`
	SeenAt    time.Time `json:"seen_at"`
	// EndedAt is when it ended in order.
	EndedAt *time.Time `json:"ended_at,omitempty"`
	// Running is false for one that has ended, or has not been seen for Silent.
	Running bool `json:"running"`

	// AppliedRevision: it has seen what operators changed up to there.
	AppliedRevision int64  `json:"applied_revision"`
	RulesHash       string `json:"rules_hash,omitempty"`
	State           State  `json:"state"`
}

// State is how a node is, by its own metrics. What belongs to a role that it has not is left out.
type State struct {
	// CPU is the share of one processor that it used since the last time.
	CPU         float64 `json:"cpu"`
	MemoryBytes float64 `json:"memory_bytes"`
	// BufferFill is how much of buffer.max-bytes is in use, from 0 to 1.
	BufferFill *float64 `json:"buffer_fill,omitempty"`
	// Held is how many messages it has leases on.
	Held *float64 `json:"held_messages,omitempty"`
	// Gates are the destinations to which it sends nothing or little now, by name.
	Gates []Gate `json:"gates,omitempty"`
	// Tuning is what the node says of settings that operators changed; see operate/tune.
	Tuning json.RawMessage `json:"tuning,omitempty"`
}

// Gate is a destination that is paused, or whose circuit breaker is open.
type Gate struct {
	Destination string `json:"destination"`
	Paused      bool   `json:"paused,omitempty"`
	Open        bool   `json:"open,omitempty"`
}

// Silent is how long a node may be silent: three of its times to say that it runs.
const Silent = 3 * seenEvery

// DB is a connection or a pool.
type DB interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// listSQL lists the nodes of the last day; older rows are there for the books. The table has as many rows as there were
// processes in a week.
const listSQL = `
select process_id as id, name, address, version, roles, started_at, seen_at, ended_at,
    ended_at is null and seen_at > now() - $1::float8 * interval '1 second' as running,
    applied_revision, rules_hash, state
from sluice_processes
where seen_at > now() - interval '1 day'
order by name, started_at, process_id`

// List returns the nodes that were seen within a day, by name.
func List(ctx context.Context, db DB) ([]Node, error) {
	rows, err := db.Query(ctx, listSQL, Silent.Seconds())
	if err != nil {
		return nil, fmt.Errorf("nodes: %w", err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByName[Node])
	if err != nil {
		return nil, fmt.Errorf("nodes: %w", err)
	}
	return all, nil
}

// Answer is that of pipeline nodes.
type Answer struct {
	Nodes []Node `json:"nodes"`
}

// Print writes the nodes for people.
func (a Answer) Print(w io.Writer) error {
	var b strings.Builder
	if len(a.Nodes) == 0 {
		b.WriteString("no node was seen within a day\n")
	}
	for _, n := range a.Nodes {
		name := n.Name
		if name == "" {
			name = "(an older program)"
		}
		fmt.Fprintf(&b, "%s  %s  %s\n", name, n.ID, n.Word())
		if n.Name != "" {
			fmt.Fprintf(&b, "  roles %s; admin %s; %s\n", strings.Join(n.Roles, ", "), n.Address, n.Version)
		}
		if n.Running && n.Name != "" {
			fmt.Fprintf(&b, "  %s\n", n.State)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Word says whether the node runs, and for how long it does, or does not.
func (n Node) Word() string {
	switch ago := func(t time.Time) string { return duration.Format(time.Since(t).Truncate(time.Second)) }; {
	case n.Running:
		return "running for " + ago(n.StartedAt)
	case n.EndedAt != nil:
		return "ended " + ago(*n.EndedAt) + " ago"
	default:
		return "not seen for " + ago(n.SeenAt) + ": it was killed, hangs, or has no database"
	}
}

// String is a line for people.
func (s State) String() string {
	parts := []string{fmt.Sprintf("%.0f %% of a CPU", 100*s.CPU), fmt.Sprintf("%.0f MiB", s.MemoryBytes/(1<<20))}
	if s.BufferFill != nil {
		parts = append(parts, fmt.Sprintf("buffer %.0f %% full", 100**s.BufferFill))
	}
	if s.Held != nil {
		parts = append(parts, fmt.Sprintf("%.0f messages held", *s.Held))
	}
	for _, g := range s.Gates {
		if g.Paused {
			parts = append(parts, g.Destination+" is paused")
		}
		if g.Open {
			parts = append(parts, g.Destination+"'s circuit breaker is open")
		}
	}
	return strings.Join(parts, "; ")
}

// Named returns the running nodes that a scope means: all for "", else those of that name or id.
func Named(all []Node, scope string) (found []Node) {
	for _, n := range all {
		if n.Running && (scope == "" || scope == n.Name || scope == n.ID.String()) {
			found = append(found, n)
		}
	}
	return found
}

// HasRole reports whether the node has a role.
func (n Node) HasRole(role string) bool { return slices.Contains(n.Roles, role) }
