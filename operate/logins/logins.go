// Package logins keeps what logins to the console rest on: the key that signs cookies, in one row, and links for one
// login each. All nodes on the database share both; of a link the database has only a hash.
package logins

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/internal/pgtx"
)

// bounds are those of every transaction here; each touches one row or two, and somebody waits.
var bounds = pgtx.Bounds{Idle: 5 * time.Second, Statement: 2 * time.Second, Lock: time.Second}

// querier is a connection, a pool or a transaction.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Key returns the key that signs cookies.
func Key(ctx context.Context, db querier) (key []byte, err error) {
	if err = db.QueryRow(ctx, "select key from console_secret").Scan(&key); err != nil {
		return nil, fmt.Errorf("logins: read the key of cookies: %w", err)
	}
	return key, nil
}

const (
	renewSQL = `
insert into console_secret (key) values ($1) on conflict (one) do update set key = excluded.key, made_at = now()`
	forgetSQL = `delete from console_links`
)

// EndAll ends every login, and every link that was not used, by a new key.
func EndAll(ctx context.Context, db pgtx.Beginner) error {
	key := make([]byte, sha256.Size)
	rand.Read(key)
	err := pgtx.InTx(ctx, db, pgx.TxOptions{}, bounds, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, renewSQL, key); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, forgetSQL)
		return err
	})
	if err != nil {
		return fmt.Errorf("logins: renew the key of cookies: %w", err)
	}
	return nil
}

const (
	makeSQL = `
insert into console_links (secret_hash, name, role, expires_at) values ($1, $2, $3, now() + $4::interval)`
	expiredSQL = `delete from console_links where expires_at <= now()`
)

// Link makes the secret of a link: within so long it logs one in, once, by name and role.
func Link(ctx context.Context, db pgtx.Beginner, name, role string, within time.Duration) (secret string, err error) {
	raw := make([]byte, sha256.Size)
	rand.Read(raw)
	secret = base64.RawURLEncoding.EncodeToString(raw)
	err = pgtx.InTx(ctx, db, pgx.TxOptions{}, bounds, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, expiredSQL); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, makeSQL, hash(secret), name, role, within)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("logins: make a link: %w", err)
	}
	return secret, nil
}

// ErrNoLink is for a secret of no link, of one that was used, and of one whose time is over.
var ErrNoLink = errors.New("this link was used already, is too old, or is none")

const spendSQL = `
delete from console_links where secret_hash = $1 returning name, role, expires_at > now() as valid`

// Spend uses up the link of a secret, and returns whom it logs in. Of several nodes that try, one succeeds.
func Spend(ctx context.Context, db pgtx.Beginner, secret string) (name, role string, err error) {
	var valid bool
	err = pgtx.InTx(ctx, db, pgx.TxOptions{}, bounds, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, spendSQL, hash(secret)).Scan(&name, &role, &valid)
	})
	switch {
	case errors.Is(err, pgx.ErrNoRows) || err == nil && !valid:
		return "", "", ErrNoLink
	case err != nil:
		return "", "", fmt.Errorf("logins: look up a link: %w", err)
	}
	return name, role, nil
}

func hash(secret string) []byte {
	sum := sha256.Sum256([]byte(secret))
	return sum[:]
}
