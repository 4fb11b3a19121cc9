package deliver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sluice.example/sluice/pipeline"
)

const testSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// parse reads a destinations file whose environment has SECRET.
func parse(t testing.TB, text string) Destinations {
	t.Helper()
	ds, err := Parse("destinations.yaml", []byte(text), env("SECRET", testSecret))
	if err != nil {
		t.Fatal(err)
	}
	return ds
}

func env(pairs ...string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1], true
			}
		}
		return "", false
	}
}

// hook is a destination for a receiver of a test; more holds further settings, each line indented by four spaces.
func hook(name, url string, more ...string) string {
	return fmt.Sprintf("  - name: %s\n    url: %s\n    secret_env: SECRET\n    allow_private: true\n    %s\n", name,
		url, strings.Join(more, "\n    "))
}

func destinations(t testing.TB, list ...string) Destinations {
	return parse(t, "destinations:\n"+strings.Join(list, ""))
}

// receiver runs h on a port of its own.
func receiver(t testing.TB, h http.HandlerFunc) string {
	s := httptest.NewServer(h)
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	return s.URL
}

// fakeQueue is an outbox in memory, without fencing.
type fakeQueue struct {
	lease time.Duration

	mu       sync.Mutex
	due      []pipeline.Lease
	results  []pipeline.Result
	claims   [][]pipeline.Want
	failures int            // calls that fail from now on
	lost     map[int64]bool // messages that another worker took
	extended int
	finishes int
	begun    []int64
}

func (q *fakeQueue) Claim(_ context.Context, wants []pipeline.Want) ([]pipeline.Lease, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.claims = append(q.claims, slices.Clone(wants))
	if q.failures > 0 {
		q.failures--
		return nil, errors.New("no database")
	}
	left := map[string]int{}
	for _, w := range wants {
		left[w.Destination] = w.Room
	}
	var leases []pipeline.Lease
	q.due = slices.DeleteFunc(q.due, func(l pipeline.Lease) bool {
		if left[l.Destination] == 0 {
			return false
		}
		left[l.Destination]--
		l.Until = time.Now().Add(q.lease)
		l.Attempt++
		leases = append(leases, l)
		return true
	})
	return leases, nil
}

func (q *fakeQueue) Finish(_ context.Context, results []pipeline.Result) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.finishes++
	if q.failures > 0 {
		q.failures--
		return 0, errors.New("no database")
	}
	q.results = append(q.results, results...)
	return 0, nil
}

// Begin counts as the outbox does.
func (q *fakeQueue) Begin(_ context.Context, lease *pipeline.Lease) (bool, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.begun = append(q.begun, lease.ID)
	return !q.lost[lease.ID], nil
}

func (q *fakeQueue) Extend(_ context.Context, leases []pipeline.Lease) (map[int64]time.Time, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	ends := map[int64]time.Time{}
	for _, l := range leases {
		if !q.lost[l.ID] {
			ends[l.ID] = time.Now().Add(q.lease)
			q.extended++
		}
	}
	return ends, nil
}

// add makes n messages due; their ids count on.
func (q *fakeQueue) add(destination string, n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for range n {
		id := int64(len(q.due) + len(q.results) + 1)
		q.due = append(q.due, pipeline.Lease{Message: pipeline.Message{ID: id, Tenant: 1, Type: "welcome",
			Destination: destination, Rule: true,
			IdempotencyKey: pipeline.NewUUIDv4(), Payload: fmt.Appendf(nil, `{"n":%d}`, id)},
			Token: pipeline.NewUUIDv4()})
	}
}

// recorded returns the results so far.
func (q *fakeQueue) recorded() []pipeline.Result {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Clone(q.results)
}

// count is how many results have this status.
func (q *fakeQueue) count(status pipeline.DeliveryStatus) int {
	n := 0
	for _, r := range q.recorded() {
		if r.Status == status {
			n++
		}
	}
	return n
}

// running is a dispatcher at work.
type running struct {
	*Dispatcher
	stop func() // ends it, and waits for that
}

func start(t testing.TB, cfg Config, ds Destinations, q *fakeQueue) running {
	t.Helper()
	d, err := New(cfg, ds, q, q.lease, NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return running{d, run(t, d)}
}

// run runs a dispatcher until the end of the test or until stop, which waits for it.
func run(t testing.TB, d *Dispatcher) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			select {
			case err := <-ended:
				if err != nil {
					t.Errorf("Run = %v; want nil", err)
				}
			case <-time.After(time.Minute):
				t.Error("Run did not end within a minute")
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

// refusedAddress is a port that nobody listens on.
func refusedAddress(t testing.TB) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return "http://" + l.Addr().String()
}

func testMetrics() *Metrics { return NewMetrics(prometheus.NewRegistry()) }

var discard = slog.New(slog.DiscardHandler)
