// Package pgsession sets up the sessions that the program holds in pools, and decides which error ends one.
//
// What PostgreSQL does for a session depends on settings of the role and of the database, which somebody else may
// have chosen. What matters for a promise is set in the transaction that makes it; here is what belongs to the
// session. It is sent when the session begins, so it needs no statement that a transaction pooler would leak to
// others, and it is no more than what other drivers send, so poolers know it. Keepalives are a matter of the server and
// whoever is connected to it, so they are set on direct connections only.
package pgsession

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"sluice.example/sluice/pipeline"
)

// parameters of every session. client_encoding: COPY and texts are sent as UTF-8. DateStyle: dates in text are read as
// ISO. TimeZone: what SQL cuts into hours and days is cut in UTC.
var parameters = map[string]string{
	"client_encoding": "UTF8",
	"datestyle":       "ISO, MDY",
	"timezone":        "UTC",
}

// keepalivesSQL lets the server notice within 30 s that the client's machine is gone, or takes no data any more, so
// that the session ends and its locks are free: a first probe after 10 s of silence, and two more. By default that
// takes the server two hours. Through a pooler it does nothing: another process than ours holds the server's session.
const keepalivesSQL = `
select set_config(name, value, false) from (values ('tcp_keepalives_idle', '10'), ('tcp_keepalives_interval', '5'),
    ('tcp_keepalives_count', '3'), ('tcp_user_timeout', '25000')) bound (name, value)
where pg_backend_pid() = %d`

// keepalivesTimeout bounds the one statement that a new session runs. A guess.
const keepalivesTimeout = 10 * time.Second

func setKeepalives(ctx context.Context, conn *pgconn.PgConn) error {
	ctx, cancel := context.WithTimeout(ctx, keepalivesTimeout)
	defer cancel()
	return conn.Exec(ctx, fmt.Sprintf(keepalivesSQL, conn.PID())).Close()
}

// Configure sets the parameters, of which the address of the database may name others, sets keepalives, lets errors
// that a session would keep end it, and has it remember what Alone reports. Call it before anything connects with the
// configuration.
func Configure(cfg *pgx.ConnConfig) {
	given := map[string]bool{}
	for name := range cfg.RuntimeParams {
		given[strings.ToLower(name)] = true
	}
	for name, value := range parameters {
		if !given[name] {
			cfg.RuntimeParams[name] = value
		}
	}
	connected := cfg.AfterConnect
	cfg.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		if err := setKeepalives(ctx, conn); err != nil {
			return err
		}
		if connected != nil {
			return connected(ctx, conn)
		}
		return nil
	}
	before := cfg.OnPgError
	cfg.OnPgError = func(conn *pgconn.PgConn, err *pgconn.PgError) bool {
		if before != nil && !before(conn, err) {
			return false
		}
		return conn.CustomData()[keepKey] != nil || !kept(err.Code)
	}
	cfg.OnNotice = noting(cfg.OnNotice)
}

// ConfigurePool does what Configure does, and makes known what Register makes known, to all sessions of a pool.
func ConfigurePool(cfg *pgxpool.Config) {
	Configure(cfg.ConnConfig)
	before := cfg.AfterConnect
	cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		Register(conn)
		if before != nil {
			return before(ctx, conn)
		}
		return nil
	}
}

// Register tells pgx which type of PostgreSQL the program's own types are. Where a pooler wants
// default_query_exec_mode=exec or simple_protocol, nobody asks PostgreSQL for the types of parameters.
func Register(conn *pgx.Conn) {
	conn.TypeMap().RegisterDefaultPgType(pipeline.UUID{}, "uuid")
	conn.TypeMap().RegisterDefaultPgType([]pipeline.UUID{}, "_uuid")
	conn.TypeMap().RegisterDefaultPgType([]*pipeline.UUID{}, "_uuid")
}

// kept reports whether an error may be the session's own, so that the next statement on it fails as well, whatever has
// been repaired meanwhile: a session that began while its role or database was read-only, or with another search_path,
// or whose prepared statements are gone. A socket that answers pings shows none of that, so a pool hands such a session
// out again and again. Errors of these classes are rare in a healthy system, and a new session costs milliseconds.
func kept(sqlstate string) bool {
	switch sqlstate {
	case "25006", // read-only
		"25P02", // a transaction that failed was left open
		"0A000": // "cached plan must not change result type"
		return true
	}
	switch sqlstate[:min(2, len(sqlstate))] {
	case "26", // an unknown prepared statement
		"28", "0L", "0P", // the role is gone or is another
		"3D", "3F", // the database, the schema
		"42": // a table, a function or a privilege that is not there for this session
		return true
	}
	return false
}

// Keep lets a session outlive any error, for who looks for the row that raises it. Close the session afterwards.
func Keep(conn *pgx.Conn) { conn.PgConn().CustomData()[keepKey] = true }

const keepKey = "sluice: keep whatever it raises"

// ofPostgres are the classes of PostgreSQL's own errors that can be about anything: a privilege, a missing table, a
// setting, a fault of the server.
var ofPostgres = []string{
	"00", "01", "02", "03", "08", "09", "0A", "0B", "0F", "0L", "0P", "0Z", "24", "25", "26", "27", "28", "2B", "2D",
	"34", "3B", "3D", "3F", "40", "42", "53", "55", "57", "58", "72", "F0", "XX",
}

// AboutData reports whether an error can only be about the data of a statement: data, a constraint, a limit, or what
// somebody's trigger or function raises, with a code of its own as well.
func AboutData(sqlstate string) bool {
	return len(sqlstate) == 5 && !slices.Contains(ofPostgres, sqlstate[:2])
}

// enough is the shortest bound on statements and locks that lets everything but making counts anew run to its end. A
// guess, several times what a claim or a sweep takes on a busy database.
const enough = 10_000 // ms

const shortSQL = `
select name || ' is ' || setting || 'ms' from pg_settings
where name in ('statement_timeout', 'lock_timeout', 'transaction_timeout', 'idle_in_transaction_session_timeout')
    and setting::bigint between 1 and $1 - 1
order by name`

// Short returns the bounds that the role or the database sets and that are too short for claims and sweeps, in words.
// The transactions that store events bring bounds of their own.
func Short(ctx context.Context, pool *pgxpool.Pool) ([]string, error) {
	rows, err := pool.Query(ctx, shortSQL, enough)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}
