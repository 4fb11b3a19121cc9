package pgsession

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// aloneKey is where a session remembers that PostgreSQL gave up waiting for a standby.
const aloneKey = "sluice: committed on the primary alone"

func noting(before pgconn.NoticeHandler) pgconn.NoticeHandler {
	return func(conn *pgconn.PgConn, n *pgconn.Notice) {
		// The code is that of any warning, and the words depend on the server's language. What PL/pgSQL raises is
		// none of it.
		if (n.Code == "01000" || n.Code == "57P01") && n.Routine != "exec_stmt_raise" {
			conn.CustomData()[aloneKey] = true
		}
		if before != nil {
			before(conn, n)
		}
	}
}

// Alone reports whether PostgreSQL may have given up waiting for a synchronous standby since the last call: what was
// committed may be on the primary alone. It knows for sessions of a configuration that went through Configure.
func Alone(conn *pgx.Conn) bool {
	data := conn.PgConn().CustomData()
	alone := data[aloneKey] != nil
	delete(data, aloneKey)
	return alone
}

const waitsSQL = `select coalesce((select wait_event = 'SyncRep' from pg_stat_activity where pid = $1), false)`

// lookEvery is how often Patient looks what a session waits for. A guess.
const lookEvery = time.Second

// Patient returns a context for one statement on a session. It ends after bound, but not while the session waits for a
// synchronous standby to have what was committed: to cancel that would commit on the primary alone. It asks over a
// connection of its own. Behind a pooler it cannot see that, and Alone reports what came of it. Call the returned
// function when the statement has ended.
func Patient(ctx context.Context, conn *pgx.Conn, bound time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	cfg, pid := conn.Config(), conn.PgConn().PID()
	var look func()
	timer := time.AfterFunc(bound, func() { look() })
	look = func() {
		if ctx.Err() == nil && waits(ctx, cfg, pid, bound) {
			timer.Reset(lookEvery)
			return
		}
		cancel()
	}
	return ctx, func() { timer.Stop(); cancel() }
}

func waits(ctx context.Context, cfg *pgx.ConnConfig, pid uint32, bound time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return false
	}
	defer conn.Close(ctx)
	var waiting bool
	return conn.QueryRow(ctx, waitsSQL, int32(pid)).Scan(&waiting) == nil && waiting
}
