package copyin

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"sluice.example/sluice/internal/pgtx"
)

// nextPartitionSQL is about the day of an hour from now: whether it has a partition, or else whether this role can make
// one, which only the owner of events can, or a function that runs as the owner.
const nextPartitionSQL = `
select 'events_' || to_char((now() + interval '1 hour') at time zone 'UTC', 'YYYYMMDD') as day, current_user,
    to_regclass('events_' || to_char((now() + interval '1 hour') at time zone 'UTC', 'YYYYMMDD')) is not null as made,
    pg_has_role(e.relowner, 'usage')
        or (select prosecdef from pg_proc where oid = to_regprocedure('create_events_partition(date)')) as can_make
from pg_class e where e.oid = 'events'::regclass`

// checkBounds are above the time that readiness takes for all its checks.
var checkBounds = pgtx.Bounds{Idle: pgtx.Idle, Statement: pgtx.Idle, Lock: pgtx.Idle}

// Check reports why this role cannot store events now, by doing what a batch does, with no rows and without COMMIT. It
// is for readiness: cheap, and on a session of its own each time, so that it sees what has been repaired.
func Check(ctx context.Context, pool *pgxpool.Pool) error {
	err := pgtx.InTx(ctx, pool, pgx.TxOptions{IsoLevel: isolation}, checkBounds, func(tx pgx.Tx) error {
		if _, err := tx.Conn().PgConn().CopyFrom(ctx, (&batch{}).rows(nil), copySQL); err != nil {
			return err
		}
		var day, role string
		var made, canMake bool
		if err := tx.QueryRow(ctx, nextPartitionSQL).Scan(&day, &role, &made, &canMake); err != nil {
			return err
		}
		if !made && !canMake {
			return fmt.Errorf("the partition %s of events is missing, and the role %s, which does not own events, "+
				"cannot make it: run a process with the role retain as the owner of events", day, role)
		}
		return errChecked
	})
	if errors.Is(err, errChecked) {
		return nil
	}
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		return fmt.Errorf("events cannot be stored: %s (SQLSTATE %s)%s", pgErr.Message, pgErr.Code, remedy(pgErr.Code))
	}
	return fmt.Errorf("events cannot be stored: %w", err)
}

// errChecked rolls the transaction of Check back.
var errChecked = errors.New("checked")

// remedy is what an operator can do about an error that repeating does not cure.
func remedy(sqlstate string) string {
	switch {
	case sqlstate == "25006":
		return "; the database, or its setting default_transaction_read_only, is read-only"
	case sqlstate == "42501":
		return "; grant the role what it lacks, or let it own the tables"
	case sqlstate == "0A000":
		return "; if row security is on for events, let the role bypass it (alter role ... bypassrls)"
	case strings.HasPrefix(sqlstate, "42P01"), strings.HasPrefix(sqlstate, "3F"):
		return "; the tables are in another schema than the role's search_path names"
	}
	return ""
}
