package copyin

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/internal/pgcopy"
	"sluice.example/sluice/pipeline"
)

// isolateSQL is one round trip for a COPY that may fail without ending the transaction.
const isolateSQL = "savepoint isolate; " + copySQL + "; release savepoint isolate"

const undoSQL = `rollback to savepoint isolate`

// immediateSQL has constraints and triggers that are deferred to COMMIT run with their statement, where it shows which
// row they are about.
const immediateSQL = `set constraints all immediate`

// search is one transaction's search for the rows that can't be stored.
//
// Which error is about a row, and which about everything? Some codes tell. Any other counts as a row's while other rows
// are stored: in this transaction, or in a trial with a row like one that was stored lately.
type search struct {
	w       *Writer
	tx      pgx.Tx
	b       *batch
	m       mode
	copied  bool // some row was
	control int  // what became of the trial: 0 not made, 1 stored, -1 not
	open    []alone
}

// alone is a row that is alone with its error so far.
type alone struct {
	position int32
	of       rejection
}

const (
	// maxUndecided rows in a row without one that is stored mean that none can be. A guess.
	maxUndecided = 8
	// rowTries is how often a row alone raises what usually passes before it counts as the row's own. A guess.
	rowTries = 3
	// batchTries is how often a batch raises that at once, before its rows are tried apart. A guess: 10 to 160 ms of
	// pauses.
	batchTries = 5
)

// copyIsolating copies what can be stored and finds what can't, all in one transaction, so that nothing good is stored
// twice or waits for another round. The rows stay in their order.
func (w *Writer) copyIsolating(ctx context.Context, tx pgx.Tx, b *batch, positions []int32, m mode) error {
	in := &search{w: w, tx: tx, b: b, m: m}
	if err := in.copy(ctx, positions); err != nil {
		return err
	}
	if len(in.open) > 0 && !in.copied {
		return &fault{fmt.Errorf("no row can be stored: %s (SQLSTATE %s)", in.open[0].of.reason, in.open[0].of.sqlstate)}
	}
	for _, u := range in.open {
		b.reject(u.position, u.of)
	}
	return nil
}

// copy: where the error names a row, that row is rejected and the rest goes on: two COPYs for each bad row, of which
// the failing one ends at that row. Where it names none, halves are tried: at most 2·log2(n)+1 COPYs for one bad row
// among n.
func (in *search) copy(ctx context.Context, positions []int32) error {
	for tries := 1; len(positions) > 0; {
		start := time.Now()
		_, err := copyRows(ctx, in.tx, in.b, positions, isolateSQL)
		if err == nil {
			in.copied = true
			return nil
		}
		c := classify(&stepError{at: atCopy, err: err})
		quick := in.w.quick(start)
		if !in.aboutRows(c, quick) {
			return err
		}
		in.w.m.isolations.Inc()
		if _, err := in.tx.Exec(ctx, undoSQL); err != nil {
			return err
		}
		row, column, named := copyLine(err, len(positions))
		switch {
		case c.passes() && len(positions) == 1 && tries < rowTries:
			tries++
			rest := firstPause
			if err := pause(ctx, &rest); err != nil {
				return err
			}
		case (named && !c.passes()) || len(positions) == 1:
			if err := in.copy(ctx, positions[:row]); err != nil {
				return err
			}
			if err := in.reject(ctx, positions[row], c, rejectionOf(err, column)); err != nil {
				return err
			}
			positions, tries = positions[row+1:], 1
		default:
			half := len(positions) / 2
			if err := in.copy(ctx, positions[:half]); err != nil {
				return err
			}
			positions = positions[half:]
		}
	}
	return nil
}

func (in *search) aboutRows(c cause, quick bool) bool {
	switch c {
	case causePoison:
		return true
	case causeConflict:
		return in.m.conflictIsPoison
	case causePartition:
		return in.m.partitionIsPoison
	case causePermanent, causeConnection:
		return in.m.anyIsPoison && !in.tx.Conn().IsClosed()
	}
	return in.m.passingIsPoison && c.passes() && quick
}

// reject decides about a row that failed alone.
func (in *search) reject(ctx context.Context, position int32, c cause, of rejection) error {
	if c.passes() {
		of.reason = "raises " + of.sqlstate + " each time: " + of.reason
	}
	if c != causePermanent && c != causeConnection || in.copied {
		in.b.reject(position, of)
		return nil
	}
	if in.control == 0 {
		in.control = -1
		stored, err := in.tryControl(ctx)
		if err != nil {
			return err
		}
		if stored {
			in.control, in.copied = 1, true
		}
	}
	if in.copied {
		in.b.reject(position, of)
		return nil
	}
	if in.open = append(in.open, alone{position, of}); len(in.open) > maxUndecided {
		return &fault{fmt.Errorf("no row can be stored: %s (SQLSTATE %s)", of.reason, of.sqlstate)}
	}
	return nil
}

// tryControl stores a row like one that was stored lately, with a key of its own, and takes it back.
func (in *search) tryControl(ctx context.Context) (bool, error) {
	row := in.w.control.take()
	if row == nil {
		return false, nil
	}
	r := &rowReader{parts: [][]byte{[]byte(pgcopy.Header), row, []byte(pgcopy.Trailer)}}
	conn := in.tx.Conn()
	_, err := conn.PgConn().CopyFrom(ctx, r, "savepoint isolate; "+copySQL)
	if conn.IsClosed() {
		return false, err
	}
	_, undo := in.tx.Exec(ctx, undoSQL)
	return err == nil, undo
}

// control is a row that was stored lately, as it was encoded.
type control struct {
	row atomic.Pointer[[]byte]
	at  atomic.Int64 // unix nanoseconds
}

const (
	maxControl   = 4 << 10     // bytes; events are mostly smaller
	controlEvery = time.Minute // a guess: a copy of a few hundred bytes
)

// keep remembers a row of a batch that was stored, now and then.
func (c *control) keep(b *batch) {
	now := time.Now().UnixNano()
	if at := c.at.Load(); now-at < int64(controlEvery) || !c.at.CompareAndSwap(at, now) {
		return
	}
	for p, s := range b.state {
		if row := (*b.encoded)[b.offsets[p]:b.offsets[p+1]]; s == fresh && len(row) <= maxControl {
			row = append([]byte(nil), row...)
			c.row.Store(&row)
			return
		}
	}
}

// take returns a copy with an id that no event has, nil where nothing was kept.
func (c *control) take() []byte {
	kept := c.row.Load()
	if kept == nil {
		return nil
	}
	row := append([]byte(nil), *kept...)
	id := pipeline.NewUUIDv4()
	copy(row[idAt:], id[:])
	return row
}

// idAt is where event_id, the first column, begins in an encoded row: after the number of columns and its own length.
const idAt = 2 + 4

// quick reports whether an error that came after start was raised, and not the end of a wait for a lock or for time.
func (w *Writer) quick(start time.Time) bool { return time.Since(start) < w.attemptTimeout/8 }
