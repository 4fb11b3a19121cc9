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

// runNotifier starts a notifier and stops it, joined, at the end of the test.
func runNotifier(t *testing.T, pool *pgxpool.Pool, wake func()) *Notifier {
	n := NewNotifier(pool, NewNotifierMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx, wake) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run = %v; want nil", err)
		}
	})
	return n
}

// counted returns a wake function, and a channel that has a value for each of its calls.
func counted() (wake func(), calls chan struct{}) {
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

func TestNotifierWakesOtherNodes(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	wake, calls := counted()
	own, ownCalls := counted()
	listener := runNotifier(t, pool, wake)
	sender := runNotifier(t, pool, own)
	expect(t, calls, "listening began")
	expect(t, ownCalls, "listening began")

	sender.Notify()
	expect(t, calls, "another node notified")
	listener.Notify()
	expect(t, ownCalls, "another node notified")
	if got := testutil.ToFloat64(sender.metrics.received); got != 1 {
		t.Errorf("the sending node received %v notifications; want 1: not its own", got)
	}
}

func TestNotifierListensAgainAfterItsConnectionIsLost(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	wake, calls := counted()
	listener := runNotifier(t, pool, wake)
	sender := runNotifier(t, pool, nil)
	expect(t, calls, "listening began")

	if _, err := pool.Exec(t.Context(), `select pg_terminate_backend(pid) from pg_stat_activity
		where datname = current_database() and query = 'listen '||$1`, channel); err != nil {
		t.Fatal(err)
	}
	expect(t, calls, "listening began again")
	sender.Notify()
	expect(t, calls, "another node notified after the connection was made again")
	if got := testutil.ToFloat64(listener.metrics.failed.WithLabelValues("listen")); got < 1 {
		t.Errorf("the lost connection was counted %v times; want at least once", got)
	}
}

// However often Notify is called while one notification is under way, one more follows.
func TestNotifierGathersCalls(t *testing.T) {
	t.Parallel()
	n := NewNotifier(nil, nil, nil)
	for range 1000 {
		n.Notify()
	}
	if len(n.asked) != 1 {
		t.Fatalf("%d notifications wait; want 1", len(n.asked))
	}
}
