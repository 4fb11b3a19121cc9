package buffer

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sluice.example/sluice/pipeline"
)

// BenchmarkPolicy shows what buffer.max-wait and buffer.writers do to requests and to the number of transactions,
// against a writer that costs what a transaction costs: 1 ms of waiting for COMMIT, one writer at a time spending 300
// us and 12 us an event.
func BenchmarkPolicy(b *testing.B) {
	for _, callers := range []int{1, 16, 256} {
		for _, writers := range []int{1, 2, 4} {
			for _, wait := range []time.Duration{0, 2 * time.Millisecond, 5 * time.Millisecond} {
				b.Run(fmt.Sprintf("callers=%d/writers=%d/wait=%s", callers, writers, wait), func(b *testing.B) {
					cfg := DefaultConfig()
					cfg.Writers, cfg.MaxWait = writers, wait
					var cpu, mu sync.Mutex
					var batches int
					buf, err := New(cfg, func(_ context.Context, events []pipeline.Event) ([]pipeline.Verdict, error) {
						cpu.Lock()
						busy := 300*time.Microsecond + time.Duration(len(events))*12*time.Microsecond
						for end := time.Now().Add(busy); time.Now().Before(end); {
						}
						cpu.Unlock()
						time.Sleep(time.Millisecond)
						mu.Lock()
						batches++
						mu.Unlock()
						return make([]pipeline.Verdict, len(events)), nil
					}, NewMetrics(prometheus.NewRegistry()))
					if err != nil {
						b.Fatal(err)
					}
					ctx, cancel := context.WithCancel(b.Context())
					ended := make(chan error, 1)
					go func() { ended <- buf.Run(ctx) }()
					var group sync.WaitGroup
					for c := range callers {
						group.Go(func() {
							for i := c; i < b.N; i += callers {
								if _, err := buf.Add(ctx, make([]pipeline.Event, 1)); err != nil {
									b.Error(err)
								}
							}
						})
					}
					group.Wait()
					b.StopTimer()
					cancel()
					if err := <-ended; err != nil {
						b.Error(err)
					}
					b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
					b.ReportMetric(float64(b.N)/float64(batches), "events/batch")
				})
			}
		}
	}
}
