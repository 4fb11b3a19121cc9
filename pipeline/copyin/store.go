package copyin

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"sluice.example/sluice/internal/pgsession"
	"sluice.example/sluice/internal/wait"
	"sluice.example/sluice/pipeline"
)

// mode is how the next transaction goes about it.
type mode struct {
	lookup  bool // look all keys up before COPY, not only those of suspects
	isolate bool // expect rows that can't be stored
	// conflictIsPoison: the key that COPY ran into is not the one of events (somebody added a unique index), so no
	// look-up finds it.
	conflictIsPoison bool
	// partitionIsPoison: the day of a row has no partition, and none can be made.
	partitionIsPoison bool
	// anyIsPoison: an error that may be about anything came back on a new session.
	anyIsPoison bool
	// passingIsPoison: an error that usually passes did not.
	passingIsPoison bool
	// dropped: the batch went straight, and the database dropped rows of it.
	dropped bool
	// immediate: COMMIT failed. What is deferred to it runs before.
	immediate bool
}

// How a batch begins, in the metrics.
const (
	pathCopy     = "copy"
	pathSuspects = "suspects"
	pathLookup   = "lookup"
)

// store runs transactions until one commits. Every round learns something (keys that are stored, a row that can't be,
// a partition made) or waits; the deadline of ctx bounds the rest. Only stop ends a COMMIT that PostgreSQL works on.
func (w *Writer) store(ctx, stop context.Context, b *batch, recorder Recorder) error {
	m := mode{lookup: w.misses.recent() >= w.lookupFirst}
	path := pathCopy
	switch {
	case m.lookup:
		path = pathLookup
	case len(b.suspects) > 0:
		path = pathSuspects
	}
	conflicted, renewed, unmade, raised, locked := false, false, 0, 0, 0
	rest := firstPause
	var last error // of the attempt before
	for {
		known, start := b.duplicates, time.Now()
		err := w.attempt(ctx, stop, b, recorder, m)
		w.outage.note(err, time.Now())
		if doubt, ok := errors.AsType[*inDoubt](err); ok {
			committed, unknown := w.lookUpCommit(ctx, stop, b, doubt)
			if unknown != nil {
				return unknown
			}
			w.outage.note(nil, time.Now())
			if !committed {
				w.m.retries.WithLabelValues(string(causeInDoubt)).Inc()
				continue
			}
			err = nil
		}
		if err == nil {
			w.m.batches.WithLabelValues(path).Inc()
			w.misses.note(b.missed)
			w.control.keep(b)
			return nil
		}
		if errors.Is(err, errDropped) {
			m.dropped, m.lookup = true, false
			w.m.retries.WithLabelValues(string(causeDropped)).Inc()
			continue
		}
		if ctx.Err() != nil {
			return errors.Join(err, last)
		}
		last = err
		if _, certain := errors.AsType[*fault](err); certain {
			return err
		}
		c := classify(err)
		if raisedAtCommit(err) && !m.immediate {
			// By something deferred: it is asked for earlier, where it shows what it is about.
			m.immediate = true
			w.m.retries.WithLabelValues(string(causeCommit)).Inc()
			continue
		}
		switch c {
		case causeConflict:
			w.m.conflicts.Inc()
			if conflicted && m.lookup && b.duplicates == known {
				m.isolate, m.conflictIsPoison = true, true
			}
			m.lookup, conflicted = true, true
			continue
		case causePartition:
			made, failed := w.makePartitions(ctx, b)
			if made > 0 && failed == nil {
				continue
			}
			if failed == nil || classify(failed) == causePermanent {
				// Another node may have made it just now, or be about to drop it. After that, its rows alone are
				// rejected.
				if unmade++; unmade == 1 {
					continue
				}
				if unmade > partitionTries {
					w.log.Warn("days without a partition, and none can be made", "error", errors.Join(err, failed))
					m.isolate, m.partitionIsPoison = true, true
					continue
				}
			}
		case causePoison:
			w.m.isolations.Inc()
			positions := b.remaining()
			if row, column, ok := copyLine(err, len(positions)); ok && !m.isolate {
				b.reject(positions[row], rejectionOf(err, column))
			}
			m.isolate = true
			continue
		case causeDiskFull:
			return fmt.Errorf("%w: %w", pipeline.ErrDiskFull, err) // room takes an operator, and clients come again
		case causePermanent:
			// Its session was closed where the error may be one that only old sessions have. Then all are old.
			at, ok := errors.AsType[*stepError](err)
			switch {
			case ok && at.closed && !renewed:
				renewed = true
				w.pool.Reset()
				w.m.retries.WithLabelValues(string(causeSession)).Inc()
			case ok && at.at == atCopy && !m.anyIsPoison:
				m.isolate, m.anyIsPoison = true, true
			default:
				return &fault{err}
			}
			continue
		default:
			w.m.retries.WithLabelValues(string(c)).Inc()
			if w.quick(start) && (c.passes() || raisedByARow(err)) {
				if raised++; raised >= batchTries {
					m.isolate, m.passingIsPoison, m.anyIsPoison = true, true, m.anyIsPoison || !c.passes()
				}
			} else if c == causeLock {
				if locked++; locked >= lockTries {
					return fmt.Errorf("%w: %w", pipeline.ErrLocked, err)
				}
			}
		}
		if ended := pause(ctx, &rest); ended != nil {
			return errors.Join(ended, err)
		}
	}
}

