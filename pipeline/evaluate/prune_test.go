package evaluate

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"sluice.example/sluice/internal/pgtest"
)

// TestPrunedSubjectsDecideAsBefore: of random subjects, each that would be granted anything else than one without a
// row, or that waits for a digest, is kept; and most others go, in small pages.
func TestPrunedSubjectsDecideAsBefore(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	mustExec(t, db, `
insert into rule_subjects (tenant_id, rule_id, subject, recent, decided_at, asked, granted, cap_max, cap_seconds,
	cooldown_seconds, digest_seconds,
    suppressed, suppressed_since, digest_due_at)
select 1 + i % 3, 'r' || i % 7, 's' || i, recent, recent[1] + random() * interval '10 minutes', 1, 1,
	case when kind > 0 then n end,
    case when kind > 0 then 3600 else 0 end, case when kind < 2 then 1800 else 0 end, case when i % 4 = 0 then 60 end,
    case when i % 8 = 0 then 5 else 0 end, case when i % 8 = 0 then now() end, case when i % 8 = 0 then now() end
from generate_series(1, 2000) i, lateral (select i % 3 as kind, 1 + i % 5 as n) k,
    lateral (select array_agg(at order by at desc) as recent from (select now() - random() * interval '3 hours' as at
	from generate_series(1, n)) a
        where i > 0) r`)
	// How many of the asked decisions may be made at t: at most one with a cooldown; recent[1] is the newest grant.
	mustExec(t, db, `
create function rule_grants(recent timestamptz[], t timestamptz, asked integer, cap_max integer,
	cap_seconds double precision, cooldown_seconds double precision)
returns integer language sql stable as $$
	select least(asked,
		case when cap_max is not null then greatest(0, cap_max -
			(select count(*)::integer from unnest(recent) r where r > t - cap_seconds * interval '1 second')) end,
		case when cooldown_seconds > 0 then
			case when recent[1] > t - cooldown_seconds * interval '1 second' then 0 else 1 end end)
$$`)
	mustExec(t, db, `
create table matters as select s.* from rule_subjects s where suppressed > 0 or exists (select
	from generate_series(1, 6) asked
    where rule_grants(recent, now(), asked, cap_max, cap_seconds, cooldown_seconds) <> rule_grants('{}', now(), asked,
	cap_max, cap_seconds, cooldown_seconds))`)
	prune(t, db, NewPruner(DefaultConfig()), 1000) // a week is not over
	if got := column(t, db, `select count(*)::text from rule_subjects`); got != "2000" {
		t.Fatalf("%s subjects left of 2000 before their time", got)
	}
	p := NewPruner(DefaultConfig())
	p.keepSubjects = time.Microsecond
	pruned := 0
	for range 3 { // a walk looks at 100 pages of them
		pruned += prune(t, db, p, 17)["rule_subjects"]
	}
	if got := column(t, db, `select count(*)::text from matters m where not exists (select from rule_subjects s
		where (s.tenant_id, s.rule_id, s.subject) = (m.tenant_id, m.rule_id, m.subject))`); got != "0" {
		t.Errorf("%s subjects were pruned that would decide otherwise", got)
	}
	if pruned < 300 || pruned > 1900 {
		t.Errorf("%d of 2000 subjects were pruned; want a good part", pruned)
	}
}

