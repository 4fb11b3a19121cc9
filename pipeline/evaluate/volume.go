package evaluate

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/internal/yamlfile"
	"sluice.example/sluice/pipeline"
	"sluice.example/sluice/pipeline/rules"
)

// volumeSQL sums windows of the last week, one for each hour, of each of up to 20 tenants, from when a tenant was
// counted first; then how many windows reach the minimum, and what one holds on average. Ranges of the primary key.
const volumeSQL = `
with tenant as (
	select tenant_id, min(minute) as first from rate_minutes where metric = $1 and minute > now() - interval '7 days'
	group by tenant_id order by sum(n + x) desc limit 20),
win as (
	select t.tenant_id, coalesce(sum(m.n), 0)::float8 n, coalesce(sum(m.x), 0)::float8 x
	from tenant t
	cross join generate_series(date_trunc('hour', now()) - interval '7 days', now() - $3::interval,
		interval '1 hour') as e(until)
	left join rate_minutes m on m.metric = $1 and m.tenant_id = t.tenant_id and m.minute >= e.until - $2::interval
		and m.minute < e.until
	where e.until - $2::interval >= t.first
	group by t.tenant_id, e.until)
select count(*), count(*) filter (where case when $4 then n >= $5 and n * p >= $6 else x >= $6 end),
	coalesce(avg(n), 0), coalesce(avg(x), 0)
from win cross join (select coalesce(sum(x) / nullif(sum(n), 0), 0) as p from win) rate`

// fewWindows is how many windows have to be counted before their volume means anything: a day's.
const fewWindows = 24

// latenessSQL reads up to 5,000 of the events that a rule may count, from anywhere in some 64 MiB of a week's. What was
// on its way for a day was imported, or is nothing to wait for.
const latenessSQL = `
select ` + pipeline.EventColumns + ` from events tablesample system ((
	select least(100, 100 * 67108864.0 / nullif(sum(pg_relation_size(c.oid)), 0))
	from pg_inherits join pg_class c on c.oid = inhrelid where inhparent = 'events'::regclass
	and relname >= to_char($1::timestamptz at time zone 'UTC', '"events_"YYYYMMDD')))
where occurred_at >= $1 and received_at < occurred_at + interval '1 day'
	and ($2::text[] is null or event_name = any($2)) order by random() limit 5000`

// LintStored warns of rate rules whose settle is too short for the stored events, or whose minimum is rarely reached
// by what is counted in the database, if anything is. With an error it returns what it has found until then.
func LintStored(ctx context.Context, conn *pgx.Conn, set *rules.Set) (found yamlfile.Faults, err error) {
	var e pipeline.EventRow
	for _, r := range set.Rates() {
		a := r.Rate
		var late []time.Duration
		rows, _ := conn.Query(ctx, latenessSQL, pgx.QueryExecModeExec, a.Recent(time.Now()), a.Names)
		_, err = pgx.ForEachRow(rows, e.Fields(), func() error {
			ev, _ := e.Event()
			late = set.AppendLateness(late, r, ev)
			return nil
		})
		if err != nil {
			return found, fmt.Errorf("evaluate: lateness of %s: %w", r.Name, err)
		}
		found = append(found, a.SettlesEarly(late)...)
		leastN, leastX := a.Floor()
		var windows, reached int
		var n, x float64
		err = conn.QueryRow(ctx, volumeSQL, a.Metric, a.Window, a.Settle, a.Ratio, leastN, leastX).
			Scan(&windows, &reached, &n, &x)
		if err != nil {
			return found, fmt.Errorf("evaluate: volume of %s: %w", r.Name, err)
		}
		if windows >= fewWindows && reached*2 < windows { // never so where nothing has to be reached
			warning := a.MinimumPlace
			warning.Message = fmt.Sprintf("reached by %d of %d windows of the last 7 days, so the rule would mostly be "+
				"unknown. %s", reached, windows, a.TooFew(n, x))
			found = append(found, warning)
		}
	}
	return found, nil
}
