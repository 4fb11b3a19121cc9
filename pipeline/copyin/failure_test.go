package copyin

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline"
)

// proxied gives a writer whose connections go through a proxy, and a pool that does not.
func proxied(t *testing.T, set ...func(*Config)) (*Writer, *pgtest.Proxy, *pgxpool.Pool) {
	t.Helper()
	direct := pgtest.New(t)
	proxy := pgtest.NewProxy(t, direct.Config().ConnString())
	pool, err := pgxpool.New(t.Context(), proxy.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return newWriter(t, pool, set...), proxy, direct
}

// books is a Recorder that remembers what it was told.
type books struct {
	record    func(ctx context.Context, tx pgx.Tx, stored []bool) error
	stored    []bool
	committed int
}

func (r *books) Record(ctx context.Context, tx pgx.Tx, stored []bool) error {
	r.stored = stored
	if r.record != nil {
		return r.record(ctx, tx, stored)
	}
	return nil
}

func (r *books) Committed() { r.committed++ }

// The connection is cut at each step of a batch: the verdicts are exact, nothing is lost and nothing doubled.
func TestConnectionCutAtEachStep(t *testing.T) {
	t.Parallel()
	fromClient := func(kind byte) func(pgtest.Message) bool {
		return func(m pgtest.Message) bool { return m.FromClient && m.Type == kind }
	}
	fromServer := func(kind byte) func(pgtest.Message) bool {
		return func(m pgtest.Message) bool { return !m.FromClient && m.Type == kind }
	}
	sql := func(prefix string) func(pgtest.Message) bool {
		return func(m pgtest.Message) bool { return strings.HasPrefix(m.SQL(), prefix) }
	}
	tag := func(prefix string) func(pgtest.Message) bool {
		return func(m pgtest.Message) bool { return strings.HasPrefix(m.Tag(), prefix) }
	}
	type step struct {
		name   string
		action pgtest.Action
		match  func(pgtest.Message) bool
		doubt  string
	}
	for way, steps := range map[string][]step{
		"with decisions": {
			{"at begin", pgtest.CutBefore, fromClient('B'), ""},
			{"after begin", pgtest.CutBefore, tag("BEGIN"), ""},
			{"before COPY", pgtest.CutBefore, sql("copy events"), ""},
			{"after the COPY statement", pgtest.CutAfter, sql("copy events"), ""},
			{"in the rows", pgtest.CutBefore, fromClient('d'), ""},
			{"after the rows", pgtest.CutAfter, fromClient('c'), ""},
			{"at COPY's answer", pgtest.CutBefore, tag("COPY"), ""},
			{"before COMMIT", pgtest.CutBefore, sql("commit"), "aborted"},
			{"after COMMIT", pgtest.CutBefore, tag("COMMIT"), "committed"},
		},
		"straight": {
			{"at begin", pgtest.CutBefore, sql("begin"), ""},
			{"after begin", pgtest.CutBefore, tag("BEGIN"), ""},
			// The id may have come back already, and then COMMIT was sent.
			{"before the rows", pgtest.CutBefore, fromClient('d'), "aborted or none"},
			{"before the id", pgtest.CutBefore, fromServer('D'), ""},
			{"after the id", pgtest.CutBefore, fromServer('G'), ""},
			{"before COMMIT", pgtest.CutBefore, sql("commit"), "aborted"},
			{"after COMMIT", pgtest.CutBefore, tag("COMMIT"), "committed"},
		},
	} {
		for _, c := range steps {
			t.Run(way+" "+c.name, func(t *testing.T) {
				t.Parallel()
				w, proxy, direct := proxied(t)
				r := &books{}
				if way != "straight" {
					w.decide = func([]pipeline.Event) Recorder { return r }
				}
				es := events(500)
				mustWrite(t, w, es[:1]) // statements are prepared
				r.committed = 0
				hook, hit := pgtest.Once(c.action, c.match)
				proxy.OnMessage(hook)
				checkOutcomes(t, mustWrite(t, w, es[1:]), strings.Repeat("s", 499))
				select {
				case <-hit:
				default:
					t.Fatal("the connection was not cut")
				}
				checkRows(t, direct, 500)
				if way != "straight" && (r.committed != 1 || len(r.stored) != 499) {
					t.Errorf("Committed called %d times, Record with %d events; want 1, 499",
						r.committed, len(r.stored))
				}
				if got := counterValue(t, w.m.stored); got != 500 {
					t.Errorf("%v events counted as stored, want 500", got)
				}
				for _, doubt := range []string{"aborted", "committed", "unknown"} {
					want := 0.0
					if doubt == c.doubt {
						want = 1
					}
					got := counterValue(t, w.m.inDoubt.WithLabelValues(doubt))
					if got != want && (doubt != "aborted" || c.doubt != "aborted or none") {
						t.Errorf("%v commits in doubt that turned out %s, want %v", got, doubt, want)
					}
				}
			})
		}
	}
}

// A batch that goes straight and fails leaves its connection in order, whatever failed: COPY before it took rows, a
// row, COMMIT.
func TestStraightFailuresKeepTheConnection(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	w := newWriter(t, pool)
	exec(t, pool, `
create function late() returns trigger language plpgsql as $$
begin
    if new.event_name = 'late' then raise exception 'late' using errcode = '40001'; end if;
    return new;
end $$`)
	exec(t, pool, `
create constraint trigger late after insert on events deferrable initially deferred
for each row execute function late()`)
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	pid := conn.Conn().PgConn().PID()
	try := func(what string, at step, events ...pipeline.Event) {
		t.Helper()
		b := newBatch(events)
		defer b.release()
		if !b.straight(mode{}, nil) {
			t.Fatal("the batch does not go straight")
		}
		err := w.goStraight(t.Context(), t.Context(), conn.Conn(), b)
		failed, ok := errors.AsType[*stepError](err)
		if at == "" && err != nil || at != "" && (!ok || failed.at != at || failed.closed) {
			t.Errorf("%s: %v, want a failure %q on a connection that stays", what, err, at)
		}
		if conn.Conn().IsClosed() || conn.Conn().PgConn().TxStatus() != 'I' {
			t.Fatalf("%s: closed is %v and the state %c, want an idle connection",
				what, conn.Conn().IsClosed(), conn.Conn().PgConn().TxStatus())
		}
		var now uint32
		if err := conn.QueryRow(t.Context(), `select pg_backend_pid()`).Scan(&now); err != nil || now != pid {
			t.Fatalf("%s: then the backend is %d, %v; want %d", what, now, err, pid)
		}
	}
	first := event("first")
	try("the first", "", first)
	try("its key again", atCopy, event("x"), first)
	late := event("late")
	try("a check at the end", atCommit, late)
	exec(t, pool, `alter table events rename to elsewhere`)
	try("no table", atCopy, event("y"))
	exec(t, pool, `alter table elsewhere rename to events`)
	try("all well again", "", event("z"))
	checkRows(t, pool, 2)
}

// After a crash that lost a transaction, nobody has its id, and then PostgreSQL gives it to another one, whose COMMIT
// is not ours.
func TestIDOfALostTransactionIsTakenByAnother(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	w := newWriter(t, pool)
	var other string
	const elsewhereSQL = `insert into processed_messages values ('c', 'm') returning pg_current_xact_id()::text`
	if err := pool.QueryRow(t.Context(), elsewhereSQL).Scan(&other); err != nil {
		t.Fatal(err)
	}
	es := events(3)
	es[2].OccurredAt = es[2].OccurredAt.AddDate(0, 0, -1)
	outcome := func(xid string) bool {
		t.Helper()
		b := newBatch(es)
		defer b.release()
		committed, err := w.lookUpCommit(t.Context(), t.Context(), b, &inDoubt{xid: xid})
		if err != nil {
			t.Fatal(err)
		}
		return committed
	}
	if outcome(other) {
		t.Error("the COMMIT of another transaction was taken for that of a batch which is not stored")
	}
	var future string
	const futureSQL = `select (pg_current_xact_id()::text::bigint + 1000000)::text`
	if err := pool.QueryRow(t.Context(), futureSQL).Scan(&future); err != nil {
		t.Fatal(err)
	}
	if outcome(future) {
		t.Error("an id that no transaction has had was taken for that of a COMMIT")
	}
	if got := counterValue(t, w.m.inDoubt.WithLabelValues("aborted")); got != 2 {
		t.Errorf("%v commits in doubt that turned out aborted, want both", got)
	}
	mustWrite(t, w, es)
	if outcome(other) {
		t.Error("the COMMIT of another transaction was taken for that of a batch which a third one stored")
	}
	var own string
	if err := pool.QueryRow(t.Context(), `select xmin::text from events limit 1`).Scan(&own); err != nil {
		t.Fatal(err)
	}
	if !outcome(own) {
		t.Error("the COMMIT of the batch itself was not believed")
	}
}

// The database is away from COMMIT on: the caller is told that it is, and a repeat gives the right answer.
func TestCommitInDoubtForGood(t *testing.T) {
	t.Parallel()
	w, proxy, direct := proxied(t, func(c *Config) { c.Deadline = 2 * time.Second })
	w.boundAttempts(time.Second)
	es := events(10)
	hook, _ := pgtest.Once(pgtest.CutBefore, func(m pgtest.Message) bool {
		if m.Tag() == "COMMIT" {
			proxy.SetDown(true)
			return true
		}
		return false
	})
	proxy.OnMessage(func(m pgtest.Message) pgtest.Action {
		if m.FromClient {
			return pgtest.Pass
		}
		return hook(m)
	})
	if _, err := w.Write(t.Context(), es); !errors.Is(err, pipeline.ErrUnavailable) {
		t.Fatalf("Write = %v, want ErrUnavailable", err)
	}
	proxy.SetDown(false)
	checkOutcomes(t, mustWrite(t, w, es), strings.Repeat("d", 10))
	checkRows(t, direct, 10)
}

// A database that neither answers nor closes its connections cannot hang a writer.
func TestDatabaseThatHangs(t *testing.T) {
	t.Parallel()
	w, proxy, direct := proxied(t, func(c *Config) { c.Deadline = time.Second })
	w.boundAttempts(300 * time.Millisecond)
	es := events(10)
	mustWrite(t, w, es[:1])
	proxy.SetBlackHole(true)
	begin := time.Now()
	if _, err := w.Write(t.Context(), es); !errors.Is(err, pipeline.ErrUnavailable) {
		t.Errorf("Write = %v, want ErrUnavailable", err)
	}
	if took := time.Since(begin); took > 30*time.Second {
		t.Errorf("it took %s, want little more than copyin.deadline (1s)", took)
	}
	proxy.SetBlackHole(false)
	proxy.Cut()
	checkOutcomes(t, mustWrite(t, w, es), "d"+strings.Repeat("s", 9))
	checkRows(t, direct, 10)
}

func TestDatabaseThatComesBack(t *testing.T) {
	t.Parallel()
	w, proxy, direct := proxied(t)
	mustWrite(t, w, events(1))
	proxy.SetDown(true)
	proxy.Cut()
	var written sync.WaitGroup
	written.Go(func() {
		verdicts, err := w.Write(t.Context(), events(10))
		if err != nil || outcomes(verdicts) != strings.Repeat("s", 10) {
			t.Errorf("Write over an outage = %s, %v", outcomes(verdicts), err)
		}
	})
	pgtest.Eventually(t, "two retries", func() bool {
		return counterValue(t, w.m.retries.WithLabelValues("connection")) >= 2
	})
	proxy.SetDown(false)
	written.Wait()
	checkRows(t, direct, 11)
}

// Two nodes write overlapping batches in opposite order.
func TestOverlappingBatchesInOppositeOrder(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	second, err := pgxpool.New(t.Context(), pool.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	nodes := []*Writer{newWriter(t, pool), newWriter(t, second), newWriter(t, pool), newWriter(t, second)}
	const rounds, size = 60, 200
	var stored, duplicates atomic.Int64
	for range rounds {
		base := events(size)
		for i := range base {
			base[i].TimeUnknown = i%10 == 0
		}
		var group sync.WaitGroup
		for n, w := range nodes {
			group.Go(func() {
				es := append([]pipeline.Event(nil), base...)
				for i := range es {
					if n%2 == 1 {
						es[i] = base[size-1-i]
					}
					if es[i].TimeUnknown { // each arrives at a time of its own
						es[i].OccurredAt = es[i].OccurredAt.Add(time.Duration(n) * time.Millisecond)
					}
				}
				if n > 1 {
					rand.Shuffle(len(es), func(i, j int) { es[i], es[j] = es[j], es[i] })
				}
				verdicts, err := w.Write(t.Context(), es)
				if err != nil {
					t.Error(err)
					return
				}
				got := outcomes(verdicts)
				stored.Add(int64(strings.Count(got, "s")))
				duplicates.Add(int64(strings.Count(got, "d")))
			})
		}
		group.Wait()
	}
	if stored.Load() != rounds*size || duplicates.Load() != 3*rounds*size {
		t.Errorf("%d stored and %d duplicates, want %d and %d",
			stored.Load(), duplicates.Load(), rounds*size, 3*rounds*size)
	}
	checkRows(t, pool, rounds*size)
	for i, w := range nodes {
		if got := counterValue(t, w.m.retries.WithLabelValues("deadlock")); got != 0 {
			t.Errorf("writer %d: %v deadlocks, want 0", i, got)
		}
	}
}

// A trigger fails once with the given SQLSTATE: the batch is repeated once, and the client sees nothing of it.
func TestTransientErrorsAreRetried(t *testing.T) {
	t.Parallel()
	for sqlstate, cause := range map[string]string{
		"40001": "serialization", "40P01": "deadlock", "55P03": "lock", "53200": "connection",
	} {
		t.Run(sqlstate, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.New(t)
			exec(t, pool, fmt.Sprintf(`
create sequence failures;
create function fail_once() returns trigger language plpgsql as $$
begin
    if nextval('failures') = 1 then raise exception 'once' using errcode = '%s'; end if;
    return new;
end $$;
create trigger fail_once before insert on events for each row execute function fail_once()`, sqlstate))
			w := newWriter(t, pool)
			checkOutcomes(t, mustWrite(t, w, events(3)), "sss")
			checkRows(t, pool, 3)
			if got := counterValue(t, w.m.retries.WithLabelValues(cause)); got != 1 {
				t.Errorf("%v retries for %s, want 1", got, cause)
			}
		})
	}
}

// A wait for a lock ends as one, soon, and on the server as well, so that nobody waits for the locks of a dead writer.
func TestLockIsNotWaitedForLong(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	w := newWriter(t, pool, func(c *Config) { c.Deadline = 2 * time.Second })
	w.boundAttempts(400 * time.Millisecond)
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), `lock table events in access exclusive mode`); err != nil {
		t.Fatal(err)
	}
	decided := newWriter(t, pool)
	decided.boundAttempts(400 * time.Millisecond)
	decided.decide = func([]pipeline.Event) Recorder { return &books{} }
	for way, w := range map[string]*Writer{"straight": w, "with decisions": decided} {
		begin := time.Now()
		_, err := w.Write(t.Context(), events(1))
		if !errors.Is(err, pipeline.ErrLocked) || !errors.Is(err, pipeline.ErrUnavailable) {
			t.Errorf("%s: Write = %v, want ErrLocked", way, err)
		}
		if took := time.Since(begin); took > 10*time.Second {
			t.Errorf("%s: it held its writer for %s", way, took)
		}
		for cause, want := range map[string]float64{"lock": 2, "connection": 0, "timeout": 0} {
			if got := counterValue(t, w.m.retries.WithLabelValues(cause)); got != want {
				t.Errorf("%s: %v tries ended by %s, want %v", way, got, cause, want)
			}
		}
	}
	const waitingSQL = `
select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`
	for scan[int](t, pool, waitingSQL) > 0 {
		if t.Context().Err() != nil {
			t.Fatal("a statement still waits for the lock")
		}
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	checkOutcomes(t, mustWrite(t, w, events(1)), "s")
}

