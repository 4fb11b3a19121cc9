// Package copyin stores batches of events, one transaction each, and returns a verdict for every event.
//
// In: events, valid by construction. Out: rows of events and, in the same transaction, what the Recorder writes about
// them. A row that PostgreSQL cannot store goes to quarantine, and its neighbours are stored. A nil error means
// committed, on the synchronous standbys as well where PostgreSQL has some; that holds for duplicates alike. With
// ErrUnavailable the batch may be committed or not, with ErrFault it is not. To repeat it is harmless, since the key
// (tenant, event id, occurred_at) makes a repeat a duplicate. Nothing happens twice: a COMMIT whose answer was lost is
// looked up in PostgreSQL.
package copyin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"sluice.example/sluice/pipeline"
)

// DecideFunc decides about events, once a batch and outside its transaction. It gets them in the caller's order
// without repeats inside the batch (the first wins), and must not keep the slice beyond the Recorder's Committed. A
// nil Recorder means that there is nothing to record, whatever gets stored.
type DecideFunc func(events []pipeline.Event) Recorder

// Recorder writes the decisions about one batch.
type Recorder interface {
	// Record runs inside the batch's transaction; stored[i] reports whether events[i], of the slice that was decided
	// about, is newly stored by it. It may be called again, after a rollback and with other values: the last call
	// counts.
	Record(ctx context.Context, tx pgx.Tx, stored []bool) error
	// Committed is called once, after COMMIT; not at all where the outcome stays unknown.
	Committed()
}

// Writer is safe for concurrent use. It starts no goroutine.
type Writer struct {
	cfg     Config
	pool    *pgxpool.Pool
	decide  DecideFunc
	m       *Metrics
	log     *slog.Logger
	recent  *recent
	misses  misses
	control control
	outage  outage
	failing failing

	lookupFirst    float64
	attemptTimeout time.Duration
	straightHead   []byte

	committing atomic.Int64 // nanoseconds
	waiting    atomic.Int64 // COMMITs that take longer than an attempt
}

// New checks the configuration. Each concurrent Write takes one connection of the pool.
func New(cfg Config, pool *pgxpool.Pool, decide DecideFunc, m *Metrics, log *slog.Logger) (*Writer, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	w := &Writer{cfg: cfg, pool: pool, decide: decide, m: m, log: log, recent: newRecent(cfg.RecentBytes)}
	w.lookupFirst = lookupFirst
	w.boundAttempts(attemptTimeout)
	return w, nil
}

// boundAttempts sets the bound on each transaction.
func (w *Writer) boundAttempts(timeout time.Duration) {
	w.attemptTimeout = min(timeout, w.cfg.Deadline)
	w.straightHead = straightHead(w.attemptTimeout)
}

// Committing returns how long all COMMITs took together.
func (w *Writer) Committing() time.Duration { return time.Duration(w.committing.Load()) }

// Write stores a batch and returns a verdict for each event, by index. It borrows the slice until it returns. The error
// is ErrUnavailable or, at once, ErrFault. Beside the events it holds one encoded copy of them. A batch that repeats
// events of one that is still being written waits for that one.
//
// It blocks for at most copyin.deadline, and for as long as PostgreSQL works on a COMMIT: where a synchronous standby
// is away, until it is back, or until ctx ends. Nobody else could tell what becomes of these events, and writers are
// few, so no more than that many sessions wait.
func (w *Writer) Write(ctx context.Context, events []pipeline.Event) ([]pipeline.Verdict, error) {
	if len(events) == 0 {
		return nil, nil
	}
	stop := ctx
	ctx, cancel := context.WithTimeout(ctx, w.cfg.Deadline)
	defer cancel()
	b := newBatch(events)
	defer b.release()
	earlier, leave := w.recent.enter(b)
	defer leave()
	recorder := w.decide(b.events)
	await(ctx, earlier, w.attemptTimeout)
	if err := w.store(ctx, stop, b, recorder); err != nil {
		cause := pipeline.ErrUnavailable
		if _, ok := errors.AsType[*fault](err); ok {
			cause = pipeline.ErrFault
		} else {
			for _, known := range []error{pipeline.ErrDiskFull, pipeline.ErrLocked} {
				if errors.Is(err, known) {
					cause = known
				}
			}
		}
		w.m.failed.WithLabelValues(failedAs(cause)).Inc()
		err = fmt.Errorf("copyin: write %d events: %w: %w", len(events), cause, err)
		w.failing.note(w.log, failedAs(cause), len(events), err)
		return nil, err
	}
	w.failing.end(w.log)
	if recorder != nil {
		recorder.Committed()
	}
	verdicts := b.verdicts()
	w.m.count(events, verdicts)
	if len(b.rejections) > 0 {
		w.log.Warn("PostgreSQL could not store some events: they are in quarantine, see pipeline quarantine list",
			"events", len(b.rejections), "of", len(events))
	}
	return verdicts, nil
}

// failedAs is the label of an error in the metrics.
func failedAs(err error) string {
	switch {
	case errors.Is(err, pipeline.ErrFault):
		return "fault"
	case errors.Is(err, pipeline.ErrDiskFull):
		return string(causeDiskFull)
	case errors.Is(err, pipeline.ErrLocked):
		return string(causeLock)
	}
	return "unavailable"
}

// misses remembers how many of the last batches held events that were stored before and that recent did not know, since
// another process wrote them, or this one long ago.
type misses struct {
	mu    sync.Mutex
	share float64
}

// missesMemory is about how many batches count. A guess: a few seconds of load.
const missesMemory = 16

func (m *misses) note(had bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.share *= 1 - 1.0/missesMemory
	if had {
		m.share += 1.0 / missesMemory
	}
}

func (m *misses) recent() float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.share
}

func milliseconds(d time.Duration) string { return fmt.Sprint(max(1, d.Milliseconds())) }