// copy stores the positions that can be stored, and rejects the others.
func (w *Writer) copy(ctx context.Context, tx pgx.Tx, b *batch, positions []int32, m mode) error {
	switch {
	case m.dropped: // those that are there were committed before
		return rejectDropped(ctx, tx, b, positions)
	case m.isolate:
		if err := w.copyIsolating(ctx, tx, b, positions, m); err != nil {
			return err
		}
		return rejectDropped(ctx, tx, b, b.remainingOf(positions))
	}
	tag, err := copyRows(ctx, tx, b, positions, copySQL)
	if err == nil && tag.RowsAffected() < int64(len(positions)) {
		err = rejectDropped(ctx, tx, b, positions)
	}
	return err
}

// raisedAtCommit reports whether PostgreSQL answered COMMIT with an error about what the transaction did.
func raisedAtCommit(err error) bool {
	at, ok := errors.AsType[*stepError](err)
	said, answered := errors.AsType[*pgconn.PgError](err)
	return ok && answered && at.at == atCommit && said.SeverityUnlocalized == "ERROR"
}

// raisedByARow reports whether COPY failed as by an outage, and the session lives: a trigger may have raised it.
func raisedByARow(err error) bool {
	at, ok := errors.AsType[*stepError](err)
	said, answered := errors.AsType[*pgconn.PgError](err)
	return ok && answered && at.at == atCopy && !at.closed && said.SeverityUnlocalized == "ERROR" && said.Code != "25006"
}

// lockTries is how often a batch waits for a lock that somebody holds before its writer goes on with others, whose
// events may not need it. A guess: 5 s in all, and the clients of this batch come again.
const lockTries = 2

// partitionTries is how often a day is asked for whose table is not a partition: retention has detached it and will
// drop it, which takes milliseconds unless a long report holds it up. A guess, 50 ms with its pauses.
const partitionTries = 4

// Guesses: short enough to be invisible after a deadlock, long enough not to hammer a server that starts up.
const (
	firstPause = 10 * time.Millisecond
	maxPause   = time.Second
)

// pause waits for a random share of d and doubles it; the error is that of ctx.
func pause(ctx context.Context, d *time.Duration) error {
	share := *d/2 + rand.N(*d/2)
	*d = min(2**d, maxPause)
	if !wait.For(ctx, share) {
		return ctx.Err()
	}
	return nil
}

// attempt is one transaction. The lock order is that of all stages: ids without a time, events, quarantine, then what
// the recorder takes; each sorted by key.
func (w *Writer) attempt(ctx, stop context.Context, b *batch, recorder Recorder, m mode) error {
	start := time.Now()
	defer func() { w.m.attemptSeconds.Observe(time.Since(start).Seconds()) }()
	ctx, cancel := context.WithTimeout(ctx, w.attemptTimeout)
	defer cancel()
	conn, err := w.pool.Acquire(ctx)
	if err != nil {
		return &stepError{at: atConnect, err: err}
	}
	defer conn.Release()
	if m.anyIsPoison {
		pgsession.Keep(conn.Conn())
		defer closeNow(conn.Conn())
	}
	if b.straight(m, recorder) {
		return w.goStraight(ctx, stop, conn.Conn(), b)
	}
	fail := func(at step, err error) error { return &stepError{at: at, closed: conn.Conn().IsClosed(), err: err} }

	tx, now, err := w.begin(ctx, conn.Conn())
	if err != nil {
		return fail(atBegin, err)
	}
	committing := false
	defer func() {
		if !committing {
			rollback(ctx, tx)
		}
	}()
	if m.immediate {
		if _, err := tx.Exec(ctx, immediateSQL); err != nil {
			return fail(atBegin, err)
		}
	}
	if len(b.timeless) > 0 {
		if err := lockIDs(ctx, tx, b); err != nil {
			return fail(atLock, err)
		}
		if err := lookUpIDs(ctx, tx, b, w.cfg.DedupeWindow); err != nil {
			return fail(atLookup, err)
		}
	}
	ask := b.remainingOf(b.suspects)
	if m.lookup {
		ask = b.remaining()
	}
	if len(ask) > 0 {
		if err := lookUpKeys(ctx, tx, b, ask); err != nil {
			return fail(atLookup, err)
		}
	}
	if positions := b.remaining(); len(positions) > 0 {
		if err := w.copy(ctx, tx, b, positions, m); err != nil {
			return fail(atCopy, err)
		}
	}
	if len(b.rejections) > 0 {
		if err := quarantine(ctx, tx, b); err != nil {
			return fail(atQuarantine, err)
		}
	}
	if recorder != nil {
		if err := recorder.Record(ctx, tx, b.stored()); err != nil {
			return fail(atRecord, err)
		}
	}
	if now.standbys && len(b.rejections) == 0 && len(b.remaining()) == 0 {
		// Whoever stored these may have had no standby.
		if _, err := tx.Exec(ctx, markSQL); err != nil {
			return fail(atConfirm, err)
		}
	}
	committing = true
	return w.commit(ctx, stop, conn.Conn(), now.xid)
}

