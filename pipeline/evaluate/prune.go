package evaluate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Pruner deletes what rules leave behind and no rule needs any more, in small batches. It decides what may go; whoever
// keeps house decides when, see package retain. It is for one goroutine.
type Pruner struct {
	ruleState time.Duration
	// keepSubjects is the constant of the same name, and another in tests.
	keepSubjects time.Duration
	// subject is where the walk over rule_subjects goes on, page how many pages this walk has looked at.
	subject subjectKey
	page    int
}

// NewPruner makes a pruner.
func NewPruner(cfg Config) *Pruner {
	return &Pruner{ruleState: cfg.RuleState, keepSubjects: keepSubjects}
}

const (
	// keepSubjects is how long a rule remembers a subject whose cooldown and cap are over and of whom nothing is held
	// back. It changes no decision of the rule as it is. A rule that is edited to a longer cooldown or cap finds what
	// happened within that time.
	keepSubjects = 7 * day
	// keepHours is how long the counts of a rule's hours stay: a year and a month to compare.
	keepHours = 400 * day
)

// prunable is a table, or a group of tables, and what deletes at most so many rows that nobody holds.
type prunable struct {
	name  string
	prune func(p *Pruner, ctx context.Context, tx pgx.Tx, rows int) (gone int64, more bool, err error)
	// state: only rules that are gone have left it.
	state bool
}

var prunables = []prunable{
	{"dedupe_keys", (*Pruner).dedupeKeys, false},
	{"rule_subjects", (*Pruner).subjects, false},
	{"limit_subjects", (*Pruner).limitSubjects, false},
	{"rule_hours", (*Pruner).hours, false},
	{"rule_refusals", (*Pruner).refusals, false},
	{"absence_timers", (*Pruner).timers, true},
	{"rate_minutes", (*Pruner).minutes, true},
	{"rule_status", (*Pruner).status, true},
}

// Tables lists what can be pruned.
func (p *Pruner) Tables() []string {
	var names []string
	for _, t := range prunables {
		if !t.state || p.ruleState > 0 {
			names = append(names, t.name)
		}
	}
	return names
}

// Prune deletes at most so many rows of a table that are past their time, and of the tables that belong to it. More
// reports whether there may be others. A row that somebody holds is left for another time.
func (p *Pruner) Prune(ctx context.Context, tx pgx.Tx, table string, rows int) (gone int64, more bool, err error) {
	for _, t := range prunables {
		if t.name == table {
			return t.prune(p, ctx, tx, rows)
		}
	}
	return 0, false, fmt.Errorf("evaluate: %s is not pruned here", table)
}

// Served by dedupe_keys_expires_at. Each row holds how long it lives.
const pruneKeysSQL = `
delete from dedupe_keys where ctid = any (array(
    select ctid from dedupe_keys where expires_at < now() order by expires_at limit $1 for update skip locked))`

func (p *Pruner) dedupeKeys(ctx context.Context, tx pgx.Tx, rows int) (int64, bool, error) {
	return deleted(ctx, tx, rows, pruneKeysSQL, rows)
}

// Served by limit_subjects_until.
const pruneLimitsSQL = `
delete from limit_subjects where ctid = any (array(
    select ctid from limit_subjects where until < now() order by until limit $1 for update skip locked))`

func (p *Pruner) limitSubjects(ctx context.Context, tx pgx.Tx, rows int) (int64, bool, error) {
	return deleted(ctx, tx, rows, pruneLimitsSQL, rows)
}

// Ranges of the primary key, for each rule that ever reported.
const pruneHoursSQL = `
delete from rule_hours where ctid = any (array(
    select h.ctid from rule_status s cross join lateral (
        select ctid from rule_hours where rule_id = s.rule_id and hour < now() - make_interval(secs => $1) limit $2) h
    limit $2))`

func (p *Pruner) hours(ctx context.Context, tx pgx.Tx, rows int) (int64, bool, error) {
	return deleted(ctx, tx, rows, pruneHoursSQL, keepHours.Seconds(), rows)
}

const pruneRefusalsSQL = `
delete from rule_refusals where ctid = any (array(
    select ctid from rule_refusals where refused_at < now() - make_interval(secs => $1) limit $2
    for update skip locked))`

func (p *Pruner) refusals(ctx context.Context, tx pgx.Tx, rows int) (int64, bool, error) {
	return deleted(ctx, tx, rows, pruneRefusalsSQL, keepRefusals.Seconds(), rows)
}

const pruneStatusSQL = `
delete from rule_status where ctid = any (array(
    select ctid from rule_status s where seen_at < now() - make_interval(secs => $1)
        and not exists (select from rule_hours h where h.rule_id = s.rule_id)
    limit $2 for update skip locked))`

func (p *Pruner) status(ctx context.Context, tx pgx.Tx, rows int) (int64, bool, error) {
	return deleted(ctx, tx, rows, pruneStatusSQL, p.ruleState.Seconds(), rows)
}

func deleted(ctx context.Context, tx pgx.Tx, rows int, sql string, args ...any) (int64, bool, error) {
	tag, err := tx.Exec(ctx, sql, args...)
	return tag.RowsAffected(), tag.RowsAffected() == int64(rows), err
}

