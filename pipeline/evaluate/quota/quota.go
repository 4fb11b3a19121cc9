// Package quota asks the limits over several rules, and keeps in limit_subjects what they granted. Everything happens
// in the transaction of the decisions, on locked rows, so the limits hold exactly however many processes decide.
package quota

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

// takeSQL locks the rows of subjects in the order of their keys, makes those that are missing, and returns what was
// granted before. Every transaction takes them at once, after the subjects of single rules, so two never wait for each
// other in a circle.
const takeSQL = `
insert into limit_subjects as s (tenant_id, limit_id, subject, moments, until)
select tenant, name, subject, '{}', now() + interval '1 day'
from unnest($1::int[], $2::text[], $3::text[]) u (tenant, name, subject) order by 1, 2, 3
on conflict (tenant_id, limit_id, subject) do update set until = s.until
returning tenant_id, limit_id, subject, moments, held, held_since, digest_due_at`

// keepSQL keeps what is granted now, for as long as a longer limit after an edit may look back.
const keepSQL = `
update limit_subjects s set moments = u.moments::timestamptz[], until = u.until, held = u.held,
    held_since = u.since, digest_due_at = u.due
from unnest($1::int[], $2::text[], $3::text[], $4::text[], $5::timestamptz[], $6::bigint[], $7::timestamptz[],
    $8::timestamptz[]) u (tenant, name, subject, moments, until, held, since, due)
where s.tenant_id = u.tenant and s.limit_id = u.name and s.subject = u.subject`

// Answer is what became of a match that was asked for.
type Answer struct {
	// Asked is false of a match that is under no limit, or that asked was false of.
	Asked bool
	// Sent are its messages; Held: some destination gets none.
	Sent []rules.Part
	Held bool
}

// Ask asks the limits about the matches that wanted holds for, by their place, those with the highest priority first.
// It queues in b what they grant, to be kept for Per of the limit and remember. It returns the database's clock, which
// is zero if nothing was asked, and the answers by place. What is queued in b has to have been sent.
func Ask(ctx context.Context, tx pgx.Tx, b *pgx.Batch, matches []rules.Match, wanted func(i int) bool,
	remember time.Duration) (now time.Time, answers []Answer, err error) {
	order := slices.DeleteFunc(rules.ByPriority(matches), func(i int) bool { return !wanted(i) })
	if len(order) == 0 {
		return now, nil, nil
	}
	rows := rules.QuotaRows{}
	for _, i := range order {
		rows.Want(&matches[i])
	}
	if now, err = take(ctx, tx, rows); err != nil {
		return now, nil, err
	}
	answers = make([]Answer, len(matches))
	for _, i := range order {
		answers[i].Asked = true
		answers[i].Sent, answers[i].Held = rows.Grant(&matches[i], now)
	}
	keep(b, rows, remember)
	return now, answers, nil
}

func sorted(rows rules.QuotaRows) []rules.QuotaKey {
	return slices.SortedFunc(maps.Keys(rows), func(a, b rules.QuotaKey) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.State, b.State), cmp.Compare(a.Subject, b.Subject))
	})
}

// take reads what was granted before.
func take(ctx context.Context, tx pgx.Tx, rows rules.QuotaRows) (now time.Time, err error) {
	var tenants []int32
	var names, subjects []string
	for _, k := range sorted(rows) {
		tenants = append(tenants, k.Tenant)
		names = append(names, k.State)
		subjects = append(subjects, k.Subject)
	}
	b := &pgx.Batch{}
	b.Queue(`select now()`).QueryRow(func(row pgx.Row) error { return row.Scan(&now) })
	if len(tenants) > 0 {
		b.Queue(takeSQL, tenants, names, subjects).Query(func(found pgx.Rows) error {
			var k rules.QuotaKey
			var moments []time.Time
			var held int64
			var since, due *time.Time
			to := []any{&k.Tenant, &k.State, &k.Subject, &moments, &held, &since, &due}
			_, err := pgx.ForEachRow(found, to, func() error {
				row := rows[k]
				row.Moments, moments = moments, nil
				if row.Held = held; held > 0 && since != nil && due != nil {
					row.Since, row.DigestAt = *since, *due
				}
				since, due = nil, nil
				return nil
			})
			return err
		})
	}
	return now, tx.SendBatch(ctx, b).Close()
}

func keep(b *pgx.Batch, rows rules.QuotaRows, remember time.Duration) {
	var tenants []int32
	var names, subjects, moments []string
	var until []time.Time
	var held []int64
	var since, due []*time.Time
	for _, k := range sorted(rows) {
		row := rows[k]
		if !row.Changed {
			continue
		}
		tenants = append(tenants, k.Tenant)
		names = append(names, k.State)
		subjects = append(subjects, k.Subject)
		until = append(until, row.Until.Add(remember))
		held = append(held, row.Held)
		since = append(since, orNull(row.Since))
		due = append(due, orNull(row.DigestAt))
		texts := make([]string, len(row.Moments))
		for i, m := range row.Moments {
			texts[i] = m.UTC().Format(time.RFC3339Nano)
		}
		moments = append(moments, "{"+strings.Join(texts, ",")+"}")
	}
	if len(tenants) > 0 {
		b.Queue(keepSQL, tenants, names, subjects, moments, until, held, since, due)
	}
}

func orNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// dueSQL takes the subjects of limits in force whose digest is due, and starts their count anew. What belongs to other
// limits is left alone: they may be in force in another process, or come back. Served by limit_subjects_digest_due.
const dueSQL = `
with due as materialized (
    select tenant_id, limit_id, subject, held, held_since, digest_due_at from limit_subjects
    where digest_due_at <= now() and limit_id = any($2) order by digest_due_at limit $1 for update skip locked),
reset as (
    update limit_subjects s set held = 0, held_since = null, digest_due_at = null from due d
    where s.tenant_id = d.tenant_id and s.limit_id = d.limit_id and s.subject = d.subject)
select tenant_id, limit_id, subject, held, held_since, extract(epoch from now() - digest_due_at)::float8 from due`

// Due takes up to n subjects of the limits whose digest is due.
func Due(ctx context.Context, tx pgx.Tx, limits []string, n int) (due []rules.LimitHeld, err error) {
	rows, err := tx.Query(ctx, dueSQL, n, limits)
	if err != nil {
		return nil, err
	}
	var h rules.LimitHeld
	var late float64
	_, err = pgx.ForEachRow(rows, []any{&h.Tenant, &h.State, &h.Subject, &h.Count, &h.Since, &late}, func() error {
		h.Late = time.Duration(late * float64(time.Second)).Round(time.Microsecond)
		due = append(due, h)
		return nil
	})
	return due, err
}