func TestPrunesWhatRulesLeave(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	mustExec(t, db, `
insert into rule_status (rule_id, hash, kind, state, owner, response, seen_at)
values ('here', 'h', 'event', 'active', 'o', 'r', now()), ('gone', 'h', 'event', 'active', 'o', 'r',
	now() - interval '401 days')`)
	mustExec(t, db, `
insert into rule_hours (rule_id, hour, evaluated, messages, duplicate, cooldown, cap, errors)
select rule, date_trunc('hour', now()) - age * interval '1 day', 1, 0, 0, 0, 0, 0
	from unnest('{here,gone}'::text[]) rule, unnest('{401,402,403,404,405}'::int[]) age
union all select 'here', date_trunc('hour', now()) - interval '399 days', 1, 0, 0, 0, 0, 0`)
	mustExec(t, db,
		`insert into absence_seeds (timer, seen_at, seeds) values ('here', now() - interval '399 days', 2), ('gone',
			now() - interval '401 days', 2), ('gone2', now() - interval '401 days', 2)`)
	mustExec(t, db,
		`insert into absence_timers (tenant_id, timer, key, trigger_at) select 1, timer, i::text, now()
			from absence_seeds, generate_series(1, 5) i`)
	mustExec(t, db,
		`insert into absence_history (tenant_id, timer, key, at, event_id, occurred_at, cancels) select 1, timer, i::text,
			now(), gen_random_uuid(), now(), false from absence_seeds, generate_series(1, 7) i`)
	mustExec(t, db,
		`insert into rate_fills (metric, seen_at, passes, began_at, since) select timer, seen_at, 2, seen_at, now()
			from absence_seeds`)
	mustExec(t, db,
		`insert into rate_minutes (metric, tenant_id, minute, shard, n, x, late_n, late_x) select metric, 1, now(), i, 1, 1,
			0, 0 from rate_fills, generate_series(1, 5) i`)
	mustExec(t, db,
		`insert into rate_states (metric, tenant_id, slot, firing, state) select metric, 1, now(), true, '{}'
			from rate_fills`)
	mustExec(t, db, `insert into rate_firings (metric, tenant_id, started_at) select metric, 1, now() from rate_fills`)
	mustExec(t, db, `
insert into dedupe_keys (tenant_id, key_hash, expires_at)
select n, gen_random_uuid(), case when n > 0 then now() + (3 - n) * interval '1 hour' end
from generate_series(0, 6) as n`)
	kept := DefaultConfig()
	kept.RuleState = 0
	prune(t, db, NewPruner(kept), 2)
	if got := column(t, db, `select string_agg(timer, ' ' order by timer) from absence_seeds`); got != "gone gone2 here" {
		t.Errorf("with a rule state of 0 the timers left are those of %s; want all", got)
	}
	p := NewPruner(DefaultConfig())
	prune(t, db, p, 2)
	prune(t, db, p, 2) // a rule's status goes once its hours are gone
	for sql, want := range map[string]string{
		`select rule_id || ' ' || count(*) from rule_hours group by rule_id`: "here 1",
		// Number 3 expired at the very moment before.
		`select string_agg(tenant_id::text, ' ' order by tenant_id) from dedupe_keys`: "0 1 2",
		`select rule_id from rule_status`:                                             "here",
		`select timer from absence_seeds`:                                             "here",
		`select timer || ' ' || count(*) from absence_timers group by timer`:          "here 5",
		`select timer || ' ' || count(*) from absence_history group by timer`:         "here 7",
		`select metric from rate_fills`:                                               "here",
		`select metric || ' ' || count(*) from rate_minutes group by metric`:          "here 5",
		`select metric from rate_states`:                                              "here",
		`select metric from rate_firings`:                                             "here",
	} {
		if got := column(t, db, sql); got != want {
			t.Errorf("%s gives %s; want %s", sql, got, want)
		}
	}
}

// prune is one pass over all tables. It returns how many rows went from each.
func prune(t *testing.T, db *pgxpool.Pool, p *Pruner, rows int) map[string]int {
	t.Helper()
	sums := map[string]int{}
	for _, table := range p.Tables() {
		for more := true; more; {
			err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) (err error) {
				var gone int64
				gone, more, err = p.Prune(t.Context(), tx, table, rows)
				sums[table] += int(gone)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	return sums
}

func mustExec(t *testing.T, db *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := db.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// column is the text of the only row.
func column(t *testing.T, db *pgxpool.Pool, sql string) string {
	t.Helper()
	return strings.Join(query(t, db, sql), " ")
}
