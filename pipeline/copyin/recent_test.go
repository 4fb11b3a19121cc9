package copyin

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline"
)

func TestRetriesAreLookedUpBeforeCOPY(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	w := newWriter(t, pool)
	first, next := events(100), events(4)
	mustWrite(t, w, first)
	next[1], next[3] = first[70], first[3]
	for range 20 {
		mustWrite(t, w, next)
		next[0], next[2] = event("new"), event("new")
	}
	checkOutcomes(t, mustWrite(t, w, next), "sdsd")
	if got := counterValue(t, w.m.conflicts); got != 0 {
		t.Errorf("%v COPYs ran into keys that this writer had stored, want 0", got)
	}
	if got := counterValue(t, w.m.batches.WithLabelValues("suspects")); got != 21 {
		t.Errorf("%v batches looked up what they repeat, want all 21: the others of their keys are new", got)
	}
}

// A retry arrives while the batch of the original is being written: it waits for that, whatever its end.
func TestRetryWaitsForItsOriginal(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		fails error
		want  string
	}{{"which is stored", nil, "sd"}, {"which fails", errors.New("on purpose"), "ss"}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.New(t)
			w := newWriter(t, pool)
			recording, release, entered := make(chan struct{}), make(chan struct{}), make(chan struct{})
			calls := 0
			w.decide = func([]pipeline.Event) Recorder {
				if calls++; calls > 1 {
					close(entered)
					return nil
				}
				return &books{record: func(context.Context, pgx.Tx, []bool) error {
					close(recording)
					<-release
					return c.fails
				}}
			}
			original := event("original")
			var writes sync.WaitGroup
			writes.Go(func() {
				if _, err := w.Write(t.Context(), []pipeline.Event{original}); (err == nil) != (c.fails == nil) {
					t.Errorf("Write of the original = %v", err)
				}
			})
			<-recording
			writes.Go(func() { checkOutcomes(t, mustWrite(t, w, []pipeline.Event{event("new"), original}), c.want) })
			<-entered
			close(release)
			writes.Wait()
			if got := counterValue(t, w.m.conflicts); got != 0 {
				t.Errorf("%v COPYs ran into the original's key, want 0", got)
			}
			checkRows(t, pool, 2)
		})
	}
}

func TestWaitForTheOriginalIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan struct{})
		close(ended)
		start := time.Now()
		await(t.Context(), []chan struct{}{ended, make(chan struct{})}, time.Minute)
		if got := time.Since(start); got != time.Minute {
			t.Errorf("waited %s for a batch that does not end, want %s", got, time.Minute)
		}
	})
}

// Whatever the table has room for, the verdicts are those of a writer that knows everything.
func TestVerdictsDoNotDependOnWhatIsRemembered(t *testing.T) {
	t.Parallel()
	for _, bytes := range []int{0, bucketBytes, 8 * bucketBytes, DefaultConfig().RecentBytes} {
		pool := pgtest.New(t)
		w := newWriter(t, pool, func(c *Config) { c.RecentBytes = bytes })
		rng := rand.New(rand.NewPCG(1, uint64(bytes)))
		all := events(300)
		for i := range all {
			all[i].OccurredAt = all[i].OccurredAt.AddDate(0, 0, -(i % 2))
		}
		stored := map[pipeline.UUID]bool{}
		for range 60 {
			batch := make([]pipeline.Event, 1+rng.IntN(20))
			want := ""
			for i := range batch {
				batch[i] = all[rng.IntN(len(all))]
				want += map[bool]string{false: "s", true: "d"}[stored[batch[i].ID]]
				stored[batch[i].ID] = true
			}
			if got := outcomes(mustWrite(t, w, batch)); got != want {
				t.Fatalf("with %d bytes: outcomes %s, want %s", bytes, got, want)
			}
		}
		checkRows(t, pool, len(stored))
	}
}

func TestRecentForgetsTheOldest(t *testing.T) {
	r := newRecent(3*bucketBytes - 1) // room for 16 keys
	if len(r.buckets) != 2 {
		t.Fatalf("%d buckets in 191 bytes, want 2", len(r.buckets))
	}
	r.batch = 1<<32 - 3 // the count begins again on the way
	known := func(es []pipeline.Event) int {
		b := newBatch(es)
		defer b.release()
		earlier, leave := r.enter(b)
		defer leave()
		if len(earlier) > 0 {
			t.Error("waits for a batch that has ended")
		}
		return len(b.suspects)
	}
	e := events(1)
	if first, second := known(e), known(e); first != 0 || second != 1 {
		t.Errorf("a key was known %d times at first and %d times then, want 0 and 1", first, second)
	}
	for range 7 { // fewer than a bucket holds
		known(events(1))
	}
	if known(e) != 1 {
		t.Error("a key is forgotten before 7 that are newer")
	}
	known(events(200))
	if known(e) != 0 {
		t.Error("a key is known after 200 others in 16 places")
	}
}

// At a quarter of its room the table forgets nearly nothing.
func TestRecentRemembers(t *testing.T) {
	r := newRecent(1 << 20)
	room := len(r.buckets) * len(bucket{})
	all := events(room / 4)
	enter := func(es []pipeline.Event) int {
		b := newBatch(es)
		defer b.release()
		_, leave := r.enter(b)
		defer leave()
		return len(b.suspects)
	}
	for i := 0; i < len(all); i += 1024 {
		enter(all[i : i+1024])
	}
	if got := enter(all); got < len(all)*99/100 {
		t.Errorf("%d of %d keys known, want 99 %%", got, len(all))
	}
}

// BenchmarkRecent is what the table costs a batch of new keys.
func BenchmarkRecent(b *testing.B) {
	const size = 2000
	r := newRecent(DefaultConfig().RecentBytes)
	var batches []*batch
	for range 1000 {
		batches = append(batches, newBatch(shopEvents(size)))
	}
	i := 0
	for b.Loop() {
		next := batches[i%len(batches)]
		next.suspects = nil
		_, leave := r.enter(next)
		leave()
		i++
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/size, "ns/event")
}
