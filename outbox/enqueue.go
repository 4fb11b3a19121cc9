package outbox

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
)

// ErrInvalid: a message can never be enqueued as it is; the text names which one (counted from 0) and why: a field, or
// a topic or destination that is not configured.
var ErrInvalid = errors.New("invalid message")

// Everything comes as text and numbers, which every driver and every mode of pgx reads alike.
const enqueueSQL = `
select message_index, duplicate, coalesce(message_id, 0), coalesce(destination, ''), coalesce(idempotency_key::text, '')
from sluice_enqueue($1::jsonb)`

// Enqueue stores the messages in the caller's transaction, in one statement, and returns a receipt for each, in their
// order. After an error the transaction can only be rolled back.
//
// With synchronous standbys, the COMMIT of a transaction with duplicates waits for them as any other. A COMMIT that is
// cancelled while it waits commits on the primary alone, with the warning 01000: repeat the transaction then.
//
// Of two transactions that enqueue the same key the second waits for the first to end, and is a duplicate when that
// one commits. One call takes all its keys in a fixed order; a transaction that makes several calls has to keep to
// one order of keys everywhere, as with all rows, or may be ended by a deadlock.
func Enqueue(ctx context.Context, tx pgx.Tx, messages ...Message) ([]Receipt, error) {
	arg, err := encode(messages)
	if err != nil || len(messages) == 0 {
		return nil, err
	}
	rows, err := tx.Query(ctx, enqueueSQL, arg)
	if err != nil {
		return nil, failed(len(messages), err)
	}
	defer rows.Close()
	receipts, err := collect(rows, len(messages))
	if err == nil && repeats(receipts) {
		rows.Close()
		if _, err = tx.Exec(ctx, markSQL); err != nil {
			err = failed(len(messages), err)
		}
	}
	return receipts, err
}

// EnqueueSQL is Enqueue for callers of database/sql, with any driver for PostgreSQL.
func EnqueueSQL(ctx context.Context, tx *sql.Tx, messages ...Message) ([]Receipt, error) {
	arg, err := encode(messages)
	if err != nil || len(messages) == 0 {
		return nil, err
	}
	rows, err := tx.QueryContext(ctx, enqueueSQL, arg)
	if err != nil {
		return nil, failed(len(messages), err)
	}
	defer rows.Close()
	receipts, err := collect(rows, len(messages))
	if err == nil && repeats(receipts) {
		rows.Close()
		if _, err = tx.ExecContext(ctx, markSQL); err != nil {
			err = failed(len(messages), err)
		}
	}
	return receipts, err
}

// markSQL writes to the WAL where COMMIT may wait for synchronous standbys. COMMIT waits only for what wrote something,
// and a duplicate may be on the primary alone: whoever stored it may have been told so, and come again.
const markSQL = `
select pg_logical_emit_message(true, 'sluice', ''::text) where current_setting('synchronous_standby_names') <> ''`

func repeats(receipts []Receipt) bool {
	return slices.ContainsFunc(receipts, func(r Receipt) bool { return r.Duplicate })
}

// encode returns a string, since the simple protocol would send bytes as bytea. It rejects only what the SQL function
// would not get to see.
func encode(messages []Message) (string, error) {
	encoded := make([]json.RawMessage, len(messages))
	var faults []error
	for i, m := range messages {
		texts := []string{m.Tenant, m.TenantRef, m.EventType, m.AggregateType, m.AggregateID, m.IdempotencyKey,
			string(m.Payload)}
		for _, s := range slices.AppendSeq(texts, maps.Values(m.Headers)) {
			if !utf8.ValidString(s) { // would be replaced, and two keys become one
				faults = append(faults, fmt.Errorf("outbox: %w: message %d: %.40q is not UTF-8", ErrInvalid, i, s))
			}
		}
		var err error
		if encoded[i], err = json.Marshal(m); err != nil {
			faults = append(faults, fmt.Errorf("outbox: %w: message %d: %w", ErrInvalid, i, err))
		} else if !storable(encoded[i]) {
			faults = append(faults, fmt.Errorf("outbox: %w: message %d: holds a NUL or half a surrogate pair, "+
				"which PostgreSQL cannot store", ErrInvalid, i))
		}
	}
	if err := errors.Join(faults...); err != nil {
		return "", err
	}
	text, err := json.Marshal(encoded)
	return string(text), err
}

// storable reports whether jsonb takes the escapes in a valid JSON text. PostgreSQL's own error would not name which
// message it was.
func storable(text []byte) bool {
	for {
		i := bytes.IndexByte(text, '\\')
		if i < 0 {
			return true
		}
		text = text[i:]
		r, ok := escape(text)
		switch {
		case !ok:
			text = text[2:]
			continue
		case r == 0 || utf16.IsSurrogate(r):
			low, ok := escape(text[6:])
			if r == 0 || !ok || utf16.DecodeRune(r, low) == utf8.RuneError {
				return false
			}
			text = text[6:]
		}
		text = text[6:]
	}
}

// escape reads \uXXXX at the beginning of text.
func escape(text []byte) (rune, bool) {
	if len(text) < 6 || text[0] != '\\' || text[1] != 'u' {
		return 0, false
	}
	r, err := strconv.ParseUint(string(text[2:6]), 16, 16)
	return rune(r), err == nil
}

// cursor is what pgx.Rows and sql.Rows have in common.
type cursor interface {
	Next() bool
	Scan(dest ...any) error
	Err() error
}

func collect(rows cursor, n int) ([]Receipt, error) {
	receipts := make([]Receipt, n)
	for rows.Next() {
		var (
			i         int
			duplicate bool
			d         Delivery
		)
		if err := rows.Scan(&i, &duplicate, &d.MessageID, &d.Destination, &d.IdempotencyKey); err != nil {
			return nil, failed(n, err)
		}
		if duplicate {
			receipts[i].Duplicate = true
			continue
		}
		receipts[i].Deliveries = append(receipts[i].Deliveries, d)
	}
	if err := rows.Err(); err != nil {
		return nil, failed(n, err)
	}
	return receipts, nil
}

// failed marks what PostgreSQL calls a data exception (class 22), among them those that sluice_enqueue raises. Both
// pgx and lib/pq have the method.
func failed(n int, err error) error {
	var state interface{ SQLState() string }
	if errors.As(err, &state) && strings.HasPrefix(state.SQLState(), "22") {
		return fmt.Errorf("outbox: enqueue %d messages: %w: %w", n, ErrInvalid, err)
	}
	return fmt.Errorf("outbox: enqueue %d messages: %w", n, err)
}
