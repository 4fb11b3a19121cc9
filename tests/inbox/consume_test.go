package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"sluice.example/sluice/inbox"
	"sluice.example/sluice/internal/pgtest"
)

// books returns a database with a table that the work of these tests writes to.
func books(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool := pgtest.New(t)
	exec(t, pool, `create table paid (message_id text not null)`)
	return pool
}

func exec(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// counts checks how often the work on a message and its key are in the database.
func counts(t *testing.T, pool *pgxpool.Pool, id string, wantPaid, wantKeys int) {
	t.Helper()
	var paid, keys int
	err := pool.QueryRow(t.Context(), `select (select count(*) from paid where message_id = $1),
		(select count(*) from processed_messages where message_id = $1)`, id).Scan(&paid, &keys)
	if err != nil || paid != wantPaid || keys != wantKeys {
		t.Fatalf("message %q is paid %d times, recorded %d times, error %v; want %d and %d", id, paid, keys, err, wantPaid,
			wantKeys)
	}
}

func pay(ctx context.Context, id string) func(pgx.Tx) error {
	return func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `insert into paid values ($1)`, id)
		return err
	}
}

const someoneWaitsForALock = `select exists (select from pg_stat_activity where datname = current_database()
	and wait_event_type = 'Lock')`

func TestConsumeOnce(t *testing.T) {
	pool, ctx := books(t), t.Context()
	for _, want := range []bool{false, true, true} {
		duplicate, err := inbox.ConsumeOnce(ctx, pool, "billing", "m1", pay(ctx, "m1"))
		if duplicate != want || err != nil {
			t.Fatalf("ConsumeOnce = %v, %v; want %v", duplicate, err, want)
		}
	}
	counts(t, pool, "m1", 1, 1)
	if duplicate, err := inbox.ConsumeOnce(ctx, pool, "mailing", "m1", pay(ctx, "m1")); duplicate || err != nil {
		t.Fatalf("another consumer: ConsumeOnce = %v, %v; want its own first time", duplicate, err)
	}
	counts(t, pool, "m1", 2, 2)
}

func TestConsumeOnceFailureLeavesNothing(t *testing.T) {
	pool, ctx := books(t), t.Context()
	exec(t, pool, `create table once (id text unique deferrable initially deferred)`)
	exec(t, pool, `insert into once values ('x')`)
	broken := errors.New("broken")
	for name, work := range map[string]func(pgx.Tx) error{
		"error":          func(pgx.Tx) error { return broken },
		"lost statement": func(tx pgx.Tx) error { tx.Exec(ctx, `select 1/0`); return nil },
		"fails at commit": func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `insert into once values ('x')`)
			return err
		},
		"rolled back": func(tx pgx.Tx) error { return tx.Rollback(ctx) },
		"rolled back by a statement": func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `rollback`)
			return err
		},
		"cut off": func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `select pg_terminate_backend(pg_backend_pid())`)
			return err
		},
	} {
		duplicate, err := inbox.ConsumeOnce(ctx, pool, "billing", name, func(tx pgx.Tx) error {
			return errors.Join(pay(ctx, name)(tx), work(tx))
		})
		if duplicate || err == nil || name == "error" && !errors.Is(err, broken) {
			t.Errorf("%s: ConsumeOnce = %v, %v; want the error", name, duplicate, err)
		}
		counts(t, pool, name, 0, 0)
		if duplicate, err = inbox.ConsumeOnce(ctx, pool, "billing", name, pay(ctx, name)); duplicate || err != nil {
			t.Errorf("%s, repeated: ConsumeOnce = %v, %v; want the work done", name, duplicate, err)
		}
		counts(t, pool, name, 1, 1)
	}
}

func TestConsumeOncePanicLeavesNothing(t *testing.T) {
	pool, ctx := books(t), t.Context()
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		inbox.ConsumeOnce(ctx, pool, "billing", "m1", func(tx pgx.Tx) error {
			pay(ctx, "m1")(tx)
			panic("broken")
		})
	}()
	counts(t, pool, "m1", 0, 0)
	if n := pool.Stat().AcquiredConns(); n != 0 {
		t.Errorf("%d connections were not given back", n)
	}
}

