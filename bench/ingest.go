package bench

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// connections is how many clients post requests of many events at a time.
const connections = 64

// ingestRun is what the paths of ingest share: two programs, the sides that use them, and the floor beside them.
type ingestRun struct {
	*lab
	clean *Events
	// plain has no rules and decided has; repeated sends some events twice, spreadOut has events of many days.
	plain, decided, repeated, spreadOut *side
	floor                               side
	// each is how long a side runs in a round.
	each time.Duration
}

// ingest compares the way from HTTP to COMMIT with raw COPY of the same rows into the same table: without rules, with
// rules, with rules and retries, and with events of many days. All take turns in every round, the floor too. Latency
// follows, at half of the rate that was reached with rules.
func (l *lab) ingest(ctx context.Context) (_ []Result, err error) {
	r := &ingestRun{lab: l, each: pick(l, 1500*time.Millisecond, 5*time.Second)}
	defer func() { err = errors.Join(err, r.stop()) }()
	if err := r.start(ctx); err != nil {
		return nil, err
	}
	rounds := pick(l, 3, 7)
	for round := range rounds {
		l.next("ingest, round %d of %d", round+1, rounds)
		if err := r.round(ctx); err != nil {
			return nil, err
		}
	}
	byPgx, err := l.pgxFloor(ctx, r.clean, r.each)
	if err != nil {
		return nil, err
	}
	results := r.results(byPgx)
	latency, err := l.latency(ctx, r.decided, spread(r.decided.rates).Median)
	return append(results, latency...), err
}

