package copyin

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// link is a connection that is used past pgconn, which is safe for the reasons at goStraight. It is for one COMMIT, and
// for what a batch that goes straight sends before.
//
// Up to COMMIT the attempt bounds it. A COMMIT is never cancelled: PostgreSQL answers the cancel of one that waits for
// a synchronous standby by a local commit and a warning. It may take as long as a standby is away, and only the
// connection's health is watched meanwhile.
type link struct {
	replies
	w          *Writer
	pgx        *pgx.Conn
	wire       net.Conn
	committing atomic.Bool
	over       chan struct{} // closed by release
	unwatch    func() bool
}

// hold makes a link of a connection. ctx bounds everything up to COMMIT, and stop a COMMIT.
func (w *Writer) hold(ctx, stop context.Context, conn *pgx.Conn) (*link, error) {
	if err := conn.PgConn().SyncConn(ctx); err != nil {
		closeNow(conn)
		return nil, err
	}
	l := &link{
		replies: replies{conn: conn.PgConn()}, w: w, pgx: conn, wire: conn.PgConn().Conn(), over: make(chan struct{}),
	}
	// One deadline on the connection for all; to watch ctx for every message would cost more than the message.
	l.unwatch = context.AfterFunc(ctx, func() {
		if l.committing.Load() {
			w.watchCommit(stop, l)
		}
		_ = l.wire.SetDeadline(time.Unix(1, 0))
	})
	return l, nil
}

// release gives an idle connection back to pgconn, and closes any other.
func (l *link) release(idle bool) {
	close(l.over)
	if !l.unwatch() || !idle {
		closeNow(l.pgx)
	}
}

// sendCommit sends COMMIT. From here on the outcome is PostgreSQL's alone.
func (l *link) sendCommit() error {
	l.committing.Store(true)
	_, err := l.wire.Write(commitQuery)
	return err
}

// outcome is what COMMIT's answer, or the error in place of one, means. Nil is committed, on the standbys as well that
// PostgreSQL waits for.
func (l *link) outcome(err error) error {
	said, _ := errors.AsType[*pgconn.PgError](err)
	switch {
	case said != nil && said.SeverityUnlocalized == "ERROR": // one after which no session is kept
		return &stepError{at: atCommit, closed: true, err: err}
	case err != nil:
		return &inDoubt{xid: l.xid, err: err}
	case l.failed != nil:
		return &stepError{at: atCommit, err: l.failed}
	case l.tag != "COMMIT":
		return &stepError{at: atCommit, err: pgx.ErrTxCommitRollback}
	case l.alone:
		return &inDoubt{xid: l.xid, err: errAlone}
	}
	return nil
}

// commit ends the transaction that is open on a connection. The connection is idle afterwards, or closed.
func (w *Writer) commit(ctx, stop context.Context, conn *pgx.Conn, xid string) error {
	l, err := w.hold(ctx, stop, conn)
	if err != nil {
		return &stepError{at: atCommit, closed: true, err: err}
	}
	l.xid = xid
	start := time.Now()
	if err = l.sendCommit(); err == nil {
		_, err = l.read()
	}
	w.committed(time.Since(start))
	l.release(err == nil)
	return l.outcome(err)
}

func (w *Writer) committed(took time.Duration) {
	w.m.commitSeconds.Observe(took.Seconds())
	w.committing.Add(int64(took))
}

// errAlone: nobody knows whether a standby has what was committed.
var errAlone = errors.New("PostgreSQL gave up waiting for a synchronous standby: committed on the primary alone")

// commitGrace is how long the answer to a COMMIT may be on its way once PostgreSQL knows its end. A guess.
const commitGrace = 2 * time.Second

// watchCommit returns when a COMMIT's connection is of no use any more: PostgreSQL knows how the transaction ended, and
// no answer has come, or stop has ended. It asks over a connection of its own, since those of the pool may all wait.
func (w *Writer) watchCommit(stop context.Context, l *link) {
	begin := time.Now()
	w.waiting.Add(1)
	w.m.waitingCommits.Inc()
	w.log.Warn("a COMMIT takes long, as it does while a synchronous standby is away; its events are not acknowledged")
	defer func() {
		w.waiting.Add(-1)
		w.m.waitingCommits.Dec()
		w.log.Info("a COMMIT took long, and waits no more", "seconds", int(time.Since(begin).Seconds()))
	}()
	ctx, cancel := context.WithCancel(stop)
	defer cancel()
	go func() {
		select {
		case <-l.over:
			cancel()
		case <-ctx.Done():
		}
	}()
	for rest := firstPause; pause(ctx, &rest) == nil; {
		ended, err := w.hasEnded(ctx, l.xid)
		if err != nil || !ended {
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(commitGrace):
		}
		return
	}
}

// hasEnded asks over a new connection whether a transaction has ended.
func (w *Writer) hasEnded(ctx context.Context, xid string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, w.attemptTimeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, w.pool.Config().ConnConfig)
	if err != nil {
		return false, err
	}
	defer closeNow(conn)
	status, err := xactStatus(ctx, conn, xid)
	return status != inProgress, err
}

// replies reads what PostgreSQL answers.
type replies struct {
	conn   *pgconn.PgConn
	xid    string
	tag    string // of the last statement that succeeded
	failed error  // the first error that PostgreSQL reported
	alone  bool   // committed, perhaps without the standbys that it should have waited for
}

// read reads on to where COPY wants its rows, or to the end of a query. The error is one of the connection.
func (r *replies) read() (copying bool, err error) {
	for {
		message, err := r.conn.ReceiveMessage(context.Background())
		if err != nil {
			return false, err
		}
		switch message := message.(type) {
		case *pgproto3.DataRow:
			r.xid = string(message.Values[len(message.Values)-1])
		case *pgproto3.CommandComplete:
			r.tag = string(message.CommandTag)
		case *pgproto3.ErrorResponse:
			if r.failed == nil {
				r.failed = pgconn.ErrorResponseToPgError(message)
			}
		case *pgproto3.NoticeResponse:
			r.alone = r.alone || gaveUpWaiting(message)
		case *pgproto3.CopyInResponse:
			return true, nil
		case *pgproto3.ReadyForQuery:
			return false, nil
		}
	}
}

// gaveUpWaiting recognizes the warning that COMMIT did not wait for a standby to the end. Its code is that of any
// warning, its words depend on the server's language. What PL/pgSQL raises has the same code and is none; another that
// is taken for it costs a second look.
func gaveUpWaiting(n *pgproto3.NoticeResponse) bool {
	return (n.Code == "01000" || n.Code == "57P01") && n.Routine != "exec_stmt_raise"
}

// closeNow closes a connection that may hang, without a word to PostgreSQL; its own timeouts end the transaction.
func closeNow(conn *pgx.Conn) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = conn.Close(ctx)
}
