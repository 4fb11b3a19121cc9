package evaluate

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/internal/yamlfile"
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

// LintVolume warns of rate rules whose minimum is rarely reached by what is counted in the database, if anything is.
func LintVolume(ctx context.Context, conn *pgx.Conn, set *rules.Set) (yamlfile.Faults, error) {
	var found yamlfile.Faults
	for _, r := range set.Rates() {
		a := r.Rate
		leastN, leastX := a.Floor()
		if leastN == 0 && leastX == 0 {
			continue
		}
		var windows, reached int
		var n, x float64
		err := conn.QueryRow(ctx, volumeSQL, a.Metric, a.Window, a.Settle, a.Ratio, leastN, leastX).
			Scan(&windows, &reached, &n, &x)
		if err != nil {
			return nil, fmt.Errorf("evaluate: volume of %s: %w", r.Name, err)
		}
		if windows < fewWindows || reached*2 >= windows {
			continue
		}
		warning := a.MinimumPlace
		warning.Message = fmt.Sprintf("reached by %d of %d windows of the last 7 days, so the rule would mostly be "+
			"unknown. %s",
			reached, windows, a.TooFew(n, x))
		found = append(found, warning)
	}
	return found, nil
}