func TestErrorThatCannotPassEndsAtOnce(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	w := newWriter(t, pool)
	exec(t, pool, `alter table events rename to elsewhere`)
	_, err := w.Write(t.Context(), events(1))
	if !errors.Is(err, pipeline.ErrFault) || !strings.Contains(err.Error(), "42P01") {
		t.Errorf("Write without a table = %v, want ErrFault with SQLSTATE 42P01", err)
	}
}

func TestRecorder(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	exec(t, pool, `create table decided (name text primary key)`)
	exec(t, pool, checkSQL)
	w := newWriter(t, pool)
	es := withBad(4, 2)
	mustWrite(t, w, es[:1])
	batch := []pipeline.Event{es[1], es[0], es[1], es[2], es[3]}
	var decided []string
	r := &books{record: func(ctx context.Context, tx pgx.Tx, stored []bool) error {
		for i, s := range stored {
			if s {
				if _, err := tx.Exec(ctx, `insert into decided values ($1)`, decided[i]); err != nil {
					return err
				}
			}
		}
		return nil
	}}
	w.decide = func(es []pipeline.Event) Recorder {
		for i := range es {
			decided = append(decided, es[i].Name)
		}
		return r
	}
	checkOutcomes(t, mustWrite(t, w, batch), "sddrs")
	if got := strings.Join(decided, " "); got != "e1 e0 bad e3" {
		t.Errorf("decided about %q, want the batch in the caller's order without repeats", got)
	}
	got := scan[string](t, pool, `select string_agg(name, ' ' order by name) from decided`)
	if got != "e1 e3" || r.committed != 1 {
		t.Errorf("decisions recorded for %q, committed %d times; want those of the stored events, once",
			got, r.committed)
	}
}

