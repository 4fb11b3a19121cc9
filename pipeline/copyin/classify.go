package copyin

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"sluice.example/sluice/internal/pgsession"
)

// step is where in a transaction an error came up. The same SQLSTATE means different things at different steps.
type step string

const (
	atConnect    step = "connect"
	atBegin      step = "begin"
	atLock       step = "lock ids"
	atLookup     step = "look keys up"
	atCopy       step = "copy"
	atQuarantine step = "quarantine"
	atRecord     step = "record decisions"
	atCommit     step = "commit"
	atConfirm    step = "wait for standbys"
)

type stepError struct {
	at     step
	closed bool // the connection did not survive
	err    error
}

func (e *stepError) Error() string { return string(e.at) + ": " + e.err.Error() }
func (e *stepError) Unwrap() error { return e.err }

// inDoubt is a COMMIT that was sent, perhaps, and not answered.
type inDoubt struct {
	xid string
	err error
}

func (e *inDoubt) Error() string { return "commit in doubt: " + e.err.Error() }
func (e *inDoubt) Unwrap() error { return e.err }

// fault is an error that stays until somebody repairs its cause.
type fault struct{ err error }

func (e *fault) Error() string { return e.err.Error() }
func (e *fault) Unwrap() error { return e.err }

// cause is what to do about a failed transaction. From deadlock on it is retried as it is, after a pause.
type cause string

const (
	causeConflict      cause = "conflict"  // a key is stored already: look them up
	causePartition     cause = "partition" // a day has none: make it
	causePoison        cause = "poison"    // a row can't be stored: find it
	causePermanent     cause = "permanent" // a repeat does not help: give up
	causeDeadlock      cause = "deadlock"
	causeSerialization cause = "serialization"
	causeLock          cause = "lock"
	causeTimeout       cause = "timeout"
	causeConnection    cause = "connection"
	causeSession       cause = "session" // permanent, but the session that it may belong to has been closed
	causeDiskFull      cause = "disk-full"
	causeRecord        cause = "record" // two batches made the same decision at once: the repeat sees the other's
	// The COMMIT whose answer was lost had not taken place.
	causeInDoubt cause = "in-doubt"
	causeDropped cause = "dropped" // the batch is committed, and which rows are there is looked up
	// causeCommit: something deferred to COMMIT raised an error; the repeat runs it before.
	causeCommit cause = "commit"
)

// passes reports whether what the database raised usually passes by itself.
func (c cause) passes() bool {
	return c == causeDeadlock || c == causeSerialization || c == causeLock || c == causeTimeout
}

// retried are the causes that sluice_copyin_retries_total counts.
var retried = []cause{
	causeSession, causeDeadlock, causeSerialization, causeLock, causeTimeout, causeConnection, causeRecord, causeInDoubt,
	causeCommit, causeDropped,
}

// diskFull is PostgreSQL's error when it can't make a file longer.
const diskFull = "53100"

func classify(err error) cause {
	var at stepError
	if e, ok := errors.AsType[*stepError](err); ok {
		at = *e
	}
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		ended := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
		if at.at == atRecord && !at.closed && !ended {
			return causePermanent // the recorder's own
		}
		return causeConnection
	}
	switch pgErr.Code {
	case "40P01":
		return causeDeadlock
	case "40001":
		return causeSerialization
	case "55P03":
		return causeLock
	case "57014", "25P03", "25P04": // statement timeout, idle in transaction, transaction timeout
		return causeTimeout
	case diskFull:
		return causeDiskFull
	case "25006": // a standby, for as long as the switch-over takes
		return causeConnection
	case "23505":
		switch at.at {
		case atCopy:
			return causeConflict
		case atRecord:
			return causeRecord
		}
	case "23514":
		// PostgreSQL reports a missing partition as a check violation without a constraint.
		if at.at == atCopy && pgErr.ConstraintName == "" {
			return causePartition
		}
	}
	switch pgErr.Code[:min(2, len(pgErr.Code))] {
	case "08", "53", "57", "58": // connection, resources, operator intervention, operating system
		return causeConnection
	}
	if at.at == atCopy && pgsession.AboutData(pgErr.Code) {
		return causePoison
	}
	return causePermanent
}

// copyLine reads which row of a COPY an error is about, from 0. PostgreSQL names it only in the error's context, "COPY
// events, line 3, column properties", whose words depend on the server's language; the number does not. Where that
// fails, the row is searched for.
func copyLine(err error, rows int) (row int, column string, ok bool) {
	pgErr, is := errors.AsType[*pgconn.PgError](err)
	if !is {
		return 0, "", false
	}
	for line := range strings.Lines(pgErr.Where) {
		if !strings.Contains(line, "COPY") || !strings.Contains(line, "events") {
			continue
		}
		start := strings.IndexFunc(line, digit)
		if start < 0 {
			continue
		}
		n, end := 0, start
		for ; end < len(line) && digit(rune(line[end])) && n <= rows; end++ {
			n = n*10 + int(line[end]-'0')
		}
		if n < 1 || n > rows {
			continue
		}
		row, ok = n-1, true
		rest := strings.FieldsFunc(line[end:], func(r rune) bool { return r != '_' && (r < 'a' || r > 'z') })
		for _, word := range rest {
			if slices.Contains(columns, word) {
				column = word
			}
		}
	}
	return row, column, ok
}

func digit(r rune) bool { return r >= '0' && r <= '9' }

// rejectionOf returns the reason, for the client and for the operator.
func rejectionOf(err error, column string) rejection {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return rejection{reason: "rejected by the database"}
	}
	if pgErr.ColumnName != "" {
		column = pgErr.ColumnName
	}
	reason := pgErr.Message
	if len(reason) > maxReason {
		reason = strings.ToValidUTF8(reason[:maxReason], "")
	}
	return rejection{sqlstate: pgErr.Code, field: column, reason: reason}
}

const maxReason = 1000
