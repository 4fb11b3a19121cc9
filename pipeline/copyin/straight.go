package copyin

import (
	"cmp"
	"context"
	"encoding/binary"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"sluice.example/sluice/internal/pgcopy"
)

// straightBytes is up to how many encoded bytes a batch goes straight. A guess: beyond some hundred events round trips
// are a small share of the time, and PostgreSQL's notices about so few rows fit into a socket that nobody reads
// meanwhile.
const straightBytes = 256 << 10

// straight reports that nothing can come between BEGIN and COMMIT but the rows: no lock, no look-up, no decision.
func (b *batch) straight(m mode, recorder Recorder) bool {
	return recorder == nil && m == mode{} && len(b.timeless) == 0 && len(b.suspects) == 0 && len(b.rejections) == 0 &&
		len(*b.encoded) <= straightBytes
}

// straightHead is what a batch that goes straight begins with: the transaction with its bounds and its id, COPY, and
// the head of the one message with all rows, whose length follows its first byte.
func straightHead(timeout time.Duration) []byte {
	begin := "begin isolation level " + string(isolation)
	bounds := strings.ReplaceAll(beginSQL, "$1", "'"+milliseconds(timeout)+"'")
	bounds = strings.ReplaceAll(bounds, "$2", "'"+milliseconds(timeout/lockShare)+"'")
	return append(query(begin+";"+bounds+";"+copySQL), 'd')
}

// straightTail ends the rows: the trailer, and CopyDone.
const straightTail = pgcopy.Trailer + "c\x00\x00\x00\x04"

var commitQuery, rollbackQuery = query("commit"), query("rollback")

func query(sql string) []byte {
	message, _ := (&pgproto3.Query{String: sql}).Encode(nil) // fails from 1 GiB on
	return message
}

// goStraight is the transaction of a batch that goes straight. PostgreSQL never waits for this process: everything up
// to the last row is sent at once, and COMMIT as soon as the transaction's id is known. PostgreSQL sends that before it
// reads rows; where COPY then fails, the COMMIT rolls back. In a busy process each of three round trips would wait for
// a goroutine's turn among hundreds, several times as long as PostgreSQL works on the batch.
//
// pgconn has no way to send a statement and the rows that it will ask for together, so goStraight writes to the
// connection under it. That is safe for these reasons; TestStraightIsReviewedForThisPgx fails until they are read again
// with a new version:
//   - The pool has handed the connection out, so nobody else uses it, and every call of pgconn before has flushed
//     what it wrote.
//   - SyncConn, which pgconn wants before any direct use, has ended its background reader and left nothing unread.
//   - Only the writes go past pgconn. Every answer is read by ReceiveMessage, so that pgconn keeps its parameters,
//     its notices and the transaction's state.
//   - pgconn counts the connection as idle meanwhile. It goes back to the pool only after PostgreSQL's last
//     ReadyForQuery; otherwise it is closed.
func (w *Writer) goStraight(ctx, stop context.Context, conn *pgx.Conn, b *batch) error {
	l, err := w.hold(ctx, stop, conn)
	if err != nil {
		return &stepError{at: atBegin, closed: true, err: err}
	}
	idle := false
	defer func() { l.release(idle) }()
	fail := func(at step, err error) error { return &stepError{at: at, closed: !idle, err: err} }

	rows := len(pgcopy.Header) + len(*b.encoded) + len(pgcopy.Trailer)
	head := binary.BigEndian.AppendUint32(slices.Clip(w.straightHead), uint32(4+rows))
	head = append(head, pgcopy.Header...)
	if _, err := (&net.Buffers{head, *b.encoded, []byte(straightTail)}).WriteTo(l.wire); err != nil {
		return fail(atBegin, err)
	}
	copying, err := l.read()
	if !copying { // PostgreSQL ignores rows that come after a failure
		if err == nil {
			_, err = l.wire.Write(rollbackQuery)
		}
		if err == nil {
			_, err = l.read()
		}
		idle = err == nil
		at := atCopy
		if l.xid == "" {
			at = atBegin
		}
		return fail(at, cmp.Or(l.failed, err))
	}
	if err = l.sendCommit(); err == nil {
		_, err = l.read()
	}
	committing, copied, tag := time.Now(), l.failed == nil, pgconn.NewCommandTag(l.tag)
	if err == nil {
		_, err = l.read()
	}
	w.committed(time.Since(committing))
	idle = err == nil
	if !copied {
		return fail(atCopy, l.failed)
	}
	if err := l.outcome(err); err != nil || tag.RowsAffected() >= int64(len(b.order)) {
		return err
	}
	return errDropped
}
