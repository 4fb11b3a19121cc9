package copyin

import (
	"flag"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline"
)

var flatEvents = flag.Int("flat-events", 200_000,
	"events that BenchmarkFlat stores before it measures; the full size is 20000000")

// BenchmarkFlat stores events over 20 days and then compares the rate into that table with the rate into an empty
// one, and batches of which every other event is of an older day with batches of today. The three take turns, so that
// they share what else the machine does; the figures are medians of the turns. Databases are those of the tests,
// which do not wait for the disk: name one that does in PIPELINE_TEST_DATABASE_URL.
func BenchmarkFlat(b *testing.B) {
	const days, size, writers = 20, 2000, 2
	empty, full := pgtest.New(b), pgtest.New(b)
	for _, pool := range []*pgxpool.Pool{empty, full} {
		for day := range days {
			exec(b, pool, `select create_events_partition(current_date - $1::int)`, day)
		}
	}
	intoEmpty, intoFull := newWriter(b, empty), newWriter(b, full)
	at := today()
	made := func(share int) []pipeline.Event { // every share-th event is of another day; 0: none
		es := shopEvents(size)
		for i := range es {
			if es[i].OccurredAt = at; share > 0 && i%share == 0 {
				es[i].OccurredAt = at.AddDate(0, 0, -(1 + i/share%(days-1)))
			}
		}
		return es
	}
	turn := func(w *Writer, batches [][]pipeline.Event) time.Duration {
		var next atomic.Int64
		var group sync.WaitGroup
		start := time.Now()
		for range writers {
			group.Go(func() {
				for i := next.Add(1) - 1; i < int64(len(batches)); i = next.Add(1) - 1 {
					if _, err := w.Write(b.Context(), batches[i]); err != nil {
						b.Error(err)
					}
				}
			})
		}
		group.Wait()
		return time.Since(start)
	}
	for n := 0; n < *flatEvents; n += size {
		es := made(0)
		for i := range es {
			es[i].OccurredAt = at.AddDate(0, 0, -(n/size)%days)
		}
		turn(intoFull, [][]pipeline.Event{es})
	}
	exec(b, full, `checkpoint`)
	stored := scan[int](b, full, `select count(*) from events`)

	const batches = 10
	var flat, older []float64
	total := 0
	for b.Loop() {
		var took [3]time.Duration
		for i, w := range []*Writer{intoEmpty, intoFull, intoFull} {
			var work [][]pipeline.Event
			for range batches {
				work = append(work, made(map[bool]int{true: 2}[i == 2]))
			}
			exec(b, empty, `truncate events`)
			took[i] = turn(w, work)
		}
		flat = append(flat, took[0].Seconds()/took[1].Seconds())
		older = append(older, took[2].Seconds()/took[1].Seconds())
		total += 2 * batches * size
	}
	if got := scan[int](b, full, `select count(*) from events`) - stored; got != total {
		b.Fatalf("%d rows stored, want %d", got, total)
	}
	slices.Sort(flat)
	slices.Sort(older)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(stored), "events-before")
	b.ReportMetric(flat[len(flat)/2], "rate-of-empty")
	b.ReportMetric(older[len(older)/2], "cost-of-older-days")
}
