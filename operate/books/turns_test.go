package books

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestPagesTakeTurns: 40 who ask at once take one connection, and few answers.
func TestPagesTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns()
		var reading, most, reads atomic.Int32
		slow := func(context.Context) (*Answer, error) {
			most.Store(max(most.Load(), reading.Add(1)))
			reads.Add(1)
			time.Sleep(time.Second)
			reading.Add(-1)
			return &Answer{}, nil
		}
		var all sync.WaitGroup
		for range 40 {
			all.Go(func() {
				if a, err := turns.read(t.Context(), mark{}, slow); a == nil || err != nil {
					t.Errorf("%v, %v; want an answer", a, err)
				}
			})
		}
		all.Wait()
		if most.Load() != 1 || reads.Load() > 2 {
			t.Errorf("%d readings, %d at once; want at most 2, one at a time", reads.Load(), most.Load())
		}
		// The answer of a reading that has begun is not that of who asks later.
		go turns.read(t.Context(), mark{}, slow)
		time.Sleep(500 * time.Millisecond)
		begin := time.Now()
		if _, err := turns.read(t.Context(), mark{}, slow); err != nil || time.Since(begin) != 1500*time.Millisecond {
			t.Errorf("%v after %s; want an answer that began after the question", err, time.Since(begin))
		}
		// Who goes away ends what nobody else waits for.
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		ended := make(chan error, 1)
		_, err := turns.read(ctx, mark{}, func(ctx context.Context) (*Answer, error) {
			<-ctx.Done()
			ended <- ctx.Err()
			return nil, ctx.Err()
		})
		if err == nil || <-ended == nil {
			t.Errorf("%v; want the reading ended with its last caller", err)
		}
		for i := range maxWaiting + 1 {
			go turns.read(t.Context(), mark{message: int64(i)}, slow)
		}
		synctest.Wait()
		if _, err := turns.read(t.Context(), mark{message: 99}, slow); err != errBusy {
			t.Errorf("%v; want it refused", err)
		}
		time.Sleep(time.Minute)
	})
}
