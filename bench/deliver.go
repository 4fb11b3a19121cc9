package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sluice.example/sluice/pipeline"
	"sluice.example/sluice/pipeline/claim"
)

// destinationConns is the concurrency of the runs' destination, and of the bare sender beside it.
const destinationConns = 64

const promiseSQL = `
insert into outbox (tenant_id, type, subject_key, dedupe_key, destination, payload, rule_id, run_after)
select 1, 'rule-0', 'u-' || i, gen_random_uuid()::text, 'receiver',
    jsonb_build_object('user_id', 'u-' || i, 'event_id', gen_random_uuid(), 'price_cents', i), 'rule-0',
    now() + $2::float8 * interval '1 second'
from generate_series(1, $1::bigint) i`

// promise makes messages that are due after a while, and leaves the table as autovacuum would.
func (db *Database) promise(ctx context.Context, n int, due time.Duration) error {
	if err := db.reset(ctx); err != nil {
		return err
	}
	if _, err := db.Pool.Exec(ctx, promiseSQL, n, due.Seconds()); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	if _, err := db.Pool.Exec(ctx, `vacuum analyze outbox`); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	return nil
}

// claim measures leasing and recording alone, without a network, beside two plain updates of the same rows.
func (l *lab) claim(ctx context.Context) ([]Result, error) {
	const batch = 1000
	rounds, n := pick(l, 3, 5), pick(l, 10_000, 40_000)
	own, floor := &side{stages: map[string][]float64{}}, &side{}
	queue, err := claim.New(claim.DefaultConfig(), l.db.Pool, claim.NewMetrics(prometheus.NewRegistry()),
		slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	var books Books
	for round := range rounds {
		l.next("claims, round %d of %d", round+1, rounds)
		if err := l.db.promise(ctx, n, 0); err != nil {
			return nil, err
		}
		spent, err := measure(l.db, 0, func() error { return l.db.plainUpdates(ctx, n, batch) })
		if err != nil {
			return nil, err
		}
		floor.rates = append(floor.rates, float64(n)/spent.wall.Seconds())
		floor.spent(spent.per(int64(n)))

		if err := l.db.promise(ctx, n, 0); err != nil {
			return nil, err
		}
		leased := map[int64]int{}
		spent, err = measure(l.db, 0, func() error { return drainQueue(ctx, queue, batch, leased) })
		if err != nil {
			return nil, err
		}
		own.rates = append(own.rates, float64(n)/spent.wall.Seconds())
		own.spent(spent.per(int64(n)))
		books.merge(Books{Sent: int64(n), Acknowledged: int64(n), Lost: int64(n - len(leased)), Doubled: doubled(leased)})
		sent, err := l.db.finished(ctx)
		if err != nil {
			return nil, err
		}
		books.fault(sent != int64(n), "%d of %d messages are recorded as sent", sent, n)
	}
	own.books = books
	r := own.result("claim", "leasing due messages and recording results, 1,000 at a time, one worker",
		&Floor{Name: "two plain updates of the same rows", rates: floor.rates, CPU: floor.medianCPU()})
	r.Unit = "message"
	r.Note = "the claimer runs inside the generator; no floor is asked for"
	return []Result{r}, nil
}

const plainLeaseSQL = `
update outbox set locked_until = now() + interval '1 minute', lease_token = gen_random_uuid(), attempts = attempts + 1
where message_id between $1 and $2`

const plainFinishSQL = `
update outbox set status = 'sent', finished_at = now(), locked_until = null, lease_token = null
where message_id between $1 and $2`

// plainUpdates is the floor of claims: the same two changes of each row, by ranges of ids.
func (db *Database) plainUpdates(ctx context.Context, n, batch int) error {
	var first int64
	if err := db.Pool.QueryRow(ctx, `select min(message_id) from outbox`).Scan(&first); err != nil {
		return err
	}
	for i := first; i < first+int64(n); i += int64(batch) {
		for _, sql := range []string{plainLeaseSQL, plainFinishSQL} {
			if _, err := db.Pool.Exec(ctx, sql, i, i+int64(batch)-1); err != nil {
				return err
			}
		}
	}
	return nil
}

// drainQueue leases and finishes until nothing is due, and counts how often each message was leased.
func drainQueue(ctx context.Context, queue *claim.Queue, batch int, leased map[int64]int) error {
	for {
		leases, err := queue.Claim(ctx, []pipeline.Want{{Destination: "receiver", Room: batch}})
		if err != nil || len(leases) == 0 {
			return err
		}
		results := make([]pipeline.Result, len(leases))
		for i, lease := range leases {
			leased[lease.ID]++
			results[i] = pipeline.Result{
				MessageID:  lease.ID,
				Token:      lease.Token,
				Status:     pipeline.Sent,
				HTTPStatus: 200,
				StartedAt:  time.Now(),
				Latency:    time.Millisecond,
			}
		}
		if late, err := queue.Finish(ctx, results); err != nil || late > 0 {
			return errors.Join(err, fmt.Errorf("bench: %d results came late", late))
		}
	}
}

func doubled[K comparable](times map[K]int) (n int64) {
	for _, t := range times {
		n += int64(t - 1)
	}
	return n
}

// finished counts the messages that are recorded as sent.
func (db *Database) finished(ctx context.Context) (n int64, err error) {
	err = db.Pool.QueryRow(ctx, `select count(*) from outbox where status = 'sent'`).Scan(&n)
	return n, err
}

// awaitSent waits until no message is left to be sent. It returns with an error where nothing moves for a minute.
// Before the receiver got as many requests as are expected it does not ask the database, whose work for the answer
// would be measured too.
func (db *Database) awaitSent(ctx context.Context, r *receiver, expected int64) error {
	const openSQL = `select exists (select from outbox where status in ('pending', 'failed'))`
	moved, last := time.Now(), int64(-1)
	for open := true; open; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
		requests, _ := r.counts()
		if requests != last {
			moved, last = time.Now(), requests
		} else if time.Since(moved) > time.Minute {
			return fmt.Errorf("bench: nothing was delivered for a minute, %d requests so far", last)
		}
		if requests < expected {
			continue
		}
		if err := db.Pool.QueryRow(ctx, openSQL).Scan(&open); err != nil {
			return err
		}
	}
	return nil
}

