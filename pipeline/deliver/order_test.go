package deliver_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline/claim"
	"sluice.example/sluice/pipeline/deliver"
)

// sleepyNode is a process that looks for messages only when it is woken: its poll interval is longer than any test.
func sleepyNode(t *testing.T, pool *pgxpool.Pool, ds deliver.Destinations) (d *deliver.Dispatcher, stop func()) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	q, err := claim.New(claim.DefaultConfig(), pool, claim.NewMetrics(prometheus.NewRegistry()), log)
	if err != nil {
		t.Fatal(err)
	}
	n := claim.NewNotifier(pool, claim.NewNotifierMetrics(prometheus.NewRegistry()), log)
	q.OnPassed(func(bool) { n.Notify() })
	cfg := deliver.DefaultConfig()
	cfg.PollInterval = 24 * time.Hour
	d, err = deliver.New(cfg, ds, q, claim.DefaultConfig().Lease, deliver.NewMetrics(prometheus.NewRegistry()), log)
	if err != nil {
		t.Fatal(err)
	}
	delivering, stopDelivering := context.WithCancel(context.Background())
	notifying, stopNotifying := context.WithCancel(context.Background())
	var dispatcher, notifier sync.WaitGroup
	dispatcher.Go(func() { _ = d.Run(delivering) })
	notifier.Go(func() { _ = n.Run(notifying, d.Nudge) })
	stop = func() { stopDelivering(); dispatcher.Wait() }
	t.Cleanup(func() { stop(); stopNotifying(); notifier.Wait() })
	return d, stop
}

// insertOf adds n messages of a subject, numbered from 1.
func insertOf(t *testing.T, pool *pgxpool.Pool, subject string, n int) {
	t.Helper()
	exec(t, pool, `insert into outbox (tenant_id, type, subject_key, dedupe_key, destination, payload, rule_id)
		select 1, 'welcome', $1, $1 || ':' || i, 'crm', to_jsonb($1 || i), 'welcome' from generate_series(1, $2) i`,
		subject, n)
}

// journal is a receiver that notes what it gets and answers by the last number of the body.
type journal struct {
	mu     sync.Mutex
	got    []string
	answer func(number string) int
}

func (j *journal) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	_, number, _ := strings.Cut(string(body), `"data":`)
	number = strings.Trim(number, "}\"")
	j.mu.Lock()
	j.got = append(j.got, number)
	j.mu.Unlock()
	if j.answer != nil {
		w.WriteHeader(j.answer(number))
	}
}

func (j *journal) numbers() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.got)
}

func (j *journal) await(t *testing.T, want ...string) {
	t.Helper()
	pgtest.Eventually(t, fmt.Sprintf("the receiver has got %v", want),
		func() bool { return len(j.numbers()) >= len(want) }, func() any { return j.numbers() })
	if got := j.numbers(); !slices.Equal(got, want) {
		t.Fatalf("the receiver got %v; want %v", got, want)
	}
}

func (j *journal) serve(t *testing.T) (url string) {
	s := httptest.NewServer(j)
	t.Cleanup(s.Close)
	return s.URL
}

// A subject's next message is sent when the one before it was recorded, and not when the next poll finds it.
func TestNextOfASubjectWaitsForNoPoll(t *testing.T) {
	pool := pgtest.New(t)
	var j journal
	insertOf(t, pool, "a", 20)
	sleepyNode(t, pool, hook(t, j.serve(t), "order: {by: subject_key, dead: block}"))
	var want []string
	for i := range 20 {
		want = append(want, fmt.Sprint("a", i+1))
	}
	j.await(t, want...)
}

// The same where the one before it dies and is skipped.
func TestNextOfASubjectAfterADeadOneWaitsForNoPoll(t *testing.T) {
	pool := pgtest.New(t)
	j := journal{answer: func(number string) int {
		if number == "a1" {
			return 410
		}
		return 200
	}}
	insertOf(t, pool, "a", 3)
	sleepyNode(t, pool, hook(t, j.serve(t), "order: {by: subject_key, dead: skip}"))
	j.await(t, "a1", "a2", "a3")
}

// The same where an operator discards or retries the one that holds the others up.
func TestOperatorsChangeOfTheFirstWakesTheNext(t *testing.T) {
	for _, change := range []string{"discard", "retry"} {
		t.Run(change, func(t *testing.T) {
			pool := pgtest.New(t)
			var j journal
			insertOf(t, pool, "a", 3)
			exec(t, pool, `update outbox set status = 'dead', finished_at = now() where dedupe_key = 'a:1'`)
			d, _ := sleepyNode(t, pool, hook(t, j.serve(t), "order: {by: subject_key, dead: block}"))
			insertOf(t, pool, "b", 1)
			d.Nudge()
			j.await(t, "b1") // the claim saw the others
			f := claim.Filter{Statuses: []string{"dead"}}
			apply, want := claim.Discard, []string{"b1", "a2", "a3"}
			if change == "retry" {
				apply, want = claim.Retry, []string{"b1", "a1", "a2", "a3"}
			}
			if step, err := apply(t.Context(), pool, f, 0, 10); err != nil || step.Changed != 1 {
				t.Fatalf("%s = %+v, %v; want one changed", change, step, err)
			}
			j.await(t, want...)
		})
	}
}

// The same where another node sent the one before it, and sends nothing more.
func TestNextOfASubjectAfterOneOfAnotherNode(t *testing.T) {
	pool := pgtest.New(t)
	release := make(chan struct{})
	var once sync.Once
	j := journal{answer: func(number string) int {
		if number == "a1" {
			<-release
		}
		return 200
	}}
	insertOf(t, pool, "a", 2)
	ds := hook(t, j.serve(t), "order: {by: subject_key, dead: block}")
	t.Cleanup(func() { once.Do(func() { close(release) }) })
	_, stop := sleepyNode(t, pool, ds)
	j.await(t, "a1")
	other, _ := sleepyNode(t, pool, ds)
	other.Nudge()
	insertOf(t, pool, "b", 1)
	until(t, pool, 1, `select count(*) from outbox where status = 'sent' and dedupe_key = 'b:1'`,
		`select pg_notify('sluice_due', 'test')`)
	stopped := make(chan struct{})
	go func() { stop(); close(stopped) }()
	once.Do(func() { close(release) })
	<-stopped
	j.await(t, "a1", "b1", "a2")
}
