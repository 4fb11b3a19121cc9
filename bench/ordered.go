package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"sluice.example/sluice/pipeline"
)

// orderedSQL makes $1 messages of $2 subjects in turn. The event id of each holds its number.
const orderedSQL = `
insert into outbox (tenant_id, type, subject_key, dedupe_key, destination, payload, rule_id)
select 1, 'rule-0', 'u-' || i % $2::bigint, gen_random_uuid()::text, 'receiver',
    jsonb_build_object('event_id', ('00000000-0000-8000-8000-' || lpad(to_hex(i), 12, '0'))::uuid), 'rule-0'
from generate_series(1, $1::bigint) i`

// ordered measures a destination that keeps the order of each subject: from the first message's arrival to the last's.
// With one subject that is the time of one message after the other; with 1,000 there is something to do meanwhile.
func (l *lab) ordered(ctx context.Context) (results []Result, err error) {
	sink, err := startReceiver(0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, sink.stop()) }()
	args, err := files(l.dir, sink.url, destinationConns)
	if err != nil {
		return nil, err
	}
	secretFile, err := write(l.dir, "secret", secret)
	if err != nil {
		return nil, err
	}
	destinations, err := write(l.dir, "ordered.yaml", strings.NewReplacer(
		"secret_file: secret", "secret_file: '"+secretFile+"', order: {by: subject_key, dead: block}",
	).Replace(destinationsFile(sink.url, destinationConns)))
	if err != nil {
		return nil, err
	}
	args = append(args, "--destinations", destinations, "--roles", "deliver")
	p, err := startPipeline(ctx, l.Pipeline, l.dir, l.db, args...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.Stop()) }()
	for _, run := range []struct {
		name, title string
		subjects, n int64
	}{
		{"ordered-1", "due rows of one subject to sent and recorded, one after the other", 1, pick(l, int64(300), 2000)},
		{"ordered-1000", "the same of 1,000 subjects, each in its order", 1000, pick(l, int64(5000), 20_000)},
	} {
		s := &side{stages: map[string][]float64{}}
		for round := range orderedRounds(l) {
			l.next("%s, round %d of %d", run.name, round+1, orderedRounds(l))
			if err := l.orderedOnce(ctx, p, sink, s, run.subjects, run.n); err != nil {
				return nil, err
			}
		}
		r := s.result(run.name, run.title, nil)
		r.Unit = "message"
		results = append(results, r)
	}
	return results, nil
}

func orderedRounds(l *lab) int { return pick(l, 2, 5) }

// orderedOnce makes n messages of a number of subjects, and waits until all were sent and recorded.
func (l *lab) orderedOnce(ctx context.Context, p *Program, sink *receiver, s *side, subjects, n int64) error {
	if err := l.db.reset(ctx); err != nil {
		return err
	}
	seen := &sequence{last: map[int64]int64{}, subjects: subjects}
	sink.reset(seen.arrived)
	spent, err := measure(l.db, p.Pid, func() error {
		if _, err := l.db.Pool.Exec(ctx, orderedSQL, n, subjects); err != nil {
			return fmt.Errorf("bench: %w", err)
		}
		return l.db.awaitSent(ctx, sink, n)
	})
	if err != nil {
		return fmt.Errorf("%w\n%s", err, p.Tail(5))
	}
	requests, messages := sink.counts()
	sent, err := l.db.finished(ctx)
	if err != nil {
		return err
	}
	books := Books{Sent: n, Acknowledged: sent, Lost: max(0, n-messages), Doubled: requests - messages}
	books.fault(sent != n, "%d of %d messages are recorded as sent", sent, n)
	seen.mu.Lock()
	defer seen.mu.Unlock()
	books.fault(seen.crossed > 0, "%d messages arrived after a later one of their subject", seen.crossed)
	s.books.merge(books)
	s.rates = append(s.rates, float64(n)/seen.end.Sub(seen.begin).Seconds())
	s.spent(spent.per(n))
	return nil
}

// sequence checks that the messages of each subject arrive in the order of their numbers.
type sequence struct {
	subjects int64

	mu         sync.Mutex
	last       map[int64]int64 // by subject
	crossed    int
	begin, end time.Time
}

func (s *sequence) arrived(event pipeline.UUID, at time.Time) {
	number := int64(binary.BigEndian.Uint64(event[8:]) & (1<<48 - 1))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.begin.IsZero() {
		s.begin = at
	}
	s.end = at
	subject := number % s.subjects
	if number < s.last[subject] {
		s.crossed++
	}
	s.last[subject] = max(s.last[subject], number)
}
