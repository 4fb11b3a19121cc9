package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// errAlone: nobody knows whether a standby has what was committed.
var errAlone = errors.New("PostgreSQL gave up waiting for a synchronous standby: committed on the primary alone")

// open reports whether the transaction can still be ended.
func open(tx pgx.Tx) bool { return !tx.Conn().IsClosed() && tx.Conn().PgConn().TxStatus() != 'I' }

// commit ends the transaction. The wait for a synchronous standby may be cancelled, by ctx or by somebody else;
// PostgreSQL then commits on the primary alone, with a warning that tx.Commit would not show.
func commit(ctx context.Context, tx pgx.Tx) error {
	conn := tx.Conn().PgConn()
	if err := conn.SyncConn(ctx); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	conn.Frontend().Send(&pgproto3.Query{String: "commit"})
	err := conn.Frontend().Flush()
	alone, committed := false, false
	var refused error
	for ended := false; err == nil && !ended; {
		var message pgproto3.BackendMessage
		if message, err = conn.ReceiveMessage(ctx); err != nil {
			break
		}
		switch m := message.(type) {
		case *pgproto3.NoticeResponse:
			// What PL/pgSQL raises has the same code.
			alone = alone || (m.Code == "01000" || m.Code == "57P01") && m.Routine != "exec_stmt_raise"
		case *pgproto3.ErrorResponse:
			refused = pgconn.ErrorResponseToPgError(m)
		case *pgproto3.CommandComplete:
			committed = string(m.CommandTag) == "COMMIT"
		case *pgproto3.ReadyForQuery:
			ended = true
		}
	}
	switch {
	case err != nil:
		giveUp(ctx, tx.Conn())
		return fmt.Errorf("commit: %w", errors.Join(refused, err))
	case refused != nil:
		return fmt.Errorf("commit: %w", refused)
	case !committed:
		return fmt.Errorf("commit: %w", pgx.ErrTxCommitRollback)
	case alone:
		return fmt.Errorf("commit: %w", errAlone)
	}
	return nil
}

// cancelTimeout bounds the way to the server to say that nobody waits any more. A guess.
const cancelTimeout = time.Second

// giveUp leaves no session behind that waits for a standby. What it then commits on the primary alone counts once a
// later COMMIT has waited, see confirm.
func giveUp(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout)
	if !conn.IsClosed() {
		_ = conn.PgConn().CancelRequest(ctx)
	}
	cancel()
	_ = conn.Close(ctx) // the answer is unread
}

// markSQL writes to the WAL where COMMIT may wait for standbys. Since they take the WAL in its order, they then have
// everything that was committed before.
const markSQL = `
select count(pg_logical_emit_message(true, 'sluice', ''::text)) from (select) as one
where current_setting('synchronous_standby_names') <> ''`

// confirm reports a duplicate once the standbys have what makes it one.
func confirm(ctx context.Context, tx pgx.Tx) (duplicate bool, err error) {
	var marks int
	if err := tx.QueryRow(ctx, markSQL).Scan(&marks); err != nil {
		return false, fmt.Errorf("confirm: %w", err)
	}
	if marks == 0 {
		return true, nil
	}
	if err := commit(ctx, tx); err != nil {
		return false, fmt.Errorf("processed before, and not known to be on the standbys: %w", err)
	}
	return true, nil
}
