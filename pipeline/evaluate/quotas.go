package evaluate

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/pipeline/rules"
)

// takeQuotasSQL locks the rows of subjects in the order of their keys, makes those that are missing, and returns what
// was granted before. Every transaction takes them at once, after the subjects of single rules, so two never wait for
// each other in a circle.
const takeQuotasSQL = `
insert into limit_subjects as s (tenant_id, limit_id, subject, moments, until)
select tenant, name, subject, '{}', now() + interval '1 day'
from unnest($1::int[], $2::text[], $3::text[]) u (tenant, name, subject) order by 1, 2, 3
on conflict (tenant_id, limit_id, subject) do update set until = s.until
returning tenant_id, limit_id, subject, moments`

// keepQuotasSQL keeps what is granted now, for as long as a longer limit after an edit may look back.
const keepQuotasSQL = `
update limit_subjects s set moments = u.moments::timestamptz[], until = u.until
from unnest($1::int[], $2::text[], $3::text[], $4::text[], $5::timestamptz[]) u (tenant, name, subject, moments, until)
where s.tenant_id = u.tenant and s.limit_id = u.name and s.subject = u.subject`

// quotas are the rows of limit_subjects that a recording holds.
type quotas struct {
	moments map[asked][]time.Time
	until   map[asked]time.Time
}

// applyQuotas asks the limits over several rules about the granted matches, by priority, and queues what they grant. A
// match that is deferred gets a longer Delay. It returns the database's clock; zero if no match is under a limit. What
// is queued in b has to have been sent.
func applyQuotas(ctx context.Context, tx pgx.Tx, b *pgx.Batch, matches []rules.Match, fates []fate) (
	now time.Time, err error) {
	order := slices.DeleteFunc(rules.ByPriority(matches), func(i int) bool { return fates[i] != granted })
	if len(order) == 0 {
		return now, nil
	}
	held := quotas{map[asked][]time.Time{}, map[asked]time.Time{}}
	for _, i := range order {
		for _, u := range matches[i].Under {
			if u.Counted() {
				held.moments[quotaOf(&matches[i], &u)] = nil
			}
		}
	}
	if now, err = held.take(ctx, tx); err != nil {
		return now, err
	}
	for _, i := range order {
		m := &matches[i]
		before := make([][]time.Time, len(m.Under))
		for j := range m.Under {
			before[j] = held.moments[quotaOf(m, &m.Under[j])]
		}
		at, reason := rules.Slot(m.Under, before, now, now.Add(m.Delay))
		if fates[i] = fate(reason); fates[i] != granted {
			continue
		}
		m.Delay = at.Sub(now)
		for j := range m.Under {
			if u := &m.Under[j]; u.Counted() {
				k := quotaOf(m, u)
				held.moments[k] = rules.Granted(before[j], at)
				held.until[k] = held.moments[k][0].Add(u.Quota.Per + keepSubjects)
			}
		}
	}
	held.keep(b)
	return now, nil
}

func quotaOf(m *rules.Match, u *rules.Under) asked { return asked{m.Tenant, u.State, u.Subject} }

func sorted[V any](m map[asked]V) []asked {
	return slices.SortedFunc(maps.Keys(m), func(a, b asked) int {
		return cmp.Or(cmp.Compare(a.tenant, b.tenant), cmp.Compare(a.rule, b.rule), cmp.Compare(a.subject, b.subject))
	})
}

// take reads what was granted before.
func (q quotas) take(ctx context.Context, tx pgx.Tx) (now time.Time, err error) {
	var tenants []int32
	var names, subjects []string
	for _, k := range sorted(q.moments) {
		tenants = append(tenants, k.tenant)
		names = append(names, k.rule)
		subjects = append(subjects, k.subject)
	}
	b := &pgx.Batch{}
	b.Queue(`select now()`).QueryRow(func(row pgx.Row) error { return row.Scan(&now) })
	if len(tenants) > 0 {
		b.Queue(takeQuotasSQL, tenants, names, subjects).Query(func(rows pgx.Rows) error {
			var k asked
			var moments []time.Time
			_, err := pgx.ForEachRow(rows, []any{&k.tenant, &k.rule, &k.subject, &moments}, func() error {
				q.moments[k], moments = moments, nil
				return nil
			})
			return err
		})
	}
	return now, tx.SendBatch(ctx, b).Close()
}

func (q quotas) keep(b *pgx.Batch) {
	var tenants []int32
	var names, subjects, moments []string
	var until []time.Time
	for _, k := range sorted(q.until) {
		tenants = append(tenants, k.tenant)
		names = append(names, k.rule)
		subjects = append(subjects, k.subject)
		until = append(until, q.until[k])
		texts := make([]string, len(q.moments[k]))
		for i, m := range q.moments[k] {
			texts[i] = m.UTC().Format(time.RFC3339Nano)
		}
		moments = append(moments, "{"+strings.Join(texts, ",")+"}")
	}
	if len(tenants) > 0 {
		b.Queue(keepQuotasSQL, tenants, names, subjects, moments, until)
	}
}
