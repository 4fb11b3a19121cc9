package claim

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"sluice.example/sluice/internal/pgtest"
)

// runBell starts a bell and stops it, joined, at the end of the test.
func runBell(t *testing.T, pool *pgxpool.Pool, heard func()) *Bell {
	b := NewBell(pool, NewBellMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx, heard) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run gave %v, want nil", err)
		}
	})
	return b
}

// ears gives a heard function, and a channel that says how often it was called.
func ears() (heard func(), calls chan struct{}) {
	calls = make(chan struct{}, 100)
	return func() { calls <- struct{}{} }, calls
}

func expect(t *testing.T, calls <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-calls:
	case <-time.After(time.Minute):
		t.Fatalf("not woken within a minute: %s", what)
	}
}

func TestBellWakesOtherNodes(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	heard, calls := ears()
	own, ownCalls := ears()
	listener := runBell(t, pool, heard)
	ringer := runBell(t, pool, own)
	expect(t, calls, "listening began")
	expect(t, ownCalls, "listening began")

	ringer.Ring()
	expect(t, calls, "another node rang")
	listener.Ring()
	expect(t, ownCalls, "another node rang")
	if got := testutil.ToFloat64(ringer.metrics.heard); got != 1 {
		t.Errorf("the ringing node heard %v rings, want 1: not its own", got)
	}
}

func TestBellListensAgainAfterItsConnectionIsLost(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	heard, calls := ears()
	listener := runBell(t, pool, heard)
	ringer := runBell(t, pool, nil)
	expect(t, calls, "listening began")

	if _, err := pool.Exec(t.Context(), `select pg_terminate_backend(pid) from pg_stat_activity
		where datname = current_database() and query = 'listen '||$1`, channel); err != nil {
		t.Fatal(err)
	}
	expect(t, calls, "listening began again")
	ringer.Ring()
	expect(t, calls, "another node rang after the connection was made again")
	if got := testutil.ToFloat64(listener.metrics.failed.WithLabelValues("listen")); got < 1 {
		t.Errorf("the lost connection was counted %v times, want at least once", got)
	}
}

// However often Ring is called while one ring is under way, one more follows.
func TestBellGathersRings(t *testing.T) {
	t.Parallel()
	b := NewBell(nil, nil, nil)
	for range 1000 {
		b.Ring()
	}
	if len(b.rung) != 1 {
		t.Fatalf("%d rings wait, want 1", len(b.rung))
	}
}
