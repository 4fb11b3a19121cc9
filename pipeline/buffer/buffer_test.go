package buffer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"sluice.example/sluice/pipeline"
)

// named makes n events whose names say which they are.
func named(prefix string, n int) []pipeline.Event {
	events := make([]pipeline.Event, n)
	for i := range events {
		events[i] = pipeline.Event{Tenant: 1, Name: fmt.Sprintf("%s-%d", prefix, i)}
	}
	return events
}

// echo is a writer whose verdict on an event names it.
func echo(events []pipeline.Event) []pipeline.Verdict {
	verdicts := make([]pipeline.Verdict, len(events))
	for i := range events {
		verdicts[i] = pipeline.Verdict{Outcome: pipeline.Rejected, Reason: events[i].Name}
	}
	return verdicts
}

func checkEcho(t *testing.T, events []pipeline.Event, verdicts []pipeline.Verdict) {
	t.Helper()
	if len(verdicts) != len(events) {
		t.Errorf("%d verdicts for %d events", len(verdicts), len(events))
		return
	}
	for i := range events {
		if verdicts[i].Reason != events[i].Name {
			t.Errorf("verdict %d is that of %q, want %q", i, verdicts[i].Reason, events[i].Name)
		}
	}
}

// start runs a buffer inside a synctest bubble; stop ends Run and gives its error.
func start(t *testing.T, cfg Config, write WriteFunc) (b *Buffer, stop func() error) {
	t.Helper()
	b, err := New(cfg, write, NewMetrics(prometheus.NewRegistry()))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	return b, func() error { cancel(); return <-ended }
}

func (b *Buffer) seals(t trigger) float64 {
	return testutil.ToFloat64(b.m.sealed.WithLabelValues(string(t)))
}

// checkEmpty holds that nothing is left in the books and that no memory is reserved.
func checkEmpty(t *testing.T, b *Buffer) {
	t.Helper()
	if b.Fill() != 0 {
		t.Errorf("%.4f of the memory is still reserved at the end, want 0", b.Fill())
	}
	if n := testutil.ToFloat64(b.m.inFlight); n != 0 {
		t.Errorf("%v events in flight at the end, want 0", n)
	}
}

func TestLoneRequestWaitsForNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultConfig()
		cfg.MaxWait = time.Hour
		b, stop := start(t, cfg, func(_ context.Context, events []pipeline.Event) ([]pipeline.Verdict, error) {
			time.Sleep(3 * time.Millisecond)
			return echo(events), nil
		})
		begin := time.Now()
		for range 10 {
			events := named("lone", 1)
			verdicts, err := b.Add(t.Context(), events)
			if err != nil {
				t.Fatal(err)
			}
			checkEcho(t, events, verdicts)
		}
		if took := time.Since(begin); took != 30*time.Millisecond {
			t.Errorf("10 requests one after the other took %s, want 30ms: the writes and nothing else", took)
		}
		if b.seals(byIdle) != 10 {
			t.Errorf("%v idle seals, want 10", b.seals(byIdle))
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		checkEmpty(t, b)
	})
}

