package evaluate

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"go.yaml.in/yaml/v3"

	"sluice.example/sluice/internal/spell"
	"sluice.example/sluice/internal/yamlfile"
)

// pinned finds comparisons of the event's name with a text, as people write them.
var pinned = regexp.MustCompile(`event\.event_name\s*==\s*("[^"\\]*"|'[^'\\]*')`)

// lintMatch warns of a condition that asks for a name that the rule does not listen to.
func (l *loader) lintMatch(n *yaml.Node, where string, on []string) {
	for _, m := range pinned.FindAllStringSubmatchIndex(n.Value, -1) {
		name := n.Value[m[2]+1 : m[3]-1]
		before := n.Value[:m[2]]
		line := strings.Count(before, "\n")
		line, col := l.src.Inside(n, line+1, len([]rune(before[strings.LastIndex(before, "\n")+1:])))
		warn := func(format string, args ...any) {
			message := fmt.Sprintf(format, args...)
			l.warnings = append(l.warnings, yamlfile.Fault{File: l.src.Name, Line: line, Column: col, Where: where, Message: message})
		}
		switch {
		case slices.Equal(on, []string{"*"}):
			warn("name %q in on instead of asking for it here: then other events cost nothing", name)
		case !slices.Contains(on, name):
			warn("the event is never %q here: the rule listens to %s. Add the name to on, or drop the comparison%s", name, strings.Join(on, ", "), spell.DidYouMean(name, on))
		}
	}
}

// volumeSQL sums windows of the last week, one for each hour, of each of up to 20 tenants, from when a tenant was counted
// first; then how many windows reach the minimum, and what one holds on average. Ranges of the primary key.
const volumeSQL = `
with tenant as (
	select tenant_id, min(minute) as first from rate_minutes where metric = $1 and minute > now() - interval '7 days' group by tenant_id
	order by sum(n + x) desc limit 20),
win as (
	select t.tenant_id, coalesce(sum(m.n), 0)::float8 n, coalesce(sum(m.x), 0)::float8 x
	from tenant t cross join generate_series(date_trunc('hour', now()) - interval '7 days', now() - $3::interval, interval '1 hour') as e(until)
	left join rate_minutes m on m.metric = $1 and m.tenant_id = t.tenant_id and m.minute >= e.until - $2::interval and m.minute < e.until
	where e.until - $2::interval >= t.first
	group by t.tenant_id, e.until)
select count(*), count(*) filter (where case when $4 then n >= $5 and n * p >= $6 else x >= $6 end), coalesce(avg(n), 0), coalesce(avg(x), 0)
from win cross join (select coalesce(sum(x) / nullif(sum(n), 0), 0) as p from win) rate`

// fewWindows is how many windows have to be counted before their volume says anything: a day's.
const fewWindows = 24

// LintVolume warns of rate rules whose minimum is rarely reached by what is counted in the database, if anything is.
func (s *Set) LintVolume(ctx context.Context, conn *pgx.Conn) (yamlfile.Faults, error) {
	var found yamlfile.Faults
	for _, r := range s.rules {
		if r.rate == nil || r.off {
			continue
		}
		a := r.rate
		var windows, reached int
		var n, x float64
		err := conn.QueryRow(ctx, volumeSQL, a.Metric, a.Window, a.Settle, a.ratio, a.minN, a.minX).Scan(&windows, &reached, &n, &x)
		if err != nil {
			return nil, fmt.Errorf("evaluate: volume of %s: %w", r.name, err)
		}
		if windows < fewWindows || reached*2 >= windows {
			continue
		}
		warning := a.minimumPlace
		warning.Message = fmt.Sprintf("reached by %d of %d windows of the last 7 days, so the rule would mostly be unknown. %s", reached, windows, a.advice(n, x))
		found = append(found, warning)
	}
	return found, nil
}

// advice is a window in which enough happens, given what happens in one on average.
func (a *rate) advice(n, x float64) string {
	factor, usual := a.minX/x, fmt.Sprintf("%.1f events", x)
	if a.ratio {
		factor, usual = max(a.minN/n, a.minX/x), fmt.Sprintf("%.1f of the denominator and %.1f of the numerator", n, x)
	}
	if x == 0 || factor*a.Window.Hours() > 7*24 {
		return fmt.Sprintf("A window holds %s on average, too little for a rate rule", usual)
	}
	wider := time.Duration(factor*float64(a.Window)).Truncate(time.Hour) + time.Hour
	return fmt.Sprintf("A window holds %s on average: make it about %dh long, or lower the minimum", usual, int(wider.Hours()))
}
