package evaluate

import (
	"cmp"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/pipeline/rules"
)

// rollupSQL adds counts to their minutes.
const rollupSQL = `
insert into rate_minutes as m (metric, tenant_id, minute, shard, n, x, late_n, late_x)
select metric, tenant_id, minute, $8::smallint, n, x, late_n, late_x
from unnest($1::text[], $2::int[], $3::timestamptz[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[])
	as u(metric, tenant_id, minute, n, x, late_n, late_x) order by 1, 2, 3
on conflict (metric, tenant_id, minute, shard) do update set n = m.n + excluded.n, x = m.x + excluded.x,
	late_n = m.late_n + excluded.late_n, late_x = m.late_x + excluded.late_x`

const (
	// shards is how many batches can add to one minute at a time. A guess: twice the usual number of writers.
	shards = 8
	// fillShard is for counts that batches did not make, so that no batch waits for them.
	fillShard = -1
)

func queueRollup(b *pgx.Batch, counted []rules.Count) {
	sums := map[rules.Minute]rules.Counts{}
	rules.Rollup(sums, counted)
	queueMinutes(b, sums, int16(rand.IntN(shards)))
}

func queueMinutes(b *pgx.Batch, sums map[rules.Minute]rules.Counts, shard int16) {
	keys := slices.SortedFunc(maps.Keys(sums), func(a, b rules.Minute) int {
		return cmp.Or(cmp.Compare(a.Metric, b.Metric), cmp.Compare(a.Tenant, b.Tenant), a.At.Compare(b.At))
	})
	metrics := make([]string, len(keys))
	tenants := make([]int32, len(keys))
	minutes := make([]time.Time, len(keys))
	var columns [4][]int64
	for i, k := range keys {
		metrics[i] = k.Metric
		tenants[i] = k.Tenant
		minutes[i] = k.At
		for j, n := range sums[k] {
			columns[j] = append(columns[j], n)
		}
	}
	b.Queue(rollupSQL, metrics, tenants, minutes, columns[0], columns[1], columns[2], columns[3], shard)
}
