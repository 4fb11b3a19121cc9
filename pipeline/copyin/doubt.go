package copyin

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// inProgress is what pg_xact_status reports of a transaction without an end.
const inProgress = "in progress"

// xactStatusSQL takes no standby's word, which may not have heard of the end yet.
const xactStatusSQL = `
select case when pg_is_in_recovery() then 'in progress' else coalesce(pg_xact_status($1::text::xid8), 'unknown') end`

// lookUpCommit asks PostgreSQL what became of a transaction, until it is known or ctx ends. After a crash or a failover
// that lost the transaction, nobody has its id, and later PostgreSQL gives it to another one. So an id of the future
// counts as aborted, and "committed" counts only where the rows are there and bear the id. And it counts only once the
// standbys have it: whatever ended the wait for COMMIT's answer may have ended PostgreSQL's wait for them.
func (w *Writer) lookUpCommit(ctx, stop context.Context, b *batch, doubt *inDoubt) (committed bool, err error) {
	for rest := firstPause; ; {
		status, err := w.statusOf(ctx, doubt.xid)
		if err == nil && status == "committed" {
			var ours bool
			if ours, err = w.wrote(ctx, b, doubt.xid); !ours {
				status = "aborted"
			}
		}
		if err == nil && status == "committed" {
			err = w.confirm(ctx, stop)
		}
		switch {
		case err == nil && (status == "committed" || status == "aborted"):
			w.m.inDoubt.WithLabelValues(status).Inc()
			return status == "committed", nil
		case err == nil && status == "unknown", err != nil && classify(err) == causePermanent:
			w.m.inDoubt.WithLabelValues("unknown").Inc()
			return false, errors.Join(doubt, err)
		}
		if perr := pause(ctx, &rest); perr != nil {
			w.m.inDoubt.WithLabelValues("unknown").Inc()
			return false, errors.Join(doubt, err)
		}
	}
}

func (w *Writer) statusOf(ctx context.Context, xid string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, w.attemptTimeout)
	defer cancel()
	return xactStatus(ctx, w.pool, xid)
}

type rowQueryer interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func xactStatus(ctx context.Context, db rowQueryer, xid string) (status string, err error) {
	err = db.QueryRow(ctx, xactStatusSQL, xid).Scan(&status)
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Code == inTheFuture {
		return "aborted", nil
	}
	return status, err
}

// inTheFuture is pg_xact_status's error for an id that no transaction of this server has had.
const inTheFuture = "22023"

// wrote reports whether the batch's events are stored, by this very transaction.
func (w *Writer) wrote(ctx context.Context, b *batch, xid string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, w.attemptTimeout)
	defer cancel()
	positions, found := b.remaining(), 0
	var queries pgx.Batch
	for k := range b.keysByDay(positions) {
		queries.Queue(writtenSQL, k.tenants, k.ids, k.times, k.from, k.to, xid).QueryRow(func(row pgx.Row) error {
			var n int
			err := row.Scan(&n)
			found += n
			return err
		})
	}
	err := w.pool.SendBatch(ctx, &queries).Close()
	return err == nil && found == len(positions) && found > 0, err
}

// markSQL writes to the WAL, so that the COMMIT of a transaction which changes nothing else waits for the standbys as
// any other does. Since they take the WAL in its order, they then have everything that was committed before.
const markSQL = `select pg_logical_emit_message(true, 'sluice', ''::text)`

// confirm returns once the standbys that COMMIT waits for have everything that is visible now, as
// synchronous_standby_names and synchronous_commit demand it. Without such standbys that is at once.
func (w *Writer) confirm(ctx, stop context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, w.attemptTimeout)
	defer cancel()
	conn, err := w.pool.Acquire(ctx)
	if err != nil {
		return &stepError{at: atConnect, err: err}
	}
	defer conn.Release()
	fail := func(err error) error { return &stepError{at: atConfirm, closed: conn.Conn().IsClosed(), err: err} }
	tx, now, err := w.begin(ctx, conn.Conn())
	if err != nil {
		return fail(err)
	}
	if !now.standbys {
		rollback(ctx, tx)
		return nil
	}
	if _, err := tx.Exec(ctx, markSQL); err != nil {
		rollback(ctx, tx)
		return fail(err)
	}
	return w.commit(ctx, stop, conn.Conn(), now.xid)
}