func (r *ingestRun) start(ctx context.Context) error {
	var errs [3]error
	var retried, old *Events
	r.clean, errs[0] = NewEvents(Shape{PerRequest: 100, Matching: 0.05})
	retried, errs[1] = NewEvents(Shape{PerRequest: 100, Matching: 0.05, Retries: 0.02})
	old, errs[2] = NewEvents(Shape{PerRequest: 100, Matching: 0.05, Days: days})
	if err := errors.Join(errs[:]...); err != nil {
		return err
	}
	if err := r.clean.prepareRows(ctx, r.db); err != nil {
		return err
	}
	rules, err := files(r.dir, "http://127.0.0.1:9", 8)
	if err != nil {
		return err
	}
	if r.plain, err = r.startSide(ctx, r.clean, connections, "--roles", "ingest"); err != nil {
		return err
	}
	if r.decided, err = r.startSide(ctx, r.clean, connections, append(rules, "--roles", "ingest")...); err != nil {
		return err
	}
	r.repeated = r.decided.with(retried)
	r.spreadOut = r.plain.with(old)
	for _, s := range r.sides() {
		if err := r.warm(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

func (r *ingestRun) sides() []*side { return []*side{r.plain, r.decided, r.repeated, r.spreadOut} }

func (r *ingestRun) stop() error {
	var errs []error
	for _, s := range []*side{r.decided, r.plain} {
		if s != nil {
			errs = append(errs, s.stop())
		}
	}
	return errors.Join(errs...)
}

// with is another side on the same program, with events of its own.
func (s *side) with(e *Events) *side {
	other := *s
	other.events, other.stages = e, map[string][]float64{}
	return &other
}

// round lets the floor and each side have a turn.
func (r *ingestRun) round(ctx context.Context) error {
	if err := r.db.reset(ctx); err != nil {
		return err
	}
	var rows int64
	var wall time.Duration
	spent, err := measure(r.db, 0, func() (err error) {
		rows, wall, err = rawCopy(ctx, r.db, r.clean, r.each)
		return err
	})
	if err != nil {
		return err
	}
	if stored, ids, err := r.db.stored(ctx); err != nil || stored != rows || ids != rows {
		return errors.Join(err, errors.New("bench: raw COPY stored another number of rows than it played"))
	}
	r.floor.rates = append(r.floor.rates, float64(rows)/wall.Seconds())
	r.floor.spent(spent.per(rows))
	for _, s := range r.sides() {
		_, err := s.round(ctx, r.db, func(w *load) (*tally, error) {
			w.url += "/v1/events"
			return w.max(ctx, r.each)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *ingestRun) results(byPgx Result) []Result {
	withoutRules := &Floor{Name: "no rules", rates: r.plain.rates, CPU: r.plain.medianCPU()}
	evaluation := r.decided.result("evaluation", "20 rules beside none: what deciding and recording add", withoutRules)
	const perEvent = "transaction_us_per_event"
	evaluation.Checks = []Check{{
		What:  "time in transactions per event, times that without rules",
		Got:   ratios(r.decided.stages[perEvent], r.plain.stages[perEvent]),
		Bound: 1.25,
	}}
	past := r.spreadOut.result("ingest-days",
		fmt.Sprintf("no rules, events spread over today and %d days before", days-1), withoutRules)
	past.Checks = []Check{{
		What:  "CPU of program and PostgreSQL, times that of today's events alone",
		Got:   ratios(r.spreadOut.bothCPU(), r.plain.bothCPU()),
		Bound: 1.3,
	}}
	return []Result{
		r.besideCopy(r.plain, byPgx, "ingest", "HTTP to COMMIT, 100 events a request, no rules", 1.15),
		r.besideCopy(r.decided, byPgx, "ingest-rules", "the same with 20 rules, 3 of which share 5 % of the events", 1.15),
		r.besideCopy(r.repeated, byPgx, "ingest-retries", "the same with 20 rules, and 2 % of the events sent twice", 1.6),
		evaluation,
		byPgx,
		past,
	}
}

// bothCPU is that of the program and of PostgreSQL, by round.
func (s *side) bothCPU() (sum []float64) {
	for i := range s.cpu.program {
		sum = append(sum, s.cpu.program[i]+s.cpu.postgres[i])
	}
	return sum
}

// besideCopy is the result of a side, with raw COPY as its floor.
func (r *ingestRun) besideCopy(s *side, byPgx Result, name, title string, mostPostgres float64) Result {
	res := s.result(name, title, &Floor{Name: "raw COPY, 2 connections", rates: r.floor.rates, CPU: r.floor.medianCPU()})
	of := res.Floor.Ratio
	if s.events.shape.Retries > 0 { // every batch takes the second path; only its cost in PostgreSQL is bounded
		res.Note = fmt.Sprintf("of raw COPY %s (%s-%s)", figure(of.Median), figure(of.Low), figure(of.High))
	} else {
		res.Checks = append(res.Checks, Check{What: "of raw COPY", Got: of, Bound: 0.7, Floor: true},
			Check{What: "program CPU", Got: spread(s.cpu.program), Unit: "us/event", Bound: 5})
		res.Note = fmt.Sprintf("of COPY by pgx from Go's types %s; that takes %s us of its own CPU",
			figure(res.Rate.Median/byPgx.Rate.Median), figure(byPgx.CPU.Generator))
	}
	if r.db.postmaster != 0 {
		res.Checks = append(res.Checks, Check{
			What:  "PostgreSQL CPU, times raw COPY's",
			Got:   ratios(s.cpu.postgres, r.floor.cpu.postgres),
			Bound: mostPostgres,
		})
	}
	return res
}

// pgxFloor is a row for information: the bound stands on the harder floor.
func (l *lab) pgxFloor(ctx context.Context, e *Events, d time.Duration) (Result, error) {
	l.next("COPY by pgx")
	var one side
	for range pick(l, 1, 3) {
		if err := l.db.reset(ctx); err != nil {
			return Result{}, err
		}
		var rows int64
		var wall time.Duration
		spent, err := measure(l.db, 0, func() (err error) {
			rows, wall, err = pgxCopy(ctx, l.db, e, d)
			return err
		})
		if err != nil {
			return Result{}, err
		}
		if stored, ids, err := l.db.stored(ctx); err != nil || stored != rows || ids != rows {
			return Result{}, errors.Join(err, errors.New("bench: COPY by pgx stored another number of rows than it copied"))
		}
		one.rates = append(one.rates, float64(rows)/wall.Seconds())
		one.spent(spent.per(rows))
	}
	return one.result("copy-pgx", "no program: the rows of raw COPY from Go's types by pgx's CopyFrom, whose CPU is "+
		"the generator's", nil), nil
}

func (l *lab) warm(ctx context.Context, s *side) error {
	if err := l.db.reset(ctx); err != nil {
		return err
	}
	s.events.begin()
	_, err := (&load{url: s.url + "/v1/events", events: s.events, connections: s.conns}).max(ctx, warmup)
	return err
}

// latency loads a program with half of the rate that it reached, in an open loop, and then with one event at a time.
func (l *lab) latency(ctx context.Context, s *side, most float64) ([]Result, error) {
	l.next("latency at half the rate")
	d := pick(l, 6*time.Second, 20*time.Second)
	half := &side{program: s.program, url: s.url, events: s.events, conns: 256, stages: map[string][]float64{}}
	t, err := half.round(ctx, l.db, func(w *load) (*tally, error) {
		w.url += "/v1/events"
		return w.paced(ctx, most/2, d)
	})
	if err != nil {
		return nil, err
	}
	half.latency = t.answers.summary()
	r := half.result("latency", "answers after COMMIT at half of the highest rate, open loop, 20 rules", nil)
	r.Checks = []Check{atMost("p50", half.latency.P50, 15), atMost("p99", half.latency.P99, 50)}
	r.Note = "the generator itself was late by " + figure(t.lateness.summary().P99) +
		" ms (p99), which is part of the figures"

	l.next("one event at a time")
	one, err := NewEvents(Shape{PerRequest: 1, Matching: 0.05})
	if err != nil {
		return nil, err
	}
	single := &side{program: s.program, url: s.url, events: one, conns: 1, stages: map[string][]float64{}}
	t, err = single.round(ctx, l.db, func(w *load) (*tally, error) { w.url += "/v1/events"; return w.max(ctx, d/4) })
	if err != nil {
		return nil, err
	}
	single.latency = t.answers.summary()
	alone := single.result("latency-alone", "one client, one event at a time: no wait for company", nil)
	// The answer can't come before COMMIT; twice its transaction is a guess at what the rest may take.
	alone.Checks = []Check{atMost("p50", single.latency.P50, 2*alone.Stages["transaction_ms"]+1)}
	return []Result{r, alone}, nil
}

func atMost(what string, ms, bound float64) Check {
	return Check{What: what, Got: Spread{ms, ms, ms}, Unit: "ms", Bound: bound}
}

// single compares requests of one event over 256 connections with a server that only parses and answers.
func (l *lab) single(ctx context.Context) (_ []Result, err error) {
	events, err := NewEvents(Shape{PerRequest: 1})
	if err != nil {
		return nil, err
	}
	floor, err := startProgram(ctx, l.Lab, l.dir, nil, "floor-server")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, floor.Stop()) }()
	own, err := l.startSide(ctx, events, 256, "--roles", "ingest")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, own.stop()) }()
	if err := l.warm(ctx, own); err != nil {
		return nil, err
	}
	rounds, d := pick(l, 3, 5), pick(l, 1500*time.Millisecond, 4*time.Second)
	var rates []float64
	var cpu side
	for round := range rounds {
		l.next("single events, round %d of %d", round+1, rounds)
		var t *tally
		spent, err := measure(l.db, floor.Pid, func() error {
			t, err = (&load{url: floor.URL, events: events, connections: 256}).max(ctx, d)
			return err
		})
		if err != nil {
			return nil, err
		}
		rates = append(rates, float64(t.stored)/t.wall.Seconds())
		cpu.spent(spent.per(t.stored))
		if _, err := own.round(ctx, l.db, func(w *load) (*tally, error) {
			w.url += "/v1/events"
			return w.max(ctx, d)
		}); err != nil {
			return nil, err
		}
	}
	r := own.result("ingest-single", "HTTP to COMMIT, one event a request, 256 connections",
		&Floor{Name: "parse and answer only", rates: rates, CPU: cpu.medianCPU()})
	r.Checks = []Check{{What: "of a server that only parses and answers", Got: r.Floor.Ratio, Bound: 0.5, Floor: true}}
	return []Result{r}, nil
}