func TestSeals(t *testing.T) {
	size := func(n int) int { e := pipeline.Event{Name: "x-0"}; return n * e.Size() }
	for _, c := range []struct {
		trigger trigger
		set     func(*Config)
		sizes   []int // requests while the first batch is being written
		want    []int // events per batch after it
	}{
		{byEvents, func(c *Config) { c.MaxEvents = 10 }, []int{4, 6, 1}, []int{10, 1}},
		{byEvents, func(c *Config) { c.MaxEvents = 10 }, []int{4, 7}, []int{4, 7}}, // never split
		{byEvents, func(c *Config) { c.MaxEvents = 10 }, []int{25}, []int{25}},
		{byBytes, func(c *Config) { c.MaxBatchBytes = size(10) }, []int{4, 6, 1}, []int{10, 1}},
		{byBytes, func(c *Config) { c.MaxBatchBytes = size(10) }, []int{4, 7}, []int{4, 7}},
		{byAge, func(c *Config) { c.MaxWait = time.Millisecond; c.Writers = 2 }, []int{4, 6}, []int{10}},
		{byDrain, func(c *Config) {}, []int{4, 6}, []int{10}},
	} {
		t.Run(fmt.Sprintf("%s %v", c.trigger, c.sizes), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := DefaultConfig()
				cfg.Writers, cfg.MaxWait = 1, time.Hour
				c.set(&cfg)
				var mu sync.Mutex
				var got []int
				b, stop := start(t, cfg, func(_ context.Context, events []pipeline.Event) ([]pipeline.Verdict, error) {
					mu.Lock()
					got = append(got, len(events))
					mu.Unlock()
					time.Sleep(time.Second)
					return echo(events), nil
				})
				if err := b.AddAsync(named("first", 1)); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				for _, n := range c.sizes {
					if err := b.AddAsync(named("x", n)); err != nil {
						t.Fatal(err)
					}
				}
				if c.trigger == byAge {
					time.Sleep(2 * time.Millisecond)
				}
				if err := stop(); err != nil {
					t.Error(err)
				}
				if want := append([]int{1}, c.want...); !slices.Equal(got, want) {
					t.Errorf("batches of %v events for requests of %v, want %v", got, c.sizes, want)
				}
				if b.seals(c.trigger) == 0 {
					t.Errorf("no batch was counted as sealed by %s", c.trigger)
				}
				checkEmpty(t, b)
			})
		})
	}
}

// A full buffer answers at once, with a time that follows from how fast it drains, and takes events again afterwards.
func TestFullBufferAnswersAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultConfig()
		cfg.MaxBytes, cfg.MaxBatchBytes = 1<<16, 1<<16
		hold := make(chan struct{})
		b, stop := start(t, cfg, func(_ context.Context, events []pipeline.Event) ([]pipeline.Verdict, error) {
			<-hold
			return echo(events), nil
		})
		if err := b.AddAsync(named("fits", 150)); err != nil {
			t.Fatal(err)
		}
		var over *pipeline.Overloaded
		if err := b.Room(1 << 15); !errors.As(err, &over) || over.RetryAfter <= 0 {
			t.Errorf("Room for 32 KiB in a buffer that holds more than half = %v; want Overloaded with a time", err)
		}
		if err := b.Room(100); err != nil {
			t.Errorf("Room for 100 bytes = %v, want none", err)
		}
		for _, n := range []int{100, 300} { // no room now, no room ever
			begin := time.Now()
			_, err := b.Add(t.Context(), named("over", n))
			var over *pipeline.Overloaded
			if !errors.As(err, &over) || over.RetryAfter <= 0 || !strings.Contains(over.Remedy, "buffer.max-bytes") {
				t.Errorf("Add of %d events to a full buffer = %v; want Overloaded with a time and the setting to raise",
					n, err)
			}
			if took := time.Since(begin); took != 0 {
				t.Errorf("the refusal took %s, want no wait", took)
			}
		}
		if got := testutil.ToFloat64(b.m.refused); got != 400 {
			t.Errorf("%v events counted as refused, want 400", got)
		}
		close(hold)
		if _, err := b.Add(t.Context(), named("again", 1)); err != nil {
			t.Errorf("Add after the buffer drained: %v", err)
		}
		if err := b.Room(1 << 30); err != nil {
			t.Errorf("Room in an empty buffer = %v; want Add to decide", err)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		checkEmpty(t, b)
	})
}

func TestRetryAfterFollowsTheDrainRate(t *testing.T) {
	now := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	var d drainRate
	if got := d.timeFor(1<<20, now); got != maxRetryAfter {
		t.Errorf("nothing has drained yet: come back in %s, want %s", got, maxRetryAfter)
	}
	for range 600 { // a minute of 1 MB/s
		now = now.Add(100 * time.Millisecond)
		d.drained(100_000, now)
	}
	if got := d.timeFor(10_000_000, now); got < 9*time.Second || got > 11*time.Second {
		t.Errorf("10 MB at 1 MB/s: come back in %s, want about 10s", got)
	}
	if got := d.timeFor(1, now); got != minRetryAfter {
		t.Errorf("1 byte at 1 MB/s: come back in %s, want %s", got, minRetryAfter)
	}
	if got := d.timeFor(10_000_000, now.Add(time.Minute)); got != maxRetryAfter {
		t.Errorf("after a minute of standstill: come back in %s, want %s", got, maxRetryAfter)
	}
}

func TestClientThatGoesAwayCancelsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var written atomic.Int64
		write := func(ctx context.Context, events []pipeline.Event) ([]pipeline.Verdict, error) {
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
				t.Error("the write was cancelled")
			}
			written.Add(int64(len(events)))
			return echo(events), nil
		}
		b, stop := start(t, DefaultConfig(), write)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := b.Add(ctx, named("gone", 7)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Add = %v, want the context's error", err)
		}
		if b.Fill() == 0 {
			t.Error("the memory of events in a batch was given back before its outcome")
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		if written.Load() != 7 {
			t.Errorf("%d events written, want 7", written.Load())
		}
		checkEmpty(t, b)
	})
}

func TestFailedWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		write := func(_ context.Context, events []pipeline.Event) ([]pipeline.Verdict, error) {
			if calls.Add(1) == 1 {
				return nil, errors.New("boom")
			}
			return echo(events), nil
		}
		b, stop := start(t, DefaultConfig(), write)
		_, err := b.Add(t.Context(), named("a", 3))
		if !errors.Is(err, pipeline.ErrUnavailable) || !strings.Contains(err.Error(), "boom") {
			t.Errorf("Add = %v, want ErrUnavailable with its cause", err)
		}
		if got := testutil.ToFloat64(b.m.failed); got != 3 {
			t.Errorf("%v events counted as failed, want 3", got)
		}
		if _, err := b.Add(t.Context(), named("b", 3)); err != nil {
			t.Errorf("Add after a failure: %v", err)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		checkEmpty(t, b)
	})
}

// What was answered with 202 has no caller to repeat it: an outage must not lose it.
func TestAsyncEventsOutliveAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		back := time.Now().Add(time.Minute)
		var written atomic.Int64
		write := func(_ context.Context, events []pipeline.Event) ([]pipeline.Verdict, error) {
			if time.Now().Before(back) {
				return nil, pipeline.ErrUnavailable
			}
			written.Add(int64(len(events)))
			return echo(events), nil
		}
		b, stop := start(t, DefaultConfig(), write)
		if err := b.AddAsync(named("a", 5)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if written.Load() != 5 {
			t.Errorf("%d events written after the outage, want 5", written.Load())
		}
		if n := testutil.ToFloat64(b.m.failed); n != 0 {
			t.Errorf("%v events counted as failed, want 0", n)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		checkEmpty(t, b)
	})
}

func TestDrainWritesEverythingAndRefusesMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultConfig()
		cfg.MaxEvents, cfg.Writers = 10, 1
		var written atomic.Int64
		b, stop := start(t, cfg, func(ctx context.Context, events []pipeline.Event) ([]pipeline.Verdict, error) {
			time.Sleep(100 * time.Millisecond)
			written.Add(int64(len(events)))
			return echo(events), ctx.Err()
		})
		var callers sync.WaitGroup
		for i := range 50 {
			callers.Go(func() {
				events := named(fmt.Sprint(i), 3)
				verdicts, err := b.Add(t.Context(), events)
				if err != nil {
					t.Errorf("a request that was admitted before the stop got %v", err)
					return
				}
				checkEcho(t, events, verdicts)
			})
		}
		synctest.Wait()
		if err := stop(); err != nil {
			t.Error(err)
		}
		callers.Wait()
		if written.Load() != 150 {
			t.Errorf("%d events written, want 150", written.Load())
		}
		if _, err := b.Add(t.Context(), named("late", 1)); !errors.Is(err, pipeline.ErrClosed) {
			t.Errorf("Add after the stop = %v, want ErrClosed", err)
		}
		if err := b.AddAsync(named("late", 1)); !errors.Is(err, pipeline.ErrClosed) {
			t.Errorf("AddAsync after the stop = %v, want ErrClosed", err)
		}
		checkEmpty(t, b)
	})
}

func TestDrainEndsByItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultConfig()
		cfg.MaxEvents, cfg.DrainTimeout = 10, 5*time.Second
		b, stop := start(t, cfg, func(ctx context.Context, _ []pipeline.Event) ([]pipeline.Verdict, error) {
			<-ctx.Done() // a database that hangs
			time.Sleep(time.Second)
			return nil, ctx.Err()
		})
		told := 0
		b.TellLost(func(events int) { told = events })
		var callers sync.WaitGroup
		begin := time.Now()
		for i := range 10 {
			callers.Go(func() {
				if _, err := b.Add(t.Context(), named(fmt.Sprint(i), 6)); !errors.Is(err, pipeline.ErrUnavailable) {
					t.Errorf("a waiting caller got %v, want ErrUnavailable", err)
				}
				if took := time.Since(begin); took != 5*time.Second {
					t.Errorf("a waiting caller was told after %s, want DrainTimeout", took)
				}
			})
		}
		synctest.Wait()
		if err := b.AddAsync(named("async", 6)); err != nil {
			t.Fatal(err)
		}
		if err := stop(); err == nil || !strings.Contains(err.Error(), "66 events") {
			t.Errorf("Run = %v, want the 66 events that were not written", err)
		}
		if took := time.Since(begin); took != 6*time.Second {
			t.Errorf("Run ended after %s, want 6s: the deadline and what the writer needs to give up", took)
		}
		callers.Wait()
		if got := testutil.ToFloat64(b.m.failed); got != 66 {
			t.Errorf("%v events counted as failed, want 66", got)
		}
		if got := testutil.ToFloat64(b.m.lost202); got != 6 || told != 6 {
			t.Errorf("%v events counted and %d told of that were answered and lost, want 6", got, told)
		}
		checkEmpty(t, b)
	})
}

// Every caller gets the verdicts of its own events, whatever the batches look like. For the race detector, too.
func TestVerdictsUnderConcurrency(t *testing.T) {
	cfg := DefaultConfig()
	cfg.MaxEvents, cfg.MaxWait, cfg.Writers = 64, 50*time.Microsecond, 3
	var calls atomic.Int64
	b, stop := start(t, cfg, func(_ context.Context, events []pipeline.Event) ([]pipeline.Verdict, error) {
		if calls.Add(1)%17 == 0 {
			return nil, errors.New("now and then")
		}
		return echo(events), nil
	})
	var callers sync.WaitGroup
	for c := range 32 {
		callers.Go(func() {
			for i := range 100 {
				events := named(fmt.Sprintf("%d/%d", c, i), 1+(c+i)%9)
				verdicts, err := b.Add(t.Context(), events)
				switch {
				case err == nil:
					checkEcho(t, events, verdicts)
				case !errors.Is(err, pipeline.ErrUnavailable):
					t.Errorf("Add = %v", err)
				}
			}
		})
	}
	callers.Wait()
	if err := stop(); err != nil {
		t.Error(err)
	}
	checkEmpty(t, b)
}

func TestWrongVerdictCountFailsTheBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, stop := start(t, DefaultConfig(), func(context.Context, []pipeline.Event) ([]pipeline.Verdict, error) {
			return make([]pipeline.Verdict, 1), nil
		})
		if _, err := b.Add(t.Context(), named("a", 2)); !errors.Is(err, pipeline.ErrUnavailable) {
			t.Errorf("Add = %v, want ErrUnavailable", err)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestConfigFaultsAreAllNamed(t *testing.T) {
	_, err := New(Config{MaxWait: -2, DrainTimeout: -1, MaxBatchBytes: 1}, nil, NewMetrics(prometheus.NewRegistry()))
	for _, name := range []string{
		"buffer.max-bytes", "buffer.max-events", "buffer.max-batch-bytes", "buffer.max-wait", "buffer.writers",
		"DrainTimeout",
	} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("New of an invalid configuration = %v; want %s named", err, name)
		}
	}
}

// Every series whose labels are known is there at 0, so that its first incident is a change.
func TestSeriesAreThereFromTheStart(t *testing.T) {
	m := NewMetrics(prometheus.NewRegistry(), 1, 7)
	for name, c := range map[string]struct {
		series prometheus.Collector
		want   int
	}{"in_flight": {m.inFlight, 2}, "failed": {m.failed, 2}, "sealed": {m.sealed, 6}} {
		if got := testutil.CollectAndCount(c.series); got != c.want {
			t.Errorf("%d series of %s at the start, want %d", got, name, c.want)
		}
	}
}
