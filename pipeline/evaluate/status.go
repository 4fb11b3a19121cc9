package evaluate

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"sluice.example/sluice/pipeline/rules"
)

// tally is what a rule did since the last report.
type tally struct {
	evaluated, messages, duplicate, cooldown, capped, errors int64
	// missing are the errors of events that lack a property, noKey those of events without a key or subject.
	missing, noKey int64
	lastError      string
	lastErrorAt    time.Time
}

// reportEvery is how far rule_status may lag. A guess: short enough to see a bad rule within a minute.
const reportEvery = 10 * time.Second

// health is how a rule fared lately. What happened counts less with each report in which the rule looked at something
// since; nothing changes while it looks at nothing.
type health struct {
	hash string
	// evaluated are events, errors those on which the rule failed, and wrong those of them that are the rule's fault.
	evaluated, errors, wrong float64
}

const (
	// failingEvents is on how many events a rule has to have failed lately to be called failing.
	failingEvents = 5
	// fading is what a report leaves of those before it. A guess: under steady traffic the last ten minutes count.
	fading = 1 - 1.0/60
)

// after is the health after another tally. A rule that was edited begins anew.
func (h health) after(r *rules.Rule, t *tally) health {
	if h.hash != r.Hash {
		h = health{hash: r.Hash}
	}
	if t.evaluated+t.errors == 0 {
		return h
	}
	errors := t.errors - t.noKey
	return health{
		hash:      h.hash,
		evaluated: h.evaluated*fading + float64(t.evaluated),
		errors:    h.errors*fading + float64(errors),
		wrong:     h.wrong*fading + float64(errors-t.missing),
	}
}

// failing reports whether a rule failed on most of its events. Events that lack a property are not the rule's fault, as
// long as there are others; events without a key are nobody's.
func (h health) failing() bool {
	return h.wrong >= failingEvents && h.wrong*2 >= h.evaluated ||
		h.errors >= failingEvents && h.errors >= h.evaluated
}

// tally adds what was committed.
func (e *Engine) tally(of *rules.Rule, add func(*tally)) {
	t := e.tallies[of.Name]
	if t == nil {
		t = &tally{}
		e.tallies[of.Name] = t
	}
	add(t)
}

// Report marks gaps, see markGaps, and writes how the rules fare into rule_status and rule_hours: at once, every few
// seconds until ctx ends, and then once more. A failure is logged; what could not be written is tried again.
func (e *Engine) Report(ctx context.Context, db *pgxpool.Pool) error {
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	for first := true; ; first = false {
		last := false
		if !first {
			select {
			case <-ctx.Done():
				last = true
			case <-e.changed:
			case <-tick.C:
			}
		}
		writeCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		if err := e.markGaps(writeCtx, db); err != nil {
			e.log.Warn("what is stored without some rules is not marked; it is tried again", "error", err)
		}
		if err := e.report(writeCtx, db); err != nil {
			e.log.Warn("rule_status is not up to date", "error", err)
		}
		cancel()
		if last {
			return nil
		}
	}
}

const reportSQL = `
with said as (
	select * from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bool[], $8::text[],
		$9::timestamptz[], $16::text[])
		as u(rule_id, hash, kind, state, owner, response, failing, error, error_at, state_key)),
status as (
	insert into rule_status as s (rule_id, hash, kind, state, owner, response, seen_at, failing_at, last_error,
		last_error_at, state_key)
	select rule_id, hash, kind, state, owner, response, now(), case when failing then now() end, error, error_at, state_key
	from said order by rule_id
	on conflict (rule_id) do update set hash = excluded.hash, kind = excluded.kind, state = excluded.state,
		owner = excluded.owner, state_key = excluded.state_key,
		response = excluded.response, seen_at = excluded.seen_at,
		failing_at = case when s.hash = excluded.hash then coalesce(excluded.failing_at, s.failing_at)
			else excluded.failing_at end,
		last_error = coalesce(excluded.last_error, s.last_error),
		last_error_at = coalesce(excluded.last_error_at, s.last_error_at))
insert into rule_hours as h (rule_id, hour, evaluated, messages, duplicate, cooldown, cap, errors)
select u.rule_id, date_trunc('hour', now()), u.evaluated, u.messages, u.duplicate, u.cooldown, u.cap, u.errors
from unnest($1::text[], $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[], $14::bigint[], $15::bigint[])
	as u(rule_id, evaluated, messages, duplicate, cooldown, cap, errors)
where u.evaluated + u.messages + u.duplicate + u.cooldown + u.cap + u.errors > 0
order by u.rule_id
on conflict (rule_id, hour) do update set evaluated = h.evaluated + excluded.evaluated,
	messages = h.messages + excluded.messages,
	duplicate = h.duplicate + excluded.duplicate, cooldown = h.cooldown + excluded.cooldown, cap = h.cap + excluded.cap,
	errors = h.errors + excluded.errors`

