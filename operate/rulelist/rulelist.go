// Package rulelist shows operators the rules that running pipelines have reported: whose they are, how they fare, and
// what they did in the last day. Package evaluate writes the tables.
package rulelist

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/internal/duration"
)

// Rule is one rule as the pipelines report it.
type Rule struct {
	ID    string `db:"rule_id" json:"rule"`
	Kind  string `db:"kind" json:"kind"`
	State string `db:"state" json:"state"`
	Owner string `db:"owner" json:"owner"`
	// Version is a hash over the rule.
	Version string `db:"hash" json:"version"`
	// SeenSecondsAgo is when a pipeline last reported the rule; see InForce.
	SeenSecondsAgo int64 `db:"seen" json:"seen_seconds_ago"`
	// Failing is true where an expression keeps failing.
	Failing bool `db:"failing" json:"failing"`
	// Rate and Unknown are of rate rules only: the worst state of their series, and why that is not known.
	Rate        *string    `db:"health" json:"rate,omitempty"`
	Unknown     *string    `db:"why" json:"unknown,omitempty"`
	LastError   *string    `db:"last_error" json:"last_error,omitempty"`
	LastErrorAt *time.Time `db:"last_error_at" json:"last_error_at,omitempty"`
	// The counts are those of the last 24 hours. Evaluated are the events that were looked at; Duplicate, Cooldown and
	// Cap are matches that made no message.
	Evaluated int64 `db:"evaluated" json:"evaluated"`
	Messages  int64 `db:"messages" json:"messages"`
	Duplicate int64 `db:"duplicate" json:"duplicate"`
	Cooldown  int64 `db:"cooldown" json:"cooldown"`
	Cap       int64 `db:"cap" json:"cap"`
	Errors    int64 `db:"errors" json:"errors"`
}

// List is every rule on record, those in force first. As JSON it is an array.
type List []Rule

// forgottenAfter is how long a rule counts as in force after its last report. The pipelines report every 10 seconds, so
// this is two reports that did not name the rule, and some time for them to be slow.
const forgottenAfter = 25 * time.Second

// InForce reports whether a running pipeline has the rule.
func (r *Rule) InForce() bool { return r.seenAgo() <= forgottenAfter }

func (r *Rule) seenAgo() time.Duration { return time.Duration(r.SeenSecondsAgo) * time.Second }

// ago rounds a time to what is worth reading.
func ago(d time.Duration) time.Duration {
	if d >= time.Minute {
		return d.Round(time.Minute)
	}
	return d
}

// Health is one word: ok, failing, the state of a rate rule, or - for a rule that is not in force.
func (r *Rule) Health() string {
	switch {
	case !r.InForce():
		return "-"
	case r.Failing:
		return "failing"
	case r.Rate != nil:
		return *r.Rate
	}
	return "ok"
}

const listSQL = `
select s.rule_id, s.kind, s.state, s.owner, s.hash, extract(epoch from now() - s.seen_at)::bigint as seen,
    coalesce(s.failing_at > now() - interval '1 minute', false) as failing,
    r.health, r.why, s.last_error, s.last_error_at,
    coalesce(h.evaluated, 0) as evaluated, coalesce(h.messages, 0) as messages, coalesce(h.duplicate, 0) as duplicate,
    coalesce(h.cooldown, 0) as cooldown, coalesce(h.cap, 0) as cap, coalesce(h.errors, 0) as errors
from rule_status s
left join lateral (
    select sum(evaluated)::bigint evaluated, sum(messages)::bigint messages, sum(duplicate)::bigint duplicate,
        sum(cooldown)::bigint cooldown, sum(cap)::bigint cap, sum(errors)::bigint errors
    from rule_hours
    where rule_id = s.rule_id and hour > now() - interval '1 day') h on true
left join lateral (
    select
        case
            when bool_or(f.passes = 0) then 'counting'
            when bool_or(t.firing) then 'firing'
            when bool_or(t.state ->> 'state' = 'pending') then 'pending'
            when bool_or(t.state ->> 'state' = 'ok') then 'ok'
            else 'unknown'
        end as health,
        coalesce(max(t.state -> 'last' ->> 'unknown'), 'nothing was counted yet') as why
    from rate_fills f
    left join rate_states t using (metric)
    where f.seen_at > now() - interval '1 hour'
        and starts_with(f.metric, coalesce(s.state_key,
            s.rule_id || case s.state when 'shadow' then ' (shadow)' else '' end) || '#')) r
    on s.kind = 'rate'
order by s.seen_at < now() - interval '25 seconds', s.rule_id`

