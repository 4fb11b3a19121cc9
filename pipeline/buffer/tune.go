package buffer

import (
	"context"
	"fmt"
	"log/slog"
	"time"
)

// Usage is what others have used since the process began.
type Usage struct {
	// Commit is the time that writes spent waiting for COMMIT.
	Commit time.Duration
	// CPU is this process's time on a processor, of Cores.
	CPU   time.Duration
	Cores int
}

const (
	tuneEvery = time.Second
	// reportEvery keeps a load that goes up and down from filling the log.
	reportEvery = 30 * time.Second
)

// Tune watches what limits the rate, reports it in metrics and in the log, and lets a wait that is Auto follow the time
// of a write, until ctx ends. Without it the wait stays as it starts. Call it once, beside Run. It calls usage once a
// second.
func (b *Buffer) Tune(ctx context.Context, usage func() Usage, log *slog.Logger) error {
	tick := time.NewTicker(tuneEvery)
	defer tick.Stop()
	v := verdict{limit: byClients}
	reported := byClients
	var reportedAt time.Time
	at, used, did := time.Now(), usage(), b.worked(time.Now())
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now := time.Now()
		u, w := usage(), b.worked(now)
		s := sample{
			span:    now.Sub(at),
			busy:    w.busy - did.busy,
			events:  w.events - did.events,
			batches: w.batches - did.batches,
			commit:  u.Commit - used.Commit,
			cpu:     u.CPU - used.CPU,
			cores:   u.Cores,
			away:    b.outage(now) > 0,
		}
		at, used, did = now, u, w
		b.follow(s)
		b.m.limitedBy(v.take(s.limit(b.cfg.Writers)))
		if v.limit != reported && (reportedAt.IsZero() || now.Sub(reportedAt) >= reportEvery) {
			log.Info(s.explain(v.limit, b.cfg.Writers), "buffer.max-wait", b.currentWait(),
				"events_per_second", int(float64(s.events)/s.span.Seconds()))
			reported, reportedAt = v.limit, now
		}
	}
}

// The wait that is Auto starts at startWait and stays between the other two.
const (
	// 5 ms is a guess of the order of a COMMIT; in BenchmarkPolicy 0, 2 and 5 ms are within 10 % of each other at 256
	// callers, and 5 ms makes the fewest transactions.
	startWait = 5 * time.Millisecond
	leastWait = time.Millisecond      // a guess: about the fastest COMMIT that waits for a disk
	mostWait  = 50 * time.Millisecond // a guess: the p99 that answers should keep
)

// follow lets the wait follow the time that a batch takes to write. To wait for company as long as that at most doubles
// it. Below full load, a second writer then starts where the first takes longer than usual, and not with every few
// events that arrive meanwhile. The wait stays where it is within a quarter, so that it does not move all the time.
func (b *Buffer) follow(s sample) {
	if s.batches == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.auto {
		return
	}
	if d := s.busy/time.Duration(s.batches) - b.maxWait; max(d, -d) > b.maxWait/4 {
		b.maxWait = min(max(b.maxWait+d/2, leastWait), mostWait)
		b.m.maxWait.Set(b.maxWait.Seconds())
	}
}

func (b *Buffer) currentWait() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.maxWait
}

// work is what the writers have done.
type work struct {
	busy    time.Duration // summed over the writers
	at      time.Time     // up to when busy counts
	events  int
	batches int
}

func (w *work) advance(writing int, now time.Time) {
	w.busy += time.Duration(writing) * now.Sub(w.at)
	w.at = now
}

func (b *Buffer) worked(now time.Time) work {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.work.advance(len(b.writing), now)
	return b.work
}

// limit is what keeps the rate from being higher.
type limit string

const (
	byCommit  limit = "commit"
	byCPU     limit = "cpu"
	byClients limit = "clients"
	byOutage  limit = "outage" // no batch is written at all
)

// sample is what happened in one interval.
type sample struct {
	span    time.Duration
	busy    time.Duration
	events  int
	batches int
	commit  time.Duration
	cpu     time.Duration
	cores   int
	away    bool // the database is known to be
}

// Guesses, far enough from both ends that noise does not move the verdict.
const (
	busyShare   = 0.85 // from here on the writers count as busy all the time
	commitShare = 0.5  // from here on, of their time in COMMIT, that is what they wait for
	cpuShare    = 0.9  // of this process's cores
)

func (s sample) limit(writers int) limit {
	switch {
	case s.away:
		return byOutage
	case float64(s.cpu) >= cpuShare*float64(s.span)*float64(s.cores) && s.cores > 0:
		return byCPU
	case s.busyOf(writers) < busyShare:
		return byClients
	case s.commitOf() >= commitShare:
		return byCommit
	case s.batches == 0:
		return byOutage
	}
	return byCPU
}

func (s sample) busyOf(writers int) float64 {
	return min(1, float64(s.busy)/(float64(s.span)*float64(writers)))
}

func (s sample) commitOf() float64 {
	if s.busy <= 0 {
		return 0
	}
	return min(1, float64(s.commit)/float64(s.busy))
}

// explain is the line for operators.
func (s sample) explain(l limit, writers int) string {
	busy, commit := 100*s.busyOf(writers), 100*s.commitOf()
	switch own := float64(s.cpu) / float64(s.span); {
	case l == byOutage:
		return "no batch is written: the database is away, or something holds a lock on events; see /readyz"
	case l == byCommit:
		return fmt.Sprintf("limited by commit: %d writers are busy %.0f %% of the time, %.0f %% of that in COMMIT; "+
			"give PostgreSQL's write-ahead log faster storage, set its commit_delay, or raise buffer.writers",
			writers, busy, commit)
	case l == byCPU && own >= cpuShare*float64(s.cores):
		return fmt.Sprintf("limited by CPU: this process uses %.1f of %d cores; give it more, or start another",
			own, s.cores)
	case l == byCPU:
		return fmt.Sprintf("limited by CPU, that of PostgreSQL: %d writers are busy %.0f %% of the time, "+
			"%.0f %% of that in COMMIT, the rest with rows; this process uses %.1f of %d cores",
			writers, busy, commit, own, s.cores)
	}
	return fmt.Sprintf("limited by clients: %d writers are busy %.0f %% of the time; "+
		"more or larger requests would be taken", writers, busy)
}

// verdictSamples in a row have to agree before the limit changes. A guess: long enough to average over a checkpoint's
// bursts, short enough that an operator sees it happen.
const verdictSamples = 3

// verdict is the limit that the last samples agreed on.
type verdict struct {
	limit  limit
	latest limit
	streak int // samples in a row that found latest
}

func (v *verdict) take(found limit) limit {
	if found != v.latest {
		v.latest, v.streak = found, 0
	}
	if v.streak++; v.streak >= verdictSamples {
		v.limit = found
	}
	return v.limit
}
