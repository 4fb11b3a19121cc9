package retain

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	makePartitionSQL = `select create_events_partition((now() at time zone 'UTC')::date + $1::integer)`

	// The days after today up to the first without a partition; -1 where today has none.
	partitionsAheadSQL = `
select coalesce(min(i), $1 + 1) - 1
from generate_series(0, $1::integer) as i
where to_regclass('events_' || to_char((now() at time zone 'UTC')::date + i, 'YYYYMMDD')) is null`
)

// makePartitions makes the partitions of today and the days ahead, and counts them also where it can't make them. Every
// node does so: it costs a look-up a day, and none depends on another one being alive.
func (k *Keeper) makePartitions(ctx context.Context) error {
	var failed error
	for i := range partitionsAhead + 1 {
		var missing bool
		failed = k.transaction(ctx, func(ctx context.Context, tx pgx.Tx) error {
			return tx.QueryRow(ctx, makePartitionSQL, i).Scan(&missing)
		})
		if failed != nil {
			failed = fmt.Errorf("make the partition of today + %d days: %w", i, failed)
			if refused, ok := errors.AsType[*pgconn.PgError](failed); ok && refused.Code == insufficientPrivilege {
				failed = fmt.Errorf("%w; only the owner of events can: run a process with the role retain as that one", failed)
			}
			break
		}
		if missing {
			k.metrics.made.Inc()
			k.log.InfoContext(ctx, "retain: made an event partition", "days_from_today", i)
		}
	}
	counted := k.transaction(ctx, func(ctx context.Context, tx pgx.Tx) error {
		var ahead int
		if err := tx.QueryRow(ctx, partitionsAheadSQL, partitionsAhead).Scan(&ahead); err != nil {
			return err
		}
		k.metrics.ahead.Set(float64(ahead))
		return nil
	})
	return errors.Join(failed, counted)
}

const insufficientPrivilege = "42501"

// oldPartitionsSQL finds the days that ended before the period began, by their names, whose order is that of the days.
// Besides partitions it finds what a pass that was cut off left: one half detached, or detached and not dropped yet.
const oldPartitionsSQL = `
select c.relname, i.inhrelid is not null as attached, coalesce(i.inhdetachpending, false)
from pg_class c
left join pg_inherits i on i.inhrelid = c.oid and i.inhparent = 'events'::regclass
where c.relnamespace = (select relnamespace from pg_class where oid = 'events'::regclass)
    and c.relkind = 'r' and c.relname ~ '^events_[0-9]{8}$'
    and c.relname < 'events_' || to_char((now() - make_interval(secs => $1)) at time zone 'UTC', 'YYYYMMDD')
order by c.relname`

type partition struct {
	name              string
	attached, pending bool
}

func (k *Keeper) dropPartitions(ctx context.Context) error {
	if k.cfg.Events == 0 {
		return nil
	}
	for {
		var old []partition
		ran, err := k.alone(ctx, func(ctx context.Context, tx pgx.Tx) error {
			rows, err := tx.Query(ctx, oldPartitionsSQL, k.cfg.Events.Seconds())
			if err != nil {
				return err
			}
			old, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (p partition, err error) {
				return p, row.Scan(&p.name, &p.attached, &p.pending)
			})
			if err != nil || len(old) == 0 {
				return err
			}
			return k.dropPartition(ctx, tx, old[0])
		})
		if err != nil || !ran || len(old) == 0 {
			return err
		}
		k.metrics.dropped.Inc()
		k.log.InfoContext(ctx, "retain: dropped an event partition", "partition", old[0].name)
	}
}

// dropPartition first detaches: to drop an attached partition takes a lock on the whole of events, which stops all
// reading and writing and queues behind the longest report. "concurrently" waits for those who may see the partition
// without holding up anybody. What it leaves when it is cut off is found by the next pass, which then has to use
// "finalize". That one waits for every older snapshot, and meanwhile no partition can be made, so it gets no longer
// than lockTimeout and is tried again later. The drop then is of a table of its own.
func (k *Keeper) dropPartition(ctx context.Context, tx pgx.Tx, p partition) error {
	name := pgx.Identifier{p.name}.Sanitize()
	switch {
	case p.pending:
		if _, err := tx.Exec(ctx, `alter table events detach partition `+name+` finalize`); err != nil {
			return fmt.Errorf("finish to detach %s: %w", p.name, err)
		}
	case p.attached:
		// Allowed in no transaction, so on another connection. Ours has no lock that this one waits for.
		if _, err := k.pool.Exec(ctx, `alter table events detach partition `+name+` concurrently`); err != nil {
			return fmt.Errorf("detach %s: %w", p.name, err)
		}
	}
	if _, err := tx.Exec(ctx, `drop table `+name); err != nil {
		return fmt.Errorf("drop %s: %w", p.name, err)
	}
	return nil
}