func TestConsumeOnceRefusesKeys(t *testing.T) {
	pool := books(t)
	for _, key := range []string{"", strings.Repeat("x", 513), "a\x00b", "\xff"} {
		for _, pair := range [][2]string{{key, "m1"}, {"billing", key}} {
			if _, err := inbox.ConsumeOnce(t.Context(), pool, pair[0], pair[1], pay(t.Context(), "m1")); err == nil {
				t.Errorf("consumer %q, message id %q: no error", pair[0], pair[1])
			}
		}
	}
	longest := strings.Repeat("\U0001F600", 128)
	if _, err := inbox.ConsumeOnce(t.Context(), pool, longest, longest, pay(t.Context(), "m1")); err != nil {
		t.Errorf("512 bytes each: %v", err)
	}
}

// TestConsumeOnceAtTheSameMoment has a second call come while the first is at work: it waits, then does the work when
// the first fails, and is a duplicate when not. A stricter default isolation changes nothing.
func TestConsumeOnceAtTheSameMoment(t *testing.T) {
	pool, ctx := books(t), t.Context()
	exec(t, pool, `do $$ begin
		execute format('alter database %I set default_transaction_isolation = serializable', current_database());
		end $$`)
	pool.Reset()
	for _, firstFails := range []bool{true, false} {
		id := fmt.Sprint("first fails: ", firstFails)
		working, finish := make(chan struct{}), make(chan struct{})
		var first, second error
		var firstDuplicate, secondDuplicate bool
		var wg sync.WaitGroup
		wg.Go(func() {
			firstDuplicate, first = inbox.ConsumeOnce(ctx, pool, "billing", id, func(tx pgx.Tx) error {
				err := pay(ctx, id)(tx)
				close(working)
				<-finish
				if firstFails {
					err = errors.New("broken")
				}
				return err
			})
		})
		<-working
		wg.Go(func() { secondDuplicate, second = inbox.ConsumeOnce(ctx, pool, "billing", id, pay(ctx, id)) })
		pgtest.Until(t, pool, someoneWaitsForALock)
		close(finish)
		wg.Wait()
		if (first != nil) != firstFails || firstDuplicate || second != nil || secondDuplicate == firstFails {
			t.Fatalf("%s: first = %v, %v; second = %v, %v", id, firstDuplicate, first, secondDuplicate, second)
		}
		counts(t, pool, id, 1, 1)
	}
}