// What is kept of rules that are long gone goes one rule at a time, and its row last, once nothing else of it is left.
// A rule that comes back finds its row locked, or gone, and then begins anew.
const (
	goneTimerSQL = `
select timer from absence_seeds where seen_at < now() - make_interval(secs => $1) order by timer limit 1
for update skip locked`

	// Reads all timers, since few of such a rule still wait.
	pruneTimersSQL = `
with timers as (
    delete from absence_timers where ctid = any (array(
        select ctid from absence_timers where timer = $1 limit $2 for update skip locked)) returning 1
), history as (
    delete from absence_history where ctid = any (array(
        select ctid from absence_history where timer = $1 limit $2 for update skip locked)) returning 1
), seeds as (
    delete from absence_seeds s where s.timer = $1
        and not exists (select from absence_timers t where t.timer = $1)
        and not exists (select from absence_history h where h.timer = $1) returning 1
)
select (select count(*) from timers) + (select count(*) from history) + (select count(*) from seeds)`

	goneMetricSQL = `
select metric from rate_fills where seen_at < now() - make_interval(secs => $1) order by metric limit 1
for update skip locked`

	pruneRatesSQL = `
with minutes as (
    delete from rate_minutes where ctid = any (array(
        select ctid from rate_minutes where metric = $1 limit $2 for update skip locked)) returning 1
), states as (
    delete from rate_states where ctid = any (array(
        select ctid from rate_states where metric = $1 limit $2 for update skip locked)) returning 1
), firings as (
    delete from rate_firings where ctid = any (array(
        select ctid from rate_firings where metric = $1 limit $2 for update skip locked)) returning 1
), fills as (
    delete from rate_fills f where f.metric = $1
        and not exists (select from rate_minutes m where m.metric = $1)
        and not exists (select from rate_states s where s.metric = $1)
        and not exists (select from rate_firings s where s.metric = $1) returning 1
)
select (select count(*) from minutes) + (select count(*) from states) + (select count(*) from firings)
    + (select count(*) from fills)`
)

func (p *Pruner) timers(ctx context.Context, tx pgx.Tx, rows int) (int64, bool, error) {
	return p.gone(ctx, tx, goneTimerSQL, pruneTimersSQL, rows)
}

func (p *Pruner) minutes(ctx context.Context, tx pgx.Tx, rows int) (int64, bool, error) {
	return p.gone(ctx, tx, goneMetricSQL, pruneRatesSQL, rows)
}

// gone removes what is kept of one rule that is long gone.
func (p *Pruner) gone(ctx context.Context, tx pgx.Tx, findSQL, pruneSQL string, rows int) (
	gone int64, more bool, err error) {
	var rule string
	err = tx.QueryRow(ctx, findSQL, p.ruleState.Seconds()).Scan(&rule)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, false, nil
	}
	if err == nil {
		err = tx.QueryRow(ctx, pruneSQL, rule, rows).Scan(&gone)
	}
	return gone, gone > 0, err
}

type subjectKey struct {
	tenant        int32
	rule, subject string
}

// pruneSubjectsSQL looks at one page of subjects, in the order of the primary key. A subject without a row is granted
// what one is granted whose cooldown and cap are over; one of whom something is held back waits for its digest,
// also while no process has its rule, up to $6 seconds.
const pruneSubjectsSQL = `
with page as materialized (
    select tenant_id, rule_id, subject from rule_subjects where (tenant_id, rule_id, subject) > ($3, $4, $5)
    order by tenant_id, rule_id, subject limit $2
), gone as (
    delete from rule_subjects where ctid = any (array(
        select s.ctid from rule_subjects s join page using (tenant_id, rule_id, subject)
        where (s.suppressed = 0 and s.digest_due_at is null or $6 > 0
	and s.decided_at < now() - make_interval(secs => $6))
            and greatest(s.decided_at, s.recent[1])
				< now() - make_interval(secs => $1 + greatest(s.cooldown_seconds, s.cap_seconds))
        for update of s skip locked))
    returning 1
)
select tenant_id, rule_id, subject, (select count(*) from page), (select count(*) from gone)
from page order by tenant_id desc, rule_id desc, subject desc limit 1`

// subjectPages is how many pages one walk looks at. A guess: with the default settings 14 million subjects a day.
const subjectPages = 100

// subjects goes on where the last walk ended, and begins anew after the last subject.
func (p *Pruner) subjects(ctx context.Context, tx pgx.Tx, rows int) (gone int64, more bool, err error) {
	var next subjectKey
	var seen int
	from := p.subject
	err = tx.QueryRow(ctx, pruneSubjectsSQL, p.keepSubjects.Seconds(), rows, from.tenant, from.rule, from.subject,
		p.ruleState.Seconds()).
		Scan(&next.tenant, &next.rule, &next.subject, &seen, &gone)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return 0, false, err
	}
	p.page++
	if p.subject = next; seen < rows {
		p.subject = subjectKey{}
	}
	if more = seen == rows && p.page < subjectPages; !more {
		p.page = 0
	}
	return gone, more, nil
}
