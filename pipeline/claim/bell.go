package claim

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/sourcegraph/conc"

	"sluice.example/sluice/pipeline"
)

// channel is the name under which nodes tell each other, by NOTIFY, that messages became due.
const channel = "sluice_due"

// Bell tells the workers of other nodes that messages became due, and hears of theirs. It is a hint that saves them the
// wait for their next poll: what is not heard is found by polling. It rings in a transaction of its own, since NOTIFY
// makes commits wait for each other, and at most once every ringPause, however much becomes due. Ring is safe for
// concurrent use.
type Bell struct {
	pool    *pgxpool.Pool
	metrics *BellMetrics
	log     *slog.Logger
	node    string // what this node's own notifications carry, so that it need not wake itself
	rung    chan struct{}
}

// ringPause bounds how often a node rings: often enough for a latency that people do not notice, and rare enough that
// its cost does not show. A guess.
const ringPause = 50 * time.Millisecond

// listenPause is how long to wait before listening again after the connection was lost. A guess.
const listenPause = 2 * time.Second

// NewBell makes a bell. It rings through the pool, and listens on a connection of its own with the pool's settings.
func NewBell(pool *pgxpool.Pool, metrics *BellMetrics, log *slog.Logger) *Bell {
	return &Bell{pool: pool, metrics: metrics, log: log, node: pipeline.NewUUIDv4().String(), rung: make(chan struct{}, 1)}
}

// Ring says that something became due. It never blocks.
func (b *Bell) Ring() {
	select {
	case b.rung <- struct{}{}:
	default: // one is waiting to be rung already
	}
}

// Run rings, and calls heard when another node rang, until ctx ends; then it returns nil. heard must not block; nil is
// for a node that delivers nothing. A failure is counted and tried again.
func (b *Bell) Run(ctx context.Context, heard func()) error {
	var parts conc.WaitGroup
	parts.Go(func() { b.ring(ctx) })
	if heard != nil {
		parts.Go(func() { b.listen(ctx, heard) })
	}
	parts.Wait()
	return nil
}

const ringSQL = `select pg_notify($1, $2)`

func (b *Bell) ring(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-b.rung:
		}
		if err := b.ringOnce(ctx); err == nil {
			b.metrics.rung.Inc()
		} else if ctx.Err() == nil {
			b.metrics.failed.WithLabelValues("ring").Inc()
			b.log.Warn("claim: other nodes were not told of due messages; they find them by polling", "error", err)
		}
		if !pause(ctx, ringPause) {
			return
		}
	}
}

// ringTimeout bounds one ring, so that a hanging database costs one hint and not all that follow. A guess.
const ringTimeout = 5 * time.Second

func (b *Bell) ringOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, ringTimeout)
	defer cancel()
	_, err := b.pool.Exec(ctx, ringSQL, channel, b.node)
	return err
}

func (b *Bell) listen(ctx context.Context, heard func()) {
	for {
		err := b.listenOnce(ctx, heard)
		if ctx.Err() != nil {
			return
		}
		b.metrics.failed.WithLabelValues("listen").Inc()
		b.log.Warn("claim: cannot hear other nodes; polling goes on", "again_in", listenPause, "error", err)
		if !pause(ctx, listenPause) {
			return
		}
	}
}

// listenOnce listens on one connection until that is lost.
func (b *Bell) listenOnce(ctx context.Context, heard func()) error {
	conn, err := pgx.ConnectConfig(ctx, b.pool.Config().ConnConfig)
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
	heard() // what became due while nobody listened
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return err
		}
		if n.Payload != b.node {
			b.metrics.heard.Inc()
			heard()
		}
	}
}

// pause waits, and reports false when ctx ended first.
func pause(ctx context.Context, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