func TestConsumeOnceCrowd(t *testing.T) {
	pool, ctx := books(t), t.Context()
	var wg sync.WaitGroup
	var mu sync.Mutex
	first := 0
	for range 40 {
		wg.Go(func() {
			for m := range 10 {
				id := fmt.Sprint("m", m)
				duplicate, err := inbox.ConsumeOnce(ctx, pool, "billing", id, pay(ctx, id))
				if err != nil {
					t.Errorf("%s: %v", id, err)
				}
				if !duplicate {
					mu.Lock()
					first++
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	if first != 10 {
		t.Errorf("%d calls did the work; want 10", first)
	}
	for m := range 10 {
		counts(t, pool, fmt.Sprint("m", m), 1, 1)
	}
}

// TestConsumeOnceCommitInDoubt cuts the connection around COMMIT: whatever is reported is what is in the database.
func TestConsumeOnceCommitInDoubt(t *testing.T) {
	pool, ctx := books(t), t.Context()
	proxy := pgtest.NewProxy(t, pool.Config().ConnString())
	behind, err := pgxpool.New(ctx, proxy.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer behind.Close()
	commitSent := func(m pgtest.Message) bool { return strings.EqualFold(m.SQL(), "commit") }
	committed := func(m pgtest.Message) bool { return m.Tag() == "COMMIT" }
	for _, c := range []struct {
		id     string
		action pgtest.Action
		match  func(pgtest.Message) bool
		done   bool
	}{
		{"COMMIT never arrives", pgtest.CutBefore, commitSent, false},
		{"answer is lost", pgtest.CutBefore, committed, true},
	} {
		hook, hit := pgtest.Once(c.action, c.match)
		proxy.OnMessage(hook)
		duplicate, err := inbox.ConsumeOnce(ctx, behind, "billing", c.id, pay(ctx, c.id))
		select {
		case <-hit:
		default:
			t.Fatalf("%s: the connection was not cut", c.id)
		}
		if duplicate || (err == nil) != c.done {
			t.Fatalf("%s: ConsumeOnce = %v, %v; want success: %v", c.id, duplicate, err, c.done)
		}
		n := map[bool]int{true: 1}[c.done]
		counts(t, pool, c.id, n, n)
		if duplicate, err := inbox.ConsumeOnce(ctx, behind, "billing", c.id, pay(ctx, c.id)); duplicate != c.done ||
			err != nil {
			t.Fatalf("%s, repeated: ConsumeOnce = %v, %v; want duplicate %v", c.id, duplicate, err, c.done)
		}
		counts(t, pool, c.id, 1, 1)
	}
}

// TestConsumeOnceCallerGoesAway: a caller whose context ends while COMMIT is under way gets the truth too.
func TestConsumeOnceCallerGoesAway(t *testing.T) {
	pool := books(t)
	proxy := pgtest.NewProxy(t, pool.Config().ConnString())
	behind, err := pgxpool.New(t.Context(), proxy.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer behind.Close()
	defer proxy.Cut() // or Close would wait for the answer that hangs
	ctx, leave := context.WithCancel(t.Context())
	hook, _ := pgtest.Once(pgtest.Hang, func(m pgtest.Message) bool {
		if m.Tag() == "COMMIT" {
			leave()
			return true
		}
		return false
	})
	proxy.OnMessage(hook)
	duplicate, err := inbox.ConsumeOnce(ctx, behind, "billing", "m1", pay(t.Context(), "m1"))
	if duplicate || err != nil {
		t.Fatalf("ConsumeOnce = %v, %v; want success, since it is committed", duplicate, err)
	}
	counts(t, pool, "m1", 1, 1)
}

func TestHandler(t *testing.T) {
	pool := books(t)
	var log strings.Builder
	fail := false
	h := inbox.Handler(pool, "billing", slog.New(slog.NewTextHandler(&log, nil)), func(r *http.Request, tx pgx.Tx) error {
		if err := pay(r.Context(), inbox.MessageID(r.Header))(tx); err != nil {
			return err
		}
		if fail {
			return errors.New("secret detail")
		}
		return nil
	})
	post := func(status int, text string, pairs ...string) {
		t.Helper()
		r := httptest.NewRequest("POST", "/", nil)
		for i := 0; i < len(pairs); i += 2 {
			r.Header.Add(pairs[i], pairs[i+1])
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != status || !strings.Contains(w.Body.String(), text) {
			t.Fatalf("%q: answer %d %q; want %d %q", pairs, w.Code, w.Body, status, text)
		}
	}
	post(400, "missing")
	post(400, "too long", "webhook-id", strings.Repeat("x", 513))
	post(200, "processed", "webhook-id", "m1", "Idempotency-Key", "k1")
	post(200, "duplicate", "webhook-id", "m1", "Idempotency-Key", "k2")
	post(200, "processed", "Idempotency-Key", `"k1"`)
	post(200, "duplicate", "Idempotency-Key", "k1")
	fail = true
	post(500, "not processed", "webhook-id", "m2")
	if !strings.Contains(log.String(), "secret detail") {
		t.Errorf("the log does not say why: %q", log.String())
	}
	counts(t, pool, "m2", 0, 0)
	fail = false
	post(200, "processed", "webhook-id", "m2")
	counts(t, pool, "m2", 1, 1)
}
