// Package dbclock watches the clock that decides, which is the database's, beside the program's own. What is due, what
// is leased and what has run out counts by the database's; received_at and signatures come from the program's. It
// reports how far they are apart, and that one of them was set: nothing else tells that a message waits for as long as
// the database's clock was set back.
package dbclock

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"sluice.example/sluice/internal/wait"
)

const (
	// every is the time between two looks, and bounds each. A guess: an operator sets a clock rarely.
	every = 5 * time.Second
	// apart is how far the clocks may differ before that is logged. A guess: NTP keeps them within milliseconds, and
	// the shortest grace of a rule that makes sense is longer.
	apart = 5 * time.Second
	// step is what no clock gains or loses between two looks by itself.
	step = 2 * time.Second
)

// Watcher is safe for one Run at a time.
type Watcher struct {
	pool       *pgxpool.Pool
	log        *slog.Logger
	difference prometheus.Gauge
	steps      *prometheus.CounterVec

	last *sample
	told bool // that the clocks are apart
}

// sample is one moment by both clocks. program has Go's monotonic reading, which nobody sets.
type sample struct{ database, program time.Time }

// New registers the metrics.
func New(pool *pgxpool.Pool, reg prometheus.Registerer, log *slog.Logger) *Watcher {
	w := &Watcher{
		pool: pool, log: log,
		difference: prometheus.NewGauge(prometheus.GaugeOpts{Name: "sluice_database_clock_difference_seconds",
			Help: "How far the database's clock is ahead of the program's; negative where it is behind."}),
		steps: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "sluice_database_clock_steps_total",
			Help: "How often a clock was set by more than 2 s: the database's or the program's."}, []string{"clock"}),
	}
	reg.MustRegister(w.difference, w.steps)
	for _, clock := range []string{"database", "program"} {
		w.steps.WithLabelValues(clock)
	}
	return w
}

// Run looks until ctx ends. A look that fails is left out: readiness reports a database that is away.
func (w *Watcher) Run(ctx context.Context) error {
	for {
		w.look(ctx)
		if !wait.For(ctx, every) {
			return nil
		}
	}
}

const clockSQL = `select clock_timestamp()`

func (w *Watcher) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, every)
	defer cancel()
	conn, err := w.pool.Acquire(ctx)
	if err != nil {
		return
	}
	defer conn.Release()
	before := time.Now()
	var s sample
	err = conn.QueryRow(ctx, clockSQL).Scan(&s.database)
	trip := time.Since(before)
	if err != nil || trip > step/2 {
		return // too slow to tell a step from the way
	}
	s.program = before.Add(trip / 2)
	w.compare(ctx, s)
}

func (w *Watcher) compare(ctx context.Context, s sample) {
	difference := s.database.Sub(s.program)
	w.difference.Set(difference.Seconds())
	if w.last != nil {
		elapsed := s.program.Sub(w.last.program) // by the monotonic clock
		w.stepped(ctx, "database", s.database.Sub(w.last.database)-elapsed)
		w.stepped(ctx, "program", s.program.Round(0).Sub(w.last.program.Round(0))-elapsed)
	}
	w.last = &s
	if far := difference.Abs() > apart; far != w.told {
		w.told = far
		if far {
			w.log.WarnContext(ctx, "the clocks of the database and of this machine differ; set them by NTP: events are "+
				"stamped by this machine's clock, and what is due counts by the database's",
				"database_ahead_by", difference.Round(time.Second).String())
		} else {
			w.log.InfoContext(ctx, "the clocks of the database and of this machine agree again")
		}
	}
}

func (w *Watcher) stepped(ctx context.Context, clock string, by time.Duration) {
	if by.Abs() <= step {
		return
	}
	w.steps.WithLabelValues(clock).Inc()
	w.log.ErrorContext(ctx, "a clock was set: see \"Clocks\" in docs/operations.md for what may wait or be sent early",
		"clock", clock, "by", by.Round(time.Second).String())
}