// DB is a connection, a pool or a transaction.
type DB interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Hour is what a rule did in an hour.
type Hour struct {
	Hour      time.Time `json:"hour"`
	Evaluated int64     `json:"evaluated"`
	Messages  int64     `json:"messages"`
	Held      int64     `json:"held"` // duplicate, cooldown and cap together
	Errors    int64     `json:"errors"`
}

const hoursSQL = `
select h.hour, coalesce(evaluated, 0) as evaluated, coalesce(messages, 0) as messages,
    coalesce(duplicate + cooldown + cap, 0) as held, coalesce(errors, 0) as errors
from generate_series(date_trunc('hour', now()) - interval '23 hours', date_trunc('hour', now()),
    interval '1 hour') h(hour)
left join rule_hours r on r.rule_id = $1 and r.hour = h.hour
order by h.hour`

// Hours returns what a rule did in each of the last 24 hours, the oldest first.
func Hours(ctx context.Context, db DB, rule string) ([]Hour, error) {
	rows, err := db.Query(ctx, hoursSQL, rule)
	if err != nil {
		return nil, fmt.Errorf("rules: hours of %s: %w", rule, err)
	}
	hours, err := pgx.CollectRows(rows, pgx.RowToStructByName[Hour])
	if err != nil {
		return nil, fmt.Errorf("rules: hours of %s: %w", rule, err)
	}
	return hours, nil
}

// Read returns every rule on record, those in force first.
func Read(ctx context.Context, db DB) (List, error) {
	rows, err := db.Query(ctx, listSQL)
	if err != nil {
		return nil, fmt.Errorf("rules list: %w", err)
	}
	rules, err := pgx.AppendRows(List{}, rows, pgx.RowToStructByName[Rule])
	if err != nil {
		return nil, fmt.Errorf("rules list: %w", err)
	}
	return rules, nil
}

// Print writes one line a rule, and the last error of those that had one in the last day.
func (rules List) Print(w io.Writer) error {
	if len(rules) == 0 {
		_, err := fmt.Fprintln(w, "no pipeline has reported rules yet: start one with --rules")
		return err
	}
	var b, notes, errs strings.Builder
	table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "RULE\tKIND\tSTATE\tHEALTH\tOWNER\tVERSION\tEVENTS\tMESSAGES\tDUPLICATE\tCOOLDOWN\tCAP\tERRORS")
	for _, r := range rules {
		state := r.State
		if !r.InForce() {
			state = "not in force for " + duration.Format(ago(r.seenAgo()))
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\n", r.ID, r.Kind, state, r.Health(), r.Owner,
			r.Version,
			r.Evaluated, r.Messages, r.Duplicate, r.Cooldown, r.Cap, r.Errors)
		if r.Health() == "unknown" {
			fmt.Fprintf(&notes, "%s is unknown: %s\n", r.ID, *r.Unknown)
		}
		if r.LastError != nil && r.Errors > 0 {
			fmt.Fprintf(&errs, "%s, %s: %s\n", r.ID, r.LastErrorAt.UTC().Format(time.RFC3339), *r.LastError)
		}
	}
	table.Flush()
	b.WriteString("\nCounts are those of the last 24 hours. Events: looked at. Duplicate, cooldown, cap: matches that " +
		"made no message.\n")
	if notes.Len() > 0 {
		b.WriteString("\n" + notes.String())
	}
	if errs.Len() > 0 {
		b.WriteString("\nLast errors:\n" + errs.String())
	}
	_, err := io.WriteString(w, b.String())
	return err
}