// delivery measures due rows until they are sent and recorded, beside a bare sender without a database.
func (l *lab) delivery(ctx context.Context) (_ []Result, err error) {
	sink, err := startReceiver(0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, sink.stop()) }()
	args, err := files(l.dir, sink.url, destinationConns)
	if err != nil {
		return nil, err
	}
	p, err := startPipeline(ctx, l.Pipeline, l.dir, l.db, append(args, "--roles", "deliver", "--deliver.poll-interval",
		"10ms")...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.Stop()) }()
	rounds, n := pick(l, 3, 5), pick(l, 10_000, 40_000)
	own, floor := &side{stages: map[string][]float64{}}, &side{}
	for round := -1; round < rounds; round++ { // the first is to warm up
		if round >= 0 {
			l.next("delivery, round %d of %d", round+1, rounds)
		}
		bare, err := l.sendBare(ctx, sink.url, n)
		if err != nil {
			return nil, err
		}
		rate, cpu, books, err := l.deliverOnce(ctx, p, sink, n)
		if err != nil {
			return nil, err
		}
		if round < 0 {
			continue
		}
		floor.rates = append(floor.rates, bare.rate)
		floor.spent(bare.cpu)
		own.rates = append(own.rates, rate)
		own.spent(cpu)
		own.books.merge(books)
	}
	r := own.result("delivery", fmt.Sprintf("due rows to sent and recorded, signed POST, local receiver, %d connections",
		destinationConns),
		&Floor{Name: "bare signing sender, no database", rates: floor.rates, CPU: floor.medianCPU()})
	r.Unit = "message"
	r.Checks = []Check{{What: "of a bare sender", Got: r.Floor.Ratio, Bound: 1.0 / 3, Floor: true}}
	return []Result{r}, nil
}

type bareRun struct {
	rate float64
	cpu  CPU
}

// sendBare runs the bare sender as a process of its own, since the program is one too.
func (l *lab) sendBare(ctx context.Context, url string, n int) (b bareRun, err error) {
	cmd := exec.CommandContext(ctx, l.Lab, "floor-sender", "--url", url, "--messages", strconv.Itoa(n), "--connections",
		strconv.Itoa(destinationConns))
	var out []byte
	spent, err := measure(l.db, 0, func() error {
		out, err = cmd.Output()
		return err
	})
	if err != nil {
		return b, fmt.Errorf("bench: bare sender: %w", err)
	}
	var said struct {
		Seconds    float64
		CPUSeconds float64 `json:"cpu_seconds"`
	}
	if err := json.Unmarshal(out, &said); err != nil {
		return b, fmt.Errorf("bench: bare sender: %w", err)
	}
	b.rate, b.cpu = float64(n)/said.Seconds, spent.per(int64(n))
	b.cpu.Program, b.cpu.PostgreSQL = said.CPUSeconds*1e6/float64(n), 0
	return b, nil
}

