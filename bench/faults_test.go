package bench

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"sluice.example/sluice/internal/pgtest"
)

// builtProgram builds the program once.
var builtProgram = sync.OnceValues(func() (string, error) {
	file := filepath.Join(os.TempDir(), "bench-test-pipeline-"+time.Now().Format("150405.000000"))
	out, err := exec.Command("go", "build", "-o", file, "sluice.example/sluice/cmd/pipeline").CombinedOutput()
	if err != nil {
		err = errors.New(string(out))
	}
	return file, err
})

func TestMain(m *testing.M) {
	code := m.Run()
	if file, err := builtProgram(); err == nil {
		os.Remove(file)
	}
	os.Exit(code)
}

// testLab is a lab on the server of the tests.
func testLab(t *testing.T, o Options) *lab {
	t.Helper()
	var err error
	if o.Pipeline, err = builtProgram(); err != nil {
		t.Fatal(err)
	}
	o.DatabaseURL = pgtest.URL(t)
	l, err := openLab(t.Context(), o, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func testSide(t *testing.T, l *lab, shape Shape) *side {
	t.Helper()
	s, err := l.startSide(t.Context(), newEvents(t, shape), 4, "--roles", "ingest")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// someRequests posts n requests as fast as answers come.
func someRequests(ctx context.Context, n int64) func(*load) (*tally, error) {
	return func(w *load) (*tally, error) {
		w.url += "/v1/events"
		start := time.Now()
		var taken atomic.Int64
		return w.run(ctx, start, func() (int64, time.Time, bool) {
			if taken.Add(1) > n {
				return 0, start, false
			}
			return w.events.take(1), time.Now(), true
		})
	}
}

// Without a fault the books balance, retries included: the tests below would otherwise prove nothing.
func TestFindsNothingWhereNothingIsWrong(t *testing.T) {
	t.Parallel()
	l := testLab(t, Options{})
	s := testSide(t, l, Shape{PerRequest: 100, Retries: 0.2})
	var repeats int64
	for range 2 {
		// Repeats begin after 2,000 events.
		tally, err := s.round(t.Context(), l.db, someRequests(t.Context(), 50))
		if err != nil {
			t.Fatal(err)
		}
		repeats += tally.repeats
	}
	if err := s.books.Err(); err != nil {
		t.Fatal(err)
	}
	if s.books.Acknowledged == 0 || repeats == 0 {
		t.Errorf("%d acknowledged, %d repeated: nothing was tried", s.books.Acknowledged, repeats)
	}
}

// A request that something on the way swallows and yet acknowledges.
func TestFindsADroppedEvent(t *testing.T) {
	t.Parallel()
	l := testLab(t, Options{Proxy: func(target string) (string, func()) {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		var requests atomic.Int64
		client := &fasthttp.HostClient{Addr: strings.TrimPrefix(target, "http://")}
		server := &fasthttp.Server{Handler: func(ctx *fasthttp.RequestCtx) {
			if requests.Add(1) == 3 {
				ctx.SetBodyString(`{"stored":1,"duplicate":0,"rejected":0,"events":[]}`)
				return
			}
			if err := client.Do(&ctx.Request, &ctx.Response); err != nil {
				ctx.Error(err.Error(), fasthttp.StatusBadGateway)
			}
		}}
		done := make(chan error, 1)
		go func() { done <- server.Serve(ln) }()
		return "http://" + ln.Addr().String(), func() { server.Shutdown(); <-done; client.CloseIdleConnections() }
	}})
	s := testSide(t, l, Shape{PerRequest: 1})
	if _, err := s.round(t.Context(), l.db, someRequests(t.Context(), 20)); err != nil {
		t.Fatal(err)
	}
	if s.books.Lost != 1 || s.books.Doubled != 0 || s.books.Err() == nil {
		t.Errorf("lost %d, doubled %d, %v; want one lost", s.books.Lost, s.books.Doubled, s.books.Err())
	}
}

// A row stored a second time, under another time, which no unique key forbids.
func TestFindsADoubledEvent(t *testing.T) {
	t.Parallel()
	l := testLab(t, Options{})
	s := testSide(t, l, Shape{PerRequest: 20})
	_, err := s.round(t.Context(), l.db, func(w *load) (*tally, error) {
		tally, err := someRequests(t.Context(), 20)(w)
		if err != nil {
			return nil, err
		}
		_, err = l.db.Pool.Exec(t.Context(), `
insert into events (event_id, tenant_id, event_name, occurred_at, received_at)
select event_id, tenant_id, event_name, occurred_at + interval '1 microsecond', received_at from events limit 1`)
		return tally, err
	})
	if err != nil {
		t.Fatal(err)
	}
	if s.books.Doubled != 1 || s.books.Lost != 0 || s.books.Err() == nil {
		t.Errorf("lost %d, doubled %d, %v; want one doubled", s.books.Lost, s.books.Doubled, s.books.Err())
	}
}

// A COMMIT that takes 300 ms: the sweep's latency run, its commit time and its knee all say so.
func TestFindsASlowCommit(t *testing.T) {
	t.Parallel()
	program, err := builtProgram()
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Programs: Programs{Pipeline: program}, DatabaseURL: pgtest.URL(t),
		Planted: func(ctx context.Context, db *Database) error {
			_, err := db.Pool.Exec(ctx, `
create function slow() returns trigger language plpgsql as $$
begin
    if current_setting('bench.slept', true) is distinct from pg_current_xact_id()::text then
        perform set_config('bench.slept', pg_current_xact_id()::text, true), pg_sleep(0.3);
    end if;
    return null;
end
$$;
create constraint trigger slow after insert on events deferrable initially deferred
    for each row execute function slow()`)
			return err
		}}
	base := Base{Shape: Shape{PerRequest: 20}, Connections: 4, Duration: 600 * time.Millisecond, Rounds: 1, BoundMS: 50}
	file := filepath.Join(t.TempDir(), "sweep.json")
	points, err := ParseSweep("ingest", "")
	if err != nil {
		t.Fatal(err)
	}
	sweep, err := RunSweep(t.Context(), o, "ingest", base, points, file)
	if err != nil {
		t.Fatal(err)
	}
	p := sweep.Points[0]
	if p.Latency.P50 < 300 || p.Stages["commit_ms"] < 300 ||
		!strings.Contains(sweep.Knee.Why, "no setting kept p99 within 50 ms") {
		t.Errorf("p50 %g ms, COMMIT %g ms, knee %q; want all to tell of 300 ms", p.Latency.P50, p.Stages["commit_ms"],
			sweep.Knee.Why)
	}
	if c := atMost("p50", p.Latency.P50, 15); c.Met() {
		t.Errorf("%s", c)
	}

	// What is done is not run again: this one could not run at all.
	again, err := RunSweep(t.Context(), Options{Programs: Programs{Pipeline: "/nonexistent"}}, "ingest", base, points,
		file)
	if err != nil || len(again.Points) != 1 || again.Points[0].Rate != p.Rate {
		t.Errorf("a finished sweep gives %+v, %v; want what the file holds", again, err)
	}
	base.Rounds = 2
	if _, err := RunSweep(t.Context(), o, "ingest", base, points, file); err == nil ||
		!strings.Contains(err.Error(), "other conditions") {
		t.Errorf("a sweep with other conditions goes on in the same file: %v", err)
	}
}