func TestRecorderThatFails(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	exec(t, pool, `create table decided (id integer primary key)`)
	w := newWriter(t, pool)
	calls := 0
	r := &books{record: func(ctx context.Context, tx pgx.Tx, _ []bool) error {
		calls++
		if _, err := tx.Exec(ctx, `insert into decided values (1)`); err != nil {
			return err
		}
		if calls == 1 { // another batch makes the same decision first
			_, err := tx.Exec(ctx, `insert into decided values (1)`)
			return err
		}
		return nil
	}}
	w.decide = func([]pipeline.Event) Recorder { return r }
	checkOutcomes(t, mustWrite(t, w, events(2)), "ss")
	if calls != 2 || r.committed != 1 {
		t.Errorf("Record called %d times, Committed %d; want 2, 1", calls, r.committed)
	}
	r.record = func(context.Context, pgx.Tx, []bool) error { return errors.New("a bug in the rules") }
	_, err := w.Write(t.Context(), events(2))
	if !errors.Is(err, pipeline.ErrFault) || !strings.Contains(err.Error(), "a bug in the rules") {
		t.Errorf("Write = %v, want ErrFault with the recorder's error", err)
	}
	if r.committed != 1 {
		t.Error("Committed was called for a batch that failed")
	}
	checkRows(t, pool, 2)
}
