package books

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"sluice.example/sluice/pipeline"
)

// othersSQL counts those that may have written since a process started: that ended since then, or were seen since a
// moment before. The moment is for a process that was killed between two times of saying so, and wrote to the end.
const othersSQL = `
select count(*)
from sluice_processes o
join sluice_processes self on self.process_id = $1
where o.process_id <> self.process_id and o.writes
    and coalesce(o.ended_at, o.seen_at + interval '15 seconds') >= self.started_at`

func others(ctx context.Context, pool *pgxpool.Pool, self pipeline.UUID) (n int, err error) {
	if err := pool.QueryRow(ctx, othersSQL, self).Scan(&n); err != nil {
		return 0, fmt.Errorf("books: %w", err)
	}
	return n, nil
}
