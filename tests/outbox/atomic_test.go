package outbox_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/outbox"
)

// TestMain lets the test binary be the application that the tests of this file kill.
func TestMain(m *testing.M) {
	if url := os.Getenv("OUTBOX_TEST_APPLICATION"); url != "" {
		if err := application(context.Background(), url, os.Getenv("OUTBOX_TEST_STOP")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// application places order after order, each with its message in one transaction, until it is killed. It stops, and
// says so, before or after the first COMMIT when told to.
func application(ctx context.Context, url, stop string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	for i := 0; ; i++ {
		id := fmt.Sprintf("%d-%d", os.Getpid(), i)
		tx, err := conn.Begin(ctx)
		if err != nil {
			return err
		}
		if err := placeOrder(ctx, tx, id); err != nil {
			return err
		}
		if stop == "before commit" {
			fmt.Println(id)
			select {}
		}
		if err := tx.Commit(ctx); err != nil {
			return err
		}
		fmt.Println(id)
		if stop == "after commit" {
			select {}
		}
	}
}

func placeOrder(ctx context.Context, tx pgx.Tx, id string) error {
	if _, err := tx.Exec(ctx, `insert into orders values ($1)`, id); err != nil {
		return err
	}
	_, err := outbox.Enqueue(ctx, tx, outbox.Message{
		AggregateType: "order", AggregateID: id, EventType: "order.placed", Payload: json.RawMessage(`{}`),
		Destination: "billing", IdempotencyKey: "placed:" + id,
	})
	return err
}

// killed starts the application, kills it after it has said n lines, waits until the server has noticed, and returns
// its last line.
func killed(t *testing.T, pool *pgxpool.Pool, stop string, n int) (last string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "OUTBOX_TEST_APPLICATION="+pool.Config().ConnString(), "OUTBOX_TEST_STOP="+stop,
		"PGAPPNAME=shop")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for range n {
		if !lines.Scan() {
			break
		}
		last = lines.Text()
	}
	cmd.Process.Kill() // SIGKILL
	for lines.Scan() {
		last = lines.Text()
	}
	cmd.Wait()
	if last == "" {
		t.Fatal("the application said nothing")
	}
	pgtest.Until(t, pool, `select not exists (select from pg_stat_activity where datname = current_database()
		and application_name = 'shop')`)
	return last
}

const ordersWithoutMessage = `select count(*) from orders full join outbox on subject_key = 'order:' || id
	where id is null or message_id is null`

func TestKilledBeforeCommitLeavesNothing(t *testing.T) {
	pool := shop(t)
	id := killed(t, pool, "before commit", 1)
	one(t, pool, "0", `select (select count(*) from orders) + (select count(*) from outbox) + (select count(*)
		from dedupe_keys)`)
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return placeOrder(t.Context(), tx, id) })
	if err != nil {
		t.Fatalf("the same order again: %v", err)
	}
	one(t, pool, "1", `select count(*) from outbox where dedupe_key = $1`, "placed:"+id)
}

func TestKilledAfterCommitLeavesBoth(t *testing.T) {
	pool := shop(t)
	id := killed(t, pool, "after commit", 1)
	one(t, pool, "order:"+id, `select subject_key from orders join outbox on dedupe_key = 'placed:' || id`)
}

func TestKilledAtAnyMomentLeavesBothOrNeither(t *testing.T) {
	pool := shop(t)
	for i := range 5 {
		last := killed(t, pool, "", 1+10*i)
		one(t, pool, "0", ordersWithoutMessage)
		one(t, pool, "1", `select count(*) from orders where id = $1`, last) // what was said to be committed is
	}
	one(t, pool, "true", `select count(*) > 100 from outbox`)
}