// beginSQL makes the transaction what its promises need, whatever the role or the database sets: waits are bounded, and
// COMMIT returns after its WAL is on disk. Any stricter or looser wait for standbys is the operator's to choose.
const beginSQL = `
select set_config('statement_timeout', $1, true), set_config('lock_timeout', $2, true),
       set_config('idle_in_transaction_session_timeout', $1, true),
       set_config('synchronous_commit', coalesce(nullif(current_setting('synchronous_commit'), 'off'), 'on'), true),
       current_setting('synchronous_standby_names') <> '', pg_current_xact_id()::text`

// begun is what a transaction knows of itself.
type begun struct {
	xid      string
	standbys bool // COMMIT may wait for some
}

// isolation is what every statement is written for: look-ups after a lock see what was committed before it.
const isolation = pgx.ReadCommitted

// begin starts the transaction and learns its id, all in one round trip.
func (w *Writer) begin(ctx context.Context, conn *pgx.Conn) (tx pgx.Tx, now begun, err error) {
	var batch pgx.Batch
	batch.BeginTx(pgx.TxOptions{IsoLevel: isolation})
	bound, lock := milliseconds(w.attemptTimeout), milliseconds(w.attemptTimeout/lockShare)
	batch.Queue(beginSQL, bound, lock).QueryRow(func(row pgx.Row) error {
		return row.Scan(nil, nil, nil, nil, &now.standbys, &now.xid)
	})
	results := conn.SendBatch(ctx, &batch)
	if err := results.Close(); err != nil {
		rollback(ctx, results.Tx())
		return nil, begun{}, err
	}
	return results.Tx(), now, nil
}

// rollbackTimeout bounds a rollback after the attempt's own time has run out. A guess; a connection whose rollback
// fails is closed, which rolls back as well.
const rollbackTimeout = time.Second

func rollback(ctx context.Context, tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	_ = tx.Rollback(ctx) // after COMMIT it does nothing
}

const partitionSQL = `select create_events_partition($1)`

// makePartition reports whether the day had none.
func (w *Writer) makePartition(ctx context.Context, day int32) (missing bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, w.attemptTimeout)
	defer cancel()
	conn, err := w.pool.Acquire(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Release()
	tx, _, err := w.begin(ctx, conn.Conn())
	if err != nil {
		return false, err
	}
	defer rollback(ctx, tx)
	if err := tx.QueryRow(ctx, partitionSQL, startOf(day)).Scan(&missing); err != nil {
		return false, err
	}
	return missing, tx.Commit(ctx)
}

// makePartitions makes the partitions that the batch's days lack, each in a transaction of its own, so that its locks
// are short. A day that can't have one does not keep the others from theirs.
func (w *Writer) makePartitions(ctx context.Context, b *batch) (made int, failed error) {
	for _, day := range b.days {
		missing, err := w.makePartition(ctx, day)
		if err != nil {
			failed = &stepError{at: "make partition of " + step(startOf(day).Format(time.DateOnly)), err: err}
			if classify(failed) != causePermanent {
				break
			}
		}
		if missing {
			made++
		}
	}
	w.m.partitions.Add(float64(made))
	if made > 0 {
		first, last := startOf(b.days[0]), startOf(b.days[len(b.days)-1])
		w.log.Info("made partitions of events", "partitions", made,
			"first", first.Format(time.DateOnly), "last", last.Format(time.DateOnly))
	}
	return made, failed
}

func startOf(day int32) time.Time { return time.Unix(int64(day)*86400, 0).UTC() }
