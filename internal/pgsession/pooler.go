package pgsession

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Connect makes one connection. Where that leads to a pooler, cfg is changed as WithoutPrepared does, and the
// connection is as the changed cfg says.
func Connect(ctx context.Context, cfg *pgx.ConnConfig) (conn *pgx.Conn, pooled bool, err error) {
	if conn, err = pgx.ConnectConfig(ctx, cfg); err != nil {
		return nil, false, err
	}
	if pooled, err = behindPooler(ctx, conn); err == nil && pooled && WithoutPrepared(cfg) {
		_ = conn.Close(ctx)
		conn, err = pgx.ConnectConfig(ctx, cfg)
		return conn, pooled, err
	}
	if err != nil {
		_ = conn.Close(ctx)
		return nil, false, err
	}
	return conn, pooled, nil
}

// behindPooler reports whether another process than PostgreSQL's has answered: the one that was named at the start of
// the session is not the one that runs statements.
func behindPooler(ctx context.Context, conn *pgx.Conn) (bool, error) {
	results, err := conn.PgConn().Exec(ctx, `select pg_backend_pid()`).ReadAll()
	if err != nil {
		return false, err
	}
	return string(results[0].Rows[0][0]) != fmt.Sprint(conn.PgConn().PID()), nil
}

// WithoutPrepared puts a mode that sends each statement as a whole in place of those that prepare one now and execute
// it later, when a pooler may have moved the connection to another session. It reports whether that was needed.
func WithoutPrepared(cfg *pgx.ConnConfig) bool {
	switch cfg.DefaultQueryExecMode {
	case pgx.QueryExecModeCacheStatement, pgx.QueryExecModeDescribeExec:
		cfg.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
		return true
	}
	return false
}
