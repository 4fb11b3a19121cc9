package books

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"sluice.example/sluice/pipeline"
)

// process is this process's row in the table sluice_processes, by which others know that it writes.
type process struct {
	id   pipeline.UUID
	pool *pgxpool.Pool
}

// seenEvery is how often a process says that it runs.
const seenEvery = 5 * time.Second

// registerSQL forgets processes of a week ago as well: no books go back that far that were opened before.
const registerSQL = `
with gone as (delete from sluice_processes where seen_at < now() - interval '7 days')
insert into sluice_processes (process_id, writes) values ($1, $2) on conflict do nothing`

func register(ctx context.Context, pool *pgxpool.Pool, id pipeline.UUID, writes bool) (*process, error) {
	p := &process{id: id, pool: pool}
	if _, err := pool.Exec(ctx, registerSQL, p.id, writes); err != nil {
		return nil, err
	}
	return p, nil
}

const seenSQL = `update sluice_processes set seen_at = now() where process_id = $1`

const endedSQL = `update sluice_processes set seen_at = now(), ended_at = now() where process_id = $1`

// Run tells other processes that this one runs, until ctx ends, and then that it has ended. A failure is logged and
// tried again: while the database is away nobody writes.
func (h *Handler) Run(ctx context.Context, log *slog.Logger) error {
	s := h.source.Load()
	tick := time.NewTicker(seenEvery)
	defer tick.Stop()
	say := func(sql string) {
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), seenEvery)
		defer cancel()
		if _, err := s.self.pool.Exec(limit, sql, s.self.id); err != nil {
			log.Warn("other processes were not told that this one runs; it is tried again", "error", err)
		}
	}
	for {
		select {
		case <-ctx.Done():
			say(endedSQL)
			return nil
		case <-tick.C:
			say(seenSQL)
		}
	}
}

// othersSQL counts those that may have written since a process started: that ended since then, or were seen since a
// moment before. The moment is for a process that was killed between two times of saying so, and wrote to the end.
const othersSQL = `
select count(*)
from sluice_processes o
join sluice_processes self on self.process_id = $1
where o.process_id <> self.process_id and o.writes
    and coalesce(o.ended_at, o.seen_at + interval '15 seconds') >= self.started_at`

func (p *process) others(ctx context.Context, pool *pgxpool.Pool) (n int, err error) {
	if err := pool.QueryRow(ctx, othersSQL, p.id).Scan(&n); err != nil {
		return 0, fmt.Errorf("books: %w", err)
	}
	return n, nil
}
