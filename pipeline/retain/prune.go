package retain

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/internal/wait"
)

// prunable is a table whose rows go when a time of theirs is over.
type prunable struct {
	name string
	keep time.Duration
	// sql deletes at most $2 rows that are older than $1 seconds and that nobody holds.
	sql string
}

const (
	// Served by outbox_attempts_started, or by reading from the beginning, where the oldest are.
	pruneAttemptsSQL = `
delete from outbox_attempts where ctid = any (array(
    select ctid from outbox_attempts where started_at < now() - make_interval(secs => $1)
    limit $2 for update skip locked))`

	// No index: there are few, unless something is very wrong.
	pruneQuarantineSQL = `
delete from quarantine where ctid = any (array(
    select ctid from quarantine where quarantined_at < now() - make_interval(secs => $1)
    limit $2 for update skip locked))`

	// Served by processed_messages_processed_at.
	pruneProcessedSQL = `
delete from processed_messages where ctid = any (array(
    select ctid from processed_messages where processed_at < now() - make_interval(secs => $1)
    order by processed_at limit $2 for update skip locked))`

	// No index: there are as many as people have made.
	pruneJobsSQL = `
delete from operator_jobs where ctid = any (array(
    select ctid from operator_jobs where state in ('done', 'cancelled') and made_at < now() - make_interval(secs => $1)
    limit $2 for update skip locked))`
)

// keepJobs is how long operator_jobs has the jobs that have ended; what they did stays in the audit.
const keepJobs = 90 * 24 * time.Hour

func (k *Keeper) prunable() []prunable {
	tables := []prunable{{"operator_jobs", keepJobs, pruneJobsSQL}}
	if k.cfg.Attempts > 0 {
		tables = append(tables, prunable{"outbox_attempts", k.cfg.Attempts, pruneAttemptsSQL})
	}
	if k.cfg.Quarantine > 0 {
		tables = append(tables, prunable{"quarantine", k.cfg.Quarantine, pruneQuarantineSQL})
	}
	if k.cfg.Processed > 0 {
		tables = append(tables, prunable{"processed_messages", k.cfg.Processed, pruneProcessedSQL})
	}
	return tables
}

// tables are those from which rows go.
func (k *Keeper) tables() []string {
	names := []string{"outbox"}
	for _, t := range k.prunable() {
		names = append(names, t.name)
	}
	for _, o := range k.owners {
		names = append(names, o.Tables()...)
	}
	return names
}

func (k *Keeper) prune(ctx context.Context, t prunable) error {
	return k.batches(ctx, t.name, func(ctx context.Context, tx pgx.Tx) (gone int64, more bool, err error) {
		tag, err := tx.Exec(ctx, t.sql, t.keep.Seconds(), k.batchRows)
		return tag.RowsAffected(), tag.RowsAffected() == int64(k.batchRows), err
	})
}

func (k *Keeper) pruneOwned(ctx context.Context, o Owner, table string) error {
	return k.batches(ctx, table, func(ctx context.Context, tx pgx.Tx) (gone int64, more bool, err error) {
		return o.Prune(ctx, tx, table, k.batchRows)
	})
}

// pruneOutboxSQL walks the outbox once, a page at a time, in the order in which messages were made, and stops at the
// first page that is too young to hold anything. An index on finished_at would do as well and cost every message.
// A message that is retried at this moment is checked again after its lock, and stays. So does a dead one as long as
// unfinished ones of its subject come after it: where order is kept they may wait until somebody has looked at it, and
// would be sent if it went. outbox_order finds them.
const pruneOutboxSQL = `
with page as materialized (
    select message_id, created_at from outbox where message_id > $1 order by message_id limit $2
), gone as (
    delete from outbox where message_id = any (array(
        select o.message_id from outbox o
        where o.message_id in (select message_id from page)
            and (o.status in ('sent', 'skipped') and $3::float8 > 0
                    and o.finished_at < now() - make_interval(secs => $3)
                or o.status = 'dead' and $4::float8 > 0
                    and o.finished_at < now() - make_interval(secs => $4)
                    and (o.subject_key = '' or (
                        select b.message_id from outbox b
                        where b.destination = o.destination and b.tenant_id = o.tenant_id and b.subject_key <> ''
                            and b.status in ('pending', 'failed') and b.subject_key <= o.subject_key
                            and (b.subject_key, b.message_id) > (o.subject_key, o.message_id)
                        order by b.subject_key, b.message_id limit 1) is null))
        for update skip locked))
    returning message_id
)
select coalesce(max(message_id), $1), count(*) = $2 and min(created_at) < now() - make_interval(secs => $5),
    (select count(*) from gone)
from page`

func (k *Keeper) pruneOutbox(ctx context.Context) error {
	sent, dead := k.cfg.Outbox.Seconds(), k.cfg.Dead.Seconds()
	youngest := sent
	if sent == 0 || dead > 0 && dead < sent {
		youngest = dead
	}
	last := int64(0)
	return k.batches(ctx, "outbox", func(ctx context.Context, tx pgx.Tx) (gone int64, more bool, err error) {
		err = tx.QueryRow(ctx, pruneOutboxSQL, last, k.batchRows, sent, dead, youngest).Scan(&last, &more, &gone)
		return gone, more, err
	})
}

// batchFunc deletes one batch of rows, and reports how many, and whether there may be more.
type batchFunc func(context.Context, pgx.Tx) (gone int64, more bool, err error)

// batches repeats f, each time in a transaction of its own, while there is more, and rests after each as long as it
// took. It leaves the rest to another node that is at it.
func (k *Keeper) batches(ctx context.Context, table string, f batchFunc) error {
	began, total := time.Now(), int64(0)
	defer func() {
		if total > 0 {
			k.log.InfoContext(ctx, "retain: deleted rows", "table", table, "rows", total, "took", time.Since(began))
		}
	}()
	for {
		start := time.Now()
		var (
			gone int64
			more bool
		)
		ran, err := k.alone(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
			gone, more, err = f(ctx, tx)
			return err
		})
		if err != nil {
			return err
		}
		total += gone
		k.metrics.pruned.WithLabelValues(table).Add(float64(gone))
		if !ran || !more || !wait.For(ctx, time.Since(start)) {
			return nil
		}
	}
}