func TestRolledBackLeavesNothing(t *testing.T) {
	pool, ctx := shop(t), t.Context()
	broken := errors.New("broken")
	for name, work := range map[string]func(pgx.Tx) error{
		"the application's error": func(tx pgx.Tx) error { return errors.Join(placeOrder(ctx, tx, "17"), broken) },
		"a failed statement after": func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `select 1/0`)
			return errors.Join(placeOrder(ctx, tx, "17"), err)
		},
		"an invalid message": func(tx pgx.Tx) error {
			_, err := outbox.Enqueue(ctx, tx, placed("a"), outbox.Message{})
			return errors.Join(err, tx.Commit(ctx)) // who ignores the error cannot commit half of it
		},
		"the connection": func(tx pgx.Tx) error {
			err := placeOrder(ctx, tx, "17")
			tx.Conn().Close(ctx)
			return err
		},
	} {
		if err := pgx.BeginFunc(ctx, pool, work); err == nil {
			t.Errorf("%s: no error", name)
		}
		pgtest.Until(t, pool, `select count(*) = 0 from pg_stat_activity where datname = current_database()
			and backend_xid is not null`)
		one(t, pool, "0", `select (select count(*) from orders) + (select count(*) from outbox) + (select count(*)
			from dedupe_keys)`)
	}
	// A savepoint takes back its part only.
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		err := pgx.BeginFunc(ctx, tx, func(sub pgx.Tx) error { return errors.Join(placeOrder(ctx, sub, "17"), broken) })
		if !errors.Is(err, broken) {
			return err
		}
		return placeOrder(ctx, tx, "18")
	})
	if err != nil {
		t.Fatal(err)
	}
	one(t, pool, "order:18", `select string_agg(subject_key, ' ') from outbox`)
}

// TestTheSameKeyAtTheSameMoment: A has a key and has not ended; B wants it. B waits, and gets it when A rolls back.
func TestTheSameKeyAtTheSameMoment(t *testing.T) {
	pool, ctx := shop(t), t.Context()
	for _, c := range []struct {
		end        string
		duplicates int
	}{{"rollback", 0}, {"commit", 1}} {
		a, err := pool.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		m := placed(c.end)
		m.AggregateType, m.AggregateID = "from", "a"
		if _, err := outbox.Enqueue(ctx, a, m); err != nil {
			t.Fatal(err)
		}
		var receipts []outbox.Receipt
		var b sync.WaitGroup
		b.Go(func() {
			m := placed(c.end)
			m.AggregateType, m.AggregateID = "from", "b"
			receipts, err = enqueued(ctx, pool, m)
		})
		pgtest.Until(t, pool, `select exists (select from pg_stat_activity where datname = current_database()
			and wait_event_type = 'Lock')`)
		if _, err := a.Exec(ctx, c.end); err != nil {
			t.Fatal(err)
		}
		b.Wait()
		a.Rollback(ctx) // gives the connection back
		if err != nil || duplicates(receipts) != c.duplicates {
			t.Fatalf("A ends with %s: B = %+v, %v; want %d duplicates", c.end, receipts, err, c.duplicates)
		}
		one(t, pool, map[string]string{"rollback": "from:b", "commit": "from:a"}[c.end],
			`select string_agg(subject_key, ' ') from outbox where dedupe_key = $1`, c.end)
	}
}

// TestOverlappingBatches: eight applications enqueue the same keys in shuffled order; none ends in a deadlock, and each
// key is there once.
func TestOverlappingBatches(t *testing.T) {
	pool, ctx := shop(t), t.Context()
	var all sync.WaitGroup
	var mu sync.Mutex
	stored := 0
	for range 8 {
		all.Go(func() {
			for batch := range 20 {
				var messages []outbox.Message
				for _, k := range rand.Perm(30) {
					messages = append(messages, placed(fmt.Sprint("k", batch*15+k)))
				}
				receipts, err := enqueued(ctx, pool, messages...)
				if err != nil {
					t.Errorf("batch %d: %v", batch, err)
				}
				mu.Lock()
				stored += len(receipts) - duplicates(receipts)
				mu.Unlock()
			}
		})
	}
	all.Wait()
	if stored != 315 {
		t.Errorf("%d messages were reported as stored; want 315", stored)
	}
	one(t, pool, "(315,315)", `select row(count(*), count(distinct dedupe_key)) from outbox`)
}

// TestCommitInDoubt: the answer to COMMIT is lost, so the application repeats its whole transaction.
func TestCommitInDoubt(t *testing.T) {
	pool, ctx := shop(t), t.Context()
	proxy := pgtest.NewProxy(t, pool.Config().ConnString())
	hook, _ := pgtest.Once(pgtest.CutBefore, func(m pgtest.Message) bool { return m.Tag() == "COMMIT" })
	proxy.OnMessage(hook)
	behind, err := pgxpool.New(ctx, proxy.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer behind.Close()
	place := func() (receipts []outbox.Receipt, err error) { return enqueued(ctx, behind, placed("17")) }
	if _, err := place(); err == nil {
		t.Fatal("the commit was not in doubt")
	}
	if receipts, err := place(); err != nil || duplicates(receipts) != 1 {
		t.Fatalf("repeat = %+v, %v; want a duplicate", receipts, err)
	}
	one(t, pool, "1", `select count(*) from outbox`)
}
