package buffer

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"sluice.example/sluice/internal/wait"
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
	// logEvery keeps a load that goes up and down from filling the log.
	logEvery = 30 * time.Second
)

// Tune follows what limits the rate, says so in metrics and in the log, and adapts the settings that are Auto, until
// ctx ends. Without it they stay as they start. Call it once, beside Run. usage is asked once a second.
func (b *Buffer) Tune(ctx context.Context, usage func() Usage, log *slog.Logger) error {
	least, most := b.cfg.bounds()
	t := tuner{least: least, most: most, knobs: b.settings(), limit: byClients}
	tick := time.NewTicker(tuneEvery)
	defer tick.Stop()
	var said time.Time
	saying := byClients
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
			span: now.Sub(at), busy: w.busy - did.busy, events: w.events - did.events, batches: w.batches - did.batches, waiting: w.waiting,
			commit: u.Commit - used.Commit, cpu: u.CPU - used.CPU, cores: u.Cores,
		}
		at, used, did = now, u, w
		before := t.knobs
		t.step(s)
		if t.knobs != before {
			b.set(t.knobs)
			log.Debug("buffer tuned", "buffer.writers", t.knobs.writers, "buffer.max-events", t.knobs.maxEvents, "buffer.max-wait", t.knobs.maxWait)
		}
		b.m.limitedBy(t.limit)
		if t.limit != saying && (said.IsZero() || now.Sub(said) >= logEvery) {
			log.Info(s.explain(t.limit, t.knobs), "buffer.writers", t.knobs.writers, "buffer.max-events", t.knobs.maxEvents,
				"buffer.max-wait", t.knobs.maxWait, "events_per_second", int(float64(s.events)/s.span.Seconds()))
			said, saying = now, t.limit
		}
	}
}

// work is what the writers have done.
type work struct {
	busy    time.Duration // summed over the writers
	at      time.Time     // up to when busy counts
	events  int
	batches int
	waiting int // events that no writer has taken yet
}

func (w *work) advance(writing int, now time.Time) {
	w.busy += time.Duration(writing) * now.Sub(w.at)
	w.at = now
}

func (b *Buffer) worked(now time.Time) work {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.work.advance(len(b.writing), now)
	w := b.work
	for _, s := range b.sealed {
		w.waiting += s.count
	}
	if b.open != nil {
		w.waiting += b.open.count
	}
	return w
}

func (b *Buffer) settings() knobs {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.knobs
}

func (b *Buffer) set(k knobs) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.knobs = k
	b.m.tuned(k)
	wait.Nudge(b.nudge) // there may be room for one more writer
}

// limit is what keeps the rate from being higher.
type limit string

const (
	byCommit  limit = "commit"
	byCPU     limit = "cpu"
	byClients limit = "clients"
)

// sample is what happened in one interval.
type sample struct {
	span    time.Duration
	busy    time.Duration
	events  int
	batches int
	waiting int
	commit  time.Duration
	cpu     time.Duration
	cores   int
}

// Guesses, far enough from both ends that noise does not move the verdict.
const (
	busyShare   = 0.85 // from here on the writers count as busy all the time
	commitShare = 0.5  // of their time in COMMIT, from here on it is that which they wait for
	calmShare   = 0.6  // below it, of the least number of writers, settings go back to where they started
	cpuShare    = 0.9  // of this process's cores
)