// promiseAhead makes n messages that fall due all at once, resets r, and returns when they do.
func (db *Database) promiseAhead(ctx context.Context, r *receiver, n int) error {
	const leftSQL = `select extract(epoch from min(run_after) - now())::float8 from outbox`
	left := -1.0
	for due := time.Second + time.Duration(n)*100*time.Microsecond; left < 0; due *= 2 { // until there was time enough
		if err := db.promise(ctx, n, due); err != nil {
			return err
		}
		if err := db.Pool.QueryRow(ctx, leftSQL).Scan(&left); err != nil {
			return fmt.Errorf("bench: %w", err)
		}
	}
	r.reset(nil)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Duration(left * float64(time.Second))):
		return nil
	}
}

// deliverOnce makes n messages and waits until the program has sent and recorded them.
func (l *lab) deliverOnce(ctx context.Context, p *Program, sink *receiver, n int) (rate float64, cpu CPU, books Books,
	err error) {
	if err := l.db.promiseAhead(ctx, sink, n); err != nil {
		return 0, cpu, books, err
	}
	spent, err := measure(l.db, p.Pid, func() error { return l.db.awaitSent(ctx, sink, int64(n)) })
	if err != nil {
		return 0, cpu, books, fmt.Errorf("%w\n%s", err, p.Tail(5))
	}
	requests, messages := sink.counts()
	sent, err := l.db.finished(ctx)
	if err != nil {
		return 0, cpu, books, err
	}
	books = Books{Sent: int64(n), Acknowledged: sent, Lost: max(0, sent-messages), Doubled: requests - messages}
	books.fault(sent != int64(n), "%d of %d messages are recorded as sent", sent, n)
	return float64(n) / spent.wall.Seconds(), spent.per(int64(n)), books, nil
}

// trip measures from the post of an event that matches to its message at the receiver: under load, and at idle.
func (l *lab) trip(ctx context.Context, rate float64) (_ []Result, err error) {
	sink, err := startReceiver(0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, sink.stop()) }()
	args, err := files(l.dir, sink.url, destinationConns)
	if err != nil {
		return nil, err
	}
	measured := func(name, title string, shape Shape, rate float64, d time.Duration, most float64) (r Result, err error) {
		events, err := NewEvents(shape)
		if err != nil {
			return r, err
		}
		s, err := l.startSide(ctx, events, connections, args...)
		if err != nil {
			return r, err
		}
		defer func() { err = errors.Join(err, s.stop()) }()
		if err := l.warm(ctx, s); err != nil {
			return r, err
		}
		if err := l.db.awaitSent(ctx, sink, 0); err != nil {
			return r, err
		}
		l.next("%s", title)
		way := &journey{events: events, times: newHistogram()}
		sink.reset(way.arrived)
		if _, err := s.round(ctx, l.db, func(w *load) (*tally, error) {
			w.url, w.due = w.url+"/v1/events", way.due
			t, err := w.paced(ctx, rate, d)
			if err != nil {
				return t, err
			}
			return t, l.db.awaitSent(ctx, sink, 0)
		}); err != nil {
			return r, err
		}
		requests, messages := sink.counts()
		sent, err := l.db.finished(ctx)
		if err != nil {
			return r, err
		}
		s.books.Lost += max(0, sent-messages)
		s.books.Doubled += requests - messages
		s.books.fault(way.unknown > 0, "%d messages arrived that nobody asked for", way.unknown)
		s.latency = way.times.summary()
		r = s.result(name, title, nil)
		r.Note = fmt.Sprintf("%d messages, latency counted from when the post was due to the arrival at the receiver",
			messages)
		if most > 0 {
			r.Checks = []Check{atMost("p99", s.latency.P99, most)}
		}
		return r, nil
	}
	d := pick(l, 5*time.Second, 20*time.Second)
	busy, err := measured("trip", "post to receiver at a quarter of the highest ingest rate, 5 % matching",
		Shape{PerRequest: 100, Matching: 0.05}, rate/4, d, 0)
	if err != nil {
		return nil, err
	}
	idle, err := measured("trip-idle", "post to receiver at 50 events a second, all matching",
		Shape{PerRequest: 1, Matching: 1}, 50, d, 20)
	return []Result{busy, idle}, err
}

// journey knows when the post of each event was due, and records how long its message was on the way.
type journey struct {
	events *Events
	times  *histogram

	mu       sync.Mutex
	first    int64
	start    time.Time
	interval time.Duration
	unknown  int
}

func (j *journey) due(first int64, start time.Time, interval time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.first, j.start, j.interval = first, start, interval
}

func (j *journey) arrived(id pipeline.UUID, at time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	event, ok := j.events.index(id)
	request := event/int64(j.events.shape.PerRequest) - j.first
	if !ok || request < 0 {
		j.unknown++
		return
	}
	j.times.add(at.Sub(j.start.Add(time.Duration(request) * j.interval)))
}
