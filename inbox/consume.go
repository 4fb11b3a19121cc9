package inbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Schema makes the table that ConsumeOnce needs, where it is missing. It belongs into the receiver's own migrations.
// Rows older than the longest time after which a sender may still repeat a message can be deleted at any time.
const Schema = `
create table if not exists processed_messages (
    consumer     text        not null,
    message_id   text        not null,
    processed_at timestamptz not null default now(),
    primary key (consumer, message_id)
);
create index if not exists processed_messages_processed_at on processed_messages (processed_at);
`

// maxKey bounds a consumer's name and a message id, in bytes, so that both together fit into an index entry.
const maxKey = 512

// doubtTimeout bounds the look at what became of a commit whose answer was lost. A guess: long enough for a failover
// to end, short enough for the sender to wait.
const doubtTimeout = 15 * time.Second

// ON CONFLICT waits for a transaction that has inserted the same key and not ended yet: then it is a duplicate, or,
// when that one rolled back, ours to do.
const takeSQL = `insert into processed_messages (consumer, message_id) values ($1, $2) on conflict do nothing`

// ConsumeOnce runs work in a transaction that also records the message as processed by this consumer: both are
// committed, or neither is. A message that was processed before is reported as a duplicate, and work is not called.
// Of two calls for one message at the same moment the second waits for the first to end.
//
// An error means that the message is not known to be processed, and that calling again is right and harmless; work's
// own error is wrapped. Where the answer to COMMIT is lost, ConsumeOnce asks the database what became of it. With
// synchronous standbys, processed means that they have it as well, which holds for duplicates alike: while they are
// away ConsumeOnce waits until ctx ends, and fails.
//
// What work does through tx is done once. It must not end tx, and what it does by other ways (another connection, an
// HTTP call) may happen again when the transaction fails afterwards. The consumer's name tells apart those who work
// on the same messages in one database.
func ConsumeOnce(
	ctx context.Context, pool *pgxpool.Pool, consumer, messageID string, work func(tx pgx.Tx) error,
) (duplicate bool, err error) {
	if err := errors.Join(checkKey("consumer", consumer), checkKey("message id", messageID)); err != nil {
		return false, err
	}
	inDoubt := false
	duplicate, err = consume(ctx, pool, consumer, messageID, work, &inDoubt)
	if err != nil && inDoubt {
		done, lookErr := processed(ctx, pool, consumer, messageID)
		if done {
			return false, nil
		}
		err = errors.Join(err, lookErr)
	}
	if err != nil {
		return false, fmt.Errorf("inbox: consume message %q as %q: %w", messageID, consumer, err)
	}
	return duplicate, nil
}

func checkKey(what, key string) error {
	if key == "" || len(key) > maxKey || !utf8.ValidString(key) || strings.ContainsRune(key, 0) {
		return fmt.Errorf("inbox: the %s has to be 1 to %d bytes of UTF-8 without NUL, not %d bytes", what, maxKey, len(key))
	}
	return nil
}

// consume sets inDoubt while the outcome of COMMIT is unknown.
func consume(
	ctx context.Context, pool *pgxpool.Pool, consumer, messageID string, work func(tx pgx.Tx) error, inDoubt *bool,
) (duplicate bool, err error) {
	// Read committed, whatever the database's default: a stricter level turns the wait for another into an error.
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return false, fmt.Errorf("connect: %w", err)
	}
	defer conn.Release()
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return false, fmt.Errorf("begin: %w", err)
	}
	defer func() { // also when work panics
		if open(tx) {
			rollback(ctx, tx)
		}
	}()
	tag, err := tx.Exec(ctx, takeSQL, consumer, messageID)
	if err != nil {
		return false, fmt.Errorf("take: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return confirm(ctx, tx)
	}
	if err := work(tx); err != nil {
		return false, err
	}
	if !open(tx) {
		return false, errors.New("the work ended the transaction: return its error, and leave COMMIT and ROLLBACK to inbox")
	}
	*inDoubt = true
	return false, commit(ctx, tx)
}

// rollback reports nothing: the connection of a rollback that failed is closed, and the server rolls back by itself.
func rollback(ctx context.Context, tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), doubtTimeout)
	defer cancel()
	tx.Rollback(ctx)
}

// processed reports whether the message is recorded. It takes the key like everybody else and gives it back, so that it
// waits for a commit that is still under way on the server.
func processed(ctx context.Context, pool *pgxpool.Pool, consumer, messageID string) (bool, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), doubtTimeout)
	defer cancel()
	noWork := func(pgx.Tx) error { return errGiveBack }
	for {
		duplicate, err := consume(ctx, pool, consumer, messageID, noWork, new(bool))
		switch {
		case err == nil:
			return duplicate, nil
		case errors.Is(err, errGiveBack):
			return false, nil
		}
		select { // the database may be on its way back
		case <-ctx.Done():
			return false, fmt.Errorf("what became of the commit is not known: %w", err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

var errGiveBack = errors.New("give back")