func (e *Engine) report(ctx context.Context, db *pgxpool.Pool) error {
	set := e.inForce()
	e.metrics.failing.only(set.Rules())
	if len(set.Rules()) == 0 {
		return nil
	}
	e.tallyMu.Lock()
	tallies := e.tallies
	e.tallies = map[string]*tally{}
	e.tallyMu.Unlock()
	var c statusColumns
	healths := make(map[string]health, len(set.Rules()))
	for _, r := range set.Rules() {
		t := tallies[r.Name]
		if t == nil {
			t = &tally{}
		}
		healths[r.Name] = e.healths[r.Name].after(r, t)
		failing := healths[r.Name].failing()
		if failing {
			e.metrics.failing.set(r, 1)
		} else {
			e.metrics.failing.set(r, 0)
		}
		c.add(r, t, failing)
	}
	_, err := db.Exec(ctx, reportSQL, c.names, c.hashes, c.kinds, c.states, c.owners, c.responses, c.failing,
		c.lastErrors, c.lastErrorsAt, c.evaluated, c.messages, c.duplicate, c.cooldown, c.capped, c.errors,
		c.stateKeys)
	if err != nil {
		e.putBack(tallies)
		return fmt.Errorf("evaluate: report on %d rules: %w", len(c.names), err)
	}
	e.healths = healths
	return nil
}

// statusColumns are the parameters of reportSQL.
type statusColumns struct {
	names, hashes, kinds, states, owners, responses          []string
	stateKeys                                                []string
	failing                                                  []bool
	lastErrors                                               []*string
	lastErrorsAt                                             []*time.Time
	evaluated, messages, duplicate, cooldown, capped, errors []int64
}

func (c *statusColumns) add(r *rules.Rule, t *tally, failing bool) {
	c.names = append(c.names, r.Name)
	c.hashes = append(c.hashes, r.Hash)
	c.stateKeys = append(c.stateKeys, r.StateKey)
	c.kinds = append(c.kinds, r.Kind)
	c.states = append(c.states, r.State())
	c.owners = append(c.owners, clean(r.Owner))
	c.responses = append(c.responses, clean(r.Response))
	c.failing = append(c.failing, failing)
	var text *string
	var at *time.Time
	if t.lastError != "" {
		text, at = &t.lastError, &t.lastErrorAt
	}
	c.lastErrors = append(c.lastErrors, text)
	c.lastErrorsAt = append(c.lastErrorsAt, at)
	c.evaluated = append(c.evaluated, t.evaluated)
	c.messages = append(c.messages, t.messages)
	c.duplicate = append(c.duplicate, t.duplicate)
	c.cooldown = append(c.cooldown, t.cooldown)
	c.capped = append(c.capped, t.capped)
	c.errors = append(c.errors, t.errors)
}

// putBack adds tallies that could not be written to the current ones.
func (e *Engine) putBack(old map[string]*tally) {
	e.tallyMu.Lock()
	defer e.tallyMu.Unlock()
	for name, o := range old {
		t := e.tallies[name]
		if t == nil {
			e.tallies[name] = o
			continue
		}
		t.evaluated += o.evaluated
		t.messages += o.messages
		t.duplicate += o.duplicate
		t.cooldown += o.cooldown
		t.capped += o.capped
		t.errors += o.errors
		t.missing += o.missing
		t.noKey += o.noKey
		if t.lastError == "" {
			t.lastError, t.lastErrorAt = o.lastError, o.lastErrorAt
		}
	}
}

// clean makes any text storable and short.
func clean(s string) string {
	s = strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", ""), "?")
	return string([]rune(s)[:min(500, len([]rune(s)))])
}
