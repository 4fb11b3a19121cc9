package pgtx_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/internal/pgtx"
)

var generous = pgtx.Bounds{Idle: time.Minute, Statement: time.Minute, Lock: time.Minute}

// Each bound holds in the transaction, over what the role sets, and not after it.
func TestBounds(t *testing.T) {
	t.Parallel()
	other := pgtest.New(t)
	cfg := other.Config()
	cfg.MaxConns = 1
	db, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	state := func(err error) string {
		if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
			return pgErr.Code
		}
		return ""
	}
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	if err := pgtx.InTx(t.Context(), db, options, generous, func(tx pgx.Tx) error {
		var got string
		const sql = `select current_setting('transaction_isolation') || ' ' || current_setting('transaction_read_only')
			|| ' ' || current_setting('idle_in_transaction_session_timeout')`
		err := tx.QueryRow(t.Context(), sql).Scan(&got)
		if got != "repeatable read on 1min" {
			t.Errorf("the transaction is %q", got)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	bounds := generous
	bounds.Statement = 50 * time.Millisecond
	err = pgtx.InTx(t.Context(), db, pgx.TxOptions{}, bounds, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `select pg_sleep(60)`)
		return err
	})
	if state(err) != "57014" {
		t.Errorf("a statement over its bound: %v, want 57014", err)
	}
	if _, err := other.Exec(t.Context(), `create table one (n int)`); err != nil {
		t.Fatal(err)
	}
	bounds = generous
	bounds.Lock = 50 * time.Millisecond
	err = pgtx.InTx(t.Context(), other, pgx.TxOptions{}, generous, func(holder pgx.Tx) error {
		if _, err := holder.Exec(t.Context(), `lock one`); err != nil {
			return err
		}
		return pgtx.InTx(t.Context(), db, pgx.TxOptions{}, bounds, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), `lock one`)
			return err
		})
	})
	if state(err) != "55P03" {
		t.Errorf("a lock over its bound: %v, want 55P03", err)
	}
	bounds = generous
	bounds.Idle = 50 * time.Millisecond
	tx, err := pgtx.Begin(t.Context(), db, pgx.TxOptions{}, bounds)
	if err != nil {
		t.Fatal(err)
	}
	pgtest.Until(t, other, `select count(*) = 0 from pg_stat_activity
		where datname = current_database() and state = 'idle in transaction'`)
	if err := tx.Commit(t.Context()); err == nil {
		t.Error("a transaction that idled over its bound commits")
	}
	var left string
	if err := db.QueryRow(t.Context(), `show statement_timeout`).Scan(&left); err != nil || left != "0" {
		t.Errorf("after the transaction statement_timeout is %q, %v", left, err)
	}
	if _, err := pgtx.Begin(t.Context(), db, pgx.TxOptions{}, pgtx.Bounds{}); err == nil {
		t.Error("a transaction without a bound on idling begins")
	}
}

// begins finds what begins a transaction in Go.
var begins = regexp.MustCompile(`\.(BeginTx|BeginTxFunc|BeginFunc)\(|\.Begin\((t\.Context\(\)|ctx)\)`)

// TestEveryTransactionHasBounds: only this package begins transactions, but for those that bring bounds of their own.
func TestEveryTransactionHasBounds(t *testing.T) {
	t.Parallel()
	own := map[string]string{
		"internal/pgtx/pgtx.go":    "here",
		"pipeline/copyin/store.go": "sends its bounds, which the attempt sets, with BEGIN in one round trip",
		"outbox/topics.go":         "a library that needs pgx alone; its BEGIN has the bounds",
		"outbox/tenants.go":        "the same",
		"inbox/consume.go":         "the application's transaction, with the application's work in it",
	}
	const root = "../.."
	seen := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "node_modules" || d.Name() == ".git") {
			return filepath.SkipDir
		}
		file, err := filepath.Rel(root, path)
		if err != nil || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return err
		}
		for _, part := range []string{"bench", "examples", "loadtest", "tests", "cmd/lab", "internal/pgtest"} {
			if strings.HasPrefix(file, part+"/") {
				return nil
			}
		}
		text, err := os.ReadFile(path)
		if err != nil || !begins.Match(text) {
			return err
		}
		seen++
		if own[file] == "" {
			t.Errorf("%s begins a transaction: use pgtx.Begin or pgtx.InTx", file)
		}
		return nil
	})
	if err != nil || seen < len(own)-1 {
		t.Errorf("%d files begin transactions, %v: does the test still find them?", seen, err)
	}
}
