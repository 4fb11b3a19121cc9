package retain

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
)

const (
	// Ranges of the primary key, for each rule that ever reported.
	pruneRuleHoursSQL = `
delete from rule_hours where ctid = any (array(
    select h.ctid from rule_status s cross join lateral (
        select ctid from rule_hours where rule_id = s.rule_id and hour < now() - make_interval(secs => $1) limit $2) h
    limit $2))`

	// One rule at a time, and its row last, once nothing else of it is left. A rule that comes back finds its row locked,
	// or gone, and then begins anew.
	goneTimerSQL  = `select timer from absence_seeds where seen_at < now() - make_interval(secs => $1) order by timer limit 1 for update skip locked`
	goneMetricSQL = `select metric from rate_fills where seen_at < now() - make_interval(secs => $1) order by metric limit 1 for update skip locked`

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
select (select count(*) from minutes) + (select count(*) from states) + (select count(*) from firings) + (select count(*) from fills)`

	pruneRuleStatusSQL = `
delete from rule_status where ctid = any (array(
    select ctid from rule_status s where seen_at < now() - make_interval(secs => $1)
        and not exists (select from rule_hours h where h.rule_id = s.rule_id)
    limit $2 for update skip locked))`
)

// rulesPrunable is what rules leave behind.
func (k *Keeper) rulesPrunable() (tables []prunable) {
	if k.cfg.RuleHours > 0 {
		tables = append(tables, prunable{"rule_hours", k.cfg.RuleHours, pruneRuleHoursSQL})
	}
	if k.cfg.RuleState > 0 {
		tables = append(tables, prunable{"rule_status", k.cfg.RuleState, pruneRuleStatusSQL})
	}
	return tables
}

// pruneGone removes what is kept of rules that are long gone.
func (k *Keeper) pruneGone(ctx context.Context, table, findSQL, pruneSQL string) error {
	return k.batches(ctx, table, func(ctx context.Context, tx pgx.Tx) (gone int64, more bool, err error) {
		var rule string
		err = tx.QueryRow(ctx, findSQL, k.cfg.RuleState.Seconds()).Scan(&rule)
		if errors.Is(err, pgx.ErrNoRows) {
			return 0, false, nil
		}
		if err == nil {
			err = tx.QueryRow(ctx, pruneSQL, rule, k.batchRows).Scan(&gone)
		}
		return gone, gone > 0, err
	})
}

type subjectKey struct {
	tenant        int32
	rule, subject string
}

// pruneSubjectsSQL looks at one page of subjects, in the order of the primary key. A subject without a row is granted what one
// is granted whose cooldown and cap are over; one of whom something is held back waits for its digest.
const pruneSubjectsSQL = `
with page as materialized (
    select tenant_id, rule_id, subject from rule_subjects where (tenant_id, rule_id, subject) > ($3, $4, $5)
    order by tenant_id, rule_id, subject limit $2
), gone as (
    delete from rule_subjects where ctid = any (array(
        select s.ctid from rule_subjects s join page using (tenant_id, rule_id, subject)
        where s.suppressed = 0 and s.digest_due_at is null
            and greatest(s.decided_at, s.recent[1]) < now() - make_interval(secs => $1 + greatest(s.cooldown_seconds, s.cap_seconds))
        for update of s skip locked))
    returning 1
)
select tenant_id, rule_id, subject, (select count(*) from page), (select count(*) from gone)
from page order by tenant_id desc, rule_id desc, subject desc limit 1`

// subjectPages is how many pages one pass looks at. A guess: with the default settings 14 million subjects a day.
const subjectPages = 100

// pruneSubjects goes on where the last pass ended, and begins anew after the last subject.
func (k *Keeper) pruneSubjects(ctx context.Context) error {
	pages := 0
	return k.batches(ctx, "rule_subjects", func(ctx context.Context, tx pgx.Tx) (gone int64, more bool, err error) {
		var next subjectKey
		var seen int
		from := k.subject
		err = tx.QueryRow(ctx, pruneSubjectsSQL, k.cfg.Subjects.Seconds(), k.batchRows, from.tenant, from.rule, from.subject).
			Scan(&next.tenant, &next.rule, &next.subject, &seen, &gone)
		if errors.Is(err, pgx.ErrNoRows) {
			k.subject = subjectKey{}
			return 0, false, nil
		}
		if err != nil {
			return 0, false, err
		}
		if k.subject = next; seen < k.batchRows {
			k.subject = subjectKey{}
		}
		pages++
		return gone, seen == k.batchRows && pages < subjectPages, nil
	})
}