func (s sample) limit(writers int) limit {
	switch {
	case float64(s.cpu) >= cpuShare*float64(s.span)*float64(s.cores) && s.cores > 0:
		return byCPU
	case s.busyOf(writers) < busyShare:
		return byClients
	case s.commitOf() >= commitShare:
		return byCommit
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
func (s sample) explain(l limit, k knobs) string {
	busy, commit := 100*s.busyOf(k.writers), 100*s.commitOf()
	switch own := float64(s.cpu) / float64(s.span); {
	case l == byCommit:
		return fmt.Sprintf("limited by commit: %d writers are busy %.0f %% of the time, %.0f %% of that in COMMIT; faster storage for PostgreSQL's write-ahead log would help, or its commit_delay", k.writers, busy, commit)
	case l == byCPU && own >= cpuShare*float64(s.cores):
		return fmt.Sprintf("limited by CPU: this process uses %.1f of %d cores; give it more, or start another", own, s.cores)
	case l == byCPU:
		return fmt.Sprintf("limited by CPU, that of PostgreSQL: %d writers are busy %.0f %% of the time, %.0f %% of that in COMMIT, the rest with rows; this process uses %.1f of %d cores", k.writers, busy, commit, own, s.cores)
	}
	return fmt.Sprintf("limited by clients: %d writers are busy %.0f %% of the time; more or larger requests would be taken", k.writers, busy)
}

// tuner decides from samples. It has no clock: its times are in samples, one a second.
type tuner struct {
	least, most knobs
	knobs       knobs
	limit       limit

	other  limit // what the last sample said
	streak int   // how many in a row have said so
	calm   int   // samples in a row that the least of writers would do for

	trial   trial
	turn    int // the kind of trial that is next
	holdOff int // samples until then
}

// trial compares two settings that take turns, so that a machine whose speed drifts helps neither.
type trial struct {
	small, big knobs
	up         bool // it began from small
	turns      int  // that are left; 0: no trial is under way
	samples    int  // of this turn
	rate       float64
	before     float64 // the rate of the turn before, in which the other was in force
	slow, fast float64 // the rates of small and of big, summed
	bigWon     int     // pairs of turns
}

// Guesses: long enough to average over a checkpoint's bursts, short enough that an operator sees it happen.
const (
	streakSamples = 3
	// turnSamples: of the first nothing counts, since it has writes that began before.
	turnSamples = 3
	trialPairs  = 4
	holdSamples = 60
	calmSamples = 30
	// trialGain is what more has to bring in all, beside winning every pair of turns. By chance it wins them in 1 of 16
	// trials, and then again in that of less, which follows.
	trialGain = 1.05
)

// The kinds of trials, in turns.
const (
	moreWriters = iota
	fewerWriters
	largerBatches
	smallerBatches
	kinds
)

// step takes one sample. The limit changes after three samples that agree. Under a queue, settings are tried one at a
// time, upwards and downwards, and more is kept only where it clearly brings 5 %; what changes nothing is not tried again
// for a minute. A queue may come from a slow disk, where more transactions at once help, or from a busy processor, where
// they only cost, and only the rate tells. Rejected: a model of the database with the number of writers as its solution,
// which has to know cores and disks of another machine; comparing a few seconds with those before, which on a machine
// that others use, too, goes up by chance and never comes down.
func (t *tuner) step(s sample) {
	if now := s.limit(t.knobs.writers); now == t.other {
		t.streak++
	} else {
		t.other, t.streak = now, 1
	}
	if t.streak >= streakSamples {
		t.limit = t.other
	}
	t.follow(s)
	t.holdOff = max(0, t.holdOff-1)

	if t.other == byClients && s.busyOf(t.least.writers) < calmShare {
		t.calm++
	} else {
		t.calm = 0
	}
	switch {
	case t.trial.turns > 0 && t.calm > 0:
		t.trial.turns = 0 // the load is gone, so nothing can be told
		t.adopt(t.trial.small)
	case t.trial.turns > 0:
		t.compare(float64(s.events) / s.span.Seconds())
	case t.calm >= calmSamples:
		t.adopt(t.least)
	case t.holdOff == 0 && s.events > 0:
		t.begin(s)
	}
}

// adopt leaves the wait as it is, since that follows the writes.
func (t *tuner) adopt(k knobs) { t.knobs.writers, t.knobs.maxEvents = k.writers, k.maxEvents }

// begin begins the next trial that is possible, if one is.
func (t *tuner) begin(s sample) {
	queue := s.waiting > 0 && t.limit != byClients
	for range kinds {
		next := t.knobs
		switch {
		case t.turn == moreWriters && queue && next.writers < t.most.writers:
			next.writers++
		case t.turn == fewerWriters && next.writers > t.least.writers:
			next.writers--
		case t.turn == largerBatches && queue && s.waiting >= next.maxEvents && next.maxEvents < t.most.maxEvents:
			next.maxEvents = min(2*next.maxEvents, t.most.maxEvents)
		case t.turn == smallerBatches && next.maxEvents > t.least.maxEvents:
			next.maxEvents = max(next.maxEvents/2, t.least.maxEvents)
		default:
			t.turn = (t.turn + 1) % kinds
			continue
		}
		t.trial = trial{turns: 2 * trialPairs, small: t.knobs, big: next, up: true}
		if next.writers < t.knobs.writers || next.maxEvents < t.knobs.maxEvents {
			t.trial.small, t.trial.big, t.trial.up = next, t.knobs, false
		}
		t.adopt(next)
		return
	}
}

// compare takes the rate of one sample of a trial, and ends it after the last turn.
func (t *tuner) compare(rate float64) {
	r := &t.trial
	if r.samples++; r.samples > 1 {
		r.rate += rate
	}
	if r.samples < turnSamples {
		return
	}
	big := t.knobs.writers == r.big.writers && t.knobs.maxEvents == r.big.maxEvents
	other := r.big
	if big {
		r.fast += r.rate
		other = r.small
	} else {
		r.slow += r.rate
	}
	if r.turns--; r.turns%2 == 0 && (big && r.rate > r.before || !big && r.rate < r.before) {
		r.bigWon++
	}
	r.before, r.rate, r.samples = r.rate, 0, 0
	if r.turns > 0 {
		t.adopt(other)
		return
	}
	better := r.bigWon == trialPairs && r.fast >= trialGain*r.slow
	if better {
		t.adopt(r.big)
	} else {
		t.adopt(r.small)
	}
	if better != r.up { // it stays as it was
		t.turn, t.holdOff = (t.turn+1)%kinds, holdSamples
	}
}

// follow lets the wait follow the time that a batch takes to write: waiting for company as long as that at most doubles
// it, and below full load a second writer then starts where the first takes longer than usual, not with every few events
// that arrive meanwhile. It stays where it is within a quarter, so that it does not move all the time.
func (t *tuner) follow(s sample) {
	if s.batches == 0 {
		return
	}
	if d := s.busy/time.Duration(s.batches) - t.knobs.maxWait; max(d, -d) > t.knobs.maxWait/4 {
		t.knobs.maxWait = min(max(t.knobs.maxWait+d/2, t.least.maxWait), t.most.maxWait)
	}
}
