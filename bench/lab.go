package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sluice.example/sluice/internal/child"
)

// Programs are the paths of bin/pipeline, and of bin/lab, which plays the floors that are processes of their own.
type Programs struct{ Pipeline, Lab string }

// Options say how to run.
type Options struct {
	Programs
	// DatabaseURL is the server to run on; empty: a private one.
	DatabaseURL string
	// Quick takes shorter and fewer rounds: for a first look, with a wider spread.
	Quick bool
	// Progress is told what happens next, and how far the run is.
	Progress func(step, steps int, what string)
	// Proxy stands before the program's address where it is set; tests plant faults there.
	Proxy func(url string) (string, func())
	// Planted is run on the database before anything else; tests plant faults there.
	Planted func(ctx context.Context, db *Database) error
}

// lab is what all runs of one call share.
type lab struct {
	Options
	db   *Database
	dir  string
	step int
	all  int
	stop []func() error
}

func openLab(ctx context.Context, o Options, steps int) (*lab, error) {
	l := &lab{Options: o, all: steps}
	if l.Progress == nil {
		l.Progress = func(int, int, string) {}
	}
	dir, remove, err := scratch()
	if err != nil {
		return nil, err
	}
	l.dir, l.stop = dir, append(l.stop, remove)
	if l.db, err = OpenDatabase(ctx, o.DatabaseURL); err != nil {
		return nil, errors.Join(err, l.close())
	}
	l.stop = append(l.stop, l.db.Close)
	if o.Planted != nil {
		if err := o.Planted(ctx, l.db); err != nil {
			return nil, errors.Join(err, l.close())
		}
	}
	return l, nil
}

// close undoes what was started, the last first.
func (l *lab) close() error {
	var errs []error
	for i := len(l.stop) - 1; i >= 0; i-- {
		errs = append(errs, l.stop[i]())
	}
	return errors.Join(errs...)
}

func (l *lab) next(format string, args ...any) {
	l.Progress(l.step, l.all, fmt.Sprintf(format, args...))
	l.step++
}

// pick returns the value for a quick run or for a full one.
func pick[T any](l *lab, quick, full T) T {
	if l.Quick {
		return quick
	}
	return full
}

// side is one of several programs that take turns in the rounds of a run.
type side struct {
	program *Program
	url     string
	release func()
	events  *Events
	conns   int

	rates             []float64
	cpu               struct{ program, postgres, generator []float64 }
	books             Books
	stages            map[string][]float64
	latency           *Latency
	wal, disk, outbox []float64 // bytes per event
	memory            int64
}

// startSide starts a program that takes e, behind the proxy where there is one.
func (l *lab) startSide(ctx context.Context, e *Events, conns int, args ...string) (*side, error) {
	p, err := startPipeline(ctx, l.Pipeline, l.dir, l.db, args...)
	if err != nil {
		return nil, err
	}
	s := &side{program: p, url: p.URL, events: e, conns: conns, stages: map[string][]float64{}, release: func() {}}
	if l.Proxy != nil {
		s.url, s.release = l.Proxy(p.URL)
	}
	return s, nil
}

func (s *side) stop() error {
	s.release()
	return s.program.Stop()
}

// round resets the database, loads the program by work, and reconciles. It returns the rate of acknowledged events.
func (s *side) round(ctx context.Context, db *Database, work func(*load) (*tally, error)) (*tally, error) {
	if err := db.reset(ctx); err != nil {
		return nil, err
	}
	s.events.begin()
	before, err := s.program.books(ctx, "")
	if err != nil {
		return nil, err
	}
	if before, err = s.program.books(ctx, before.Mark); err != nil { // what is stored counts from here
		return nil, err
	}
	metrics, err := s.program.Metrics(ctx)
	if err != nil {
		return nil, err
	}
	volume, err := db.volume(ctx)
	if err != nil {
		return nil, err
	}
	var t *tally
	spent, err := measure(db, s.program.Pid, func() error {
		t, err = work(&load{url: s.url, events: s.events, connections: s.conns})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%w\n%s", err, s.program.Tail(5))
	}
	s.memory = max(s.memory, memoryBytes(s.program.Pid))
	after, err := s.program.Metrics(ctx)
	if err != nil {
		return nil, err
	}
	written, err := db.volume(ctx)
	if err != nil {
		return nil, err
	}
	books, err := reconcile(ctx, db, s.program, before, t)
	if err != nil {
		return nil, err
	}
	s.books.merge(books)
	n := t.acknowledged()
	if n == 0 {
		return nil, fmt.Errorf("bench: none of %d events was acknowledged: %s\n%s", t.sent, t.refusal, s.program.Tail(5))
	}
	s.rates = append(s.rates, float64(n)/t.wall.Seconds())
	s.spent(spent.per(n))
	s.stage(metrics, after, n)
	s.wal = append(s.wal, float64(written.wal-volume.wal)/float64(max(1, n)))
	s.disk = append(s.disk, float64(written.events-volume.events)/float64(max(1, n)))
	const decided = "sluice_evaluate_decided_messages_total"
	messages := after.Sum(decided) - metrics.Sum(decided)
	if messages > 0 {
		s.outbox = append(s.outbox, float64(written.outbox-volume.outbox)/messages)
	}
	return t, nil
}

func (s *side) spent(c CPU) {
	s.cpu.program = append(s.cpu.program, c.Program)
	s.cpu.postgres = append(s.cpu.postgres, c.PostgreSQL)
	s.cpu.generator = append(s.cpu.generator, c.Generator)
}

func (s *side) medianCPU() CPU {
	return CPU{spread(s.cpu.program).Median, spread(s.cpu.postgres).Median, spread(s.cpu.generator).Median}
}

// stage keeps what the program's metrics tell of the round.
func (s *side) stage(before, after child.Metrics, events int64) {
	grown := func(name string) float64 { return after.Sum(name) - before.Sum(name) }
	mean := func(name string) float64 { return grown(name+"_sum") / max(1, grown(name+"_count")) }
	add := func(name string, v float64) { s.stages[name] = append(s.stages[name], v) }
	add("batch_events", mean("sluice_buffer_batch_events"))
	add("buffer_wait_ms", 1000*mean("sluice_buffer_wait_seconds"))
	add("transaction_ms", 1000*mean("sluice_copyin_attempt_seconds"))
	add("commit_ms", 1000*mean("sluice_copyin_commit_seconds"))
	add("transaction_us_per_event", 1e6*grown("sluice_copyin_attempt_seconds_sum")/float64(max(1, events)))
}

func (s *side) result(name, title string, floor *Floor) Result {
	r := Result{Name: name, Title: title, Unit: "event", Rounds: len(s.rates), Rate: spread(s.rates), CPU: s.medianCPU(),
		Latency: s.latency, Books: s.books, Stages: map[string]float64{}}
	if floor != nil {
		own := *floor
		own.Rate, own.Ratio = spread(floor.rates), ratios(s.rates, floor.rates)
		r.Floor = &own
	}
	for name, v := range s.stages {
		r.Stages[name] = spread(v).Median
	}
	return r
}

// ratios divides pairs of rounds, which ran right after each other.
func ratios(a, b []float64) Spread {
	var r []float64
	for i := range min(len(a), len(b)) {
		if b[i] > 0 {
			r = append(r, a[i]/b[i])
		}
	}
	return spread(r)
}

// warmup is how long every side runs before its first round counts.
const warmup = 500 * time.Millisecond
