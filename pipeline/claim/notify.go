package claim

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/sourcegraph/conc"

	"sluice.example/sluice/internal/wait"
	"sluice.example/sluice/pipeline"
)

// channel is the channel of NOTIFY on which nodes tell each other that messages became due.
const channel = "sluice_due"

// Notifier tells the workers of other nodes that messages became due, and wakes this node's workers when others do. A
// notification is a hint that saves the wait for the next poll: polling finds what is not notified. It is sent in a
// transaction of its own, since NOTIFY makes commits wait for each other, and at most once every notifyPause, however
// much becomes due. Notify is safe for concurrent use.
type Notifier struct {
	pool    *pgxpool.Pool
	metrics *NotifierMetrics
	log     *slog.Logger
	node    string // what this node's own notifications carry, so that it need not wake itself
	asked   chan struct{}
}

// notifyPause bounds how often a node notifies: often enough for a latency that people do not notice, and rare enough
// that its cost does not show. A guess.
const notifyPause = 50 * time.Millisecond

// listenPause is how long to wait before listening again after the connection was lost. A guess.
const listenPause = 2 * time.Second

// NewNotifier makes a notifier. It notifies through the pool, and listens on a connection of its own with the pool's
// settings.
func NewNotifier(pool *pgxpool.Pool, metrics *NotifierMetrics, log *slog.Logger) *Notifier {
	node := pipeline.NewUUIDv4().String()
	return &Notifier{pool: pool, metrics: metrics, log: log, node: node, asked: make(chan struct{}, 1)}
}

// Notify asks for a notification. It never blocks.
func (n *Notifier) Notify() { wait.Nudge(n.asked) }

// Run sends notifications, and calls wake when another node sent one, until ctx ends; then it returns nil. wake must
// not block; nil is for a node that delivers nothing. A failure is counted and tried again.
func (n *Notifier) Run(ctx context.Context, wake func()) error {
	var parts conc.WaitGroup
	parts.Go(func() { n.notify(ctx) })
	if wake != nil {
		parts.Go(func() { n.listen(ctx, wake) })
	}
	parts.Wait()
	return nil
}

const notifySQL = `select pg_notify($1, $2)`

func (n *Notifier) notify(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.asked:
		}
		if err := n.notifyOnce(ctx); err == nil {
			n.metrics.sent.Inc()
		} else if ctx.Err() == nil {
			n.metrics.failed.WithLabelValues("notify").Inc()
			n.log.Warn("claim: other nodes were not notified of due messages; they find them by polling", "error", err)
		}
		if !wait.For(ctx, notifyPause) {
			return
		}
	}
}

// notifyTimeout bounds one notification, so that a hanging database costs one hint and not all that follow. A guess.
const notifyTimeout = 5 * time.Second

func (n *Notifier) notifyOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, notifyTimeout)
	defer cancel()
	_, err := n.pool.Exec(ctx, notifySQL, channel, n.node)
	return err
}

func (n *Notifier) listen(ctx context.Context, wake func()) {
	for {
		err := n.listenOnce(ctx, wake)
		if ctx.Err() != nil {
			return
		}
		n.metrics.failed.WithLabelValues("listen").Inc()
		n.log.Warn("claim: cannot listen to other nodes; polling goes on", "again_in", listenPause, "error", err)
		if !wait.For(ctx, listenPause) {
			return
		}
	}
}

// listenOnce listens on one connection until that is lost.
func (n *Notifier) listenOnce(ctx context.Context, wake func()) error {
	conn, err := pgx.ConnectConfig(ctx, n.pool.Config().ConnConfig)
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(closing) // lost, or not needed any more
	}()
	if _, err := conn.Exec(ctx, "listen "+channel); err != nil {
		return err
	}
	wake() // for what became due while nobody listened
	for {
		notification, err := conn.WaitForNotification(ctx)
		if err != nil {
			return err
		}
		if notification.Payload != n.node {
			n.metrics.received.Inc()
			wake()
		}
	}
}
