package stages

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestStagesStopInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var order []string
		note := func(s string) { mu.Lock(); order = append(order, s); mu.Unlock() }
		drains := func(name string, d time.Duration) Stage {
			return Stage{name, func(ctx context.Context) error {
				<-ctx.Done()
				note(name + " told")
				time.Sleep(d)
				note(name + " ended")
				return nil
			}}
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if _, err := Run(ctx, 10*time.Second, slog.New(slog.DiscardHandler),
			[]Stage{drains("a", time.Second), drains("b", 2*time.Second)}); err != nil {
			t.Errorf("Run: %v", err)
		}
		if want := []string{"a told", "a ended", "b told", "b ended"}; !slices.Equal(order, want) {
			t.Errorf("order %q, want %q", order, want)
		}
	})
}

func TestStagesStopWhenOneFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("broken")
		drained := false
		_, err := Run(t.Context(), 10*time.Second, slog.New(slog.DiscardHandler), []Stage{
			{"a", func(ctx context.Context) error { <-ctx.Done(); drained = true; return nil }},
			{"b", func(context.Context) error { return broken }},
		})
		if !errors.Is(err, broken) || !strings.HasPrefix(err.Error(), "b: ") || !drained {
			t.Errorf("Run = %v, other stage drained: %v", err, drained)
		}
		_, err = Run(t.Context(), time.Second, slog.New(slog.DiscardHandler),
			[]Stage{{"c", func(context.Context) error { return nil }}})
		if err == nil {
			t.Error("a stage that ends by itself has to be a fault")
		}
	})
}

func TestStagesDrainIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		defer close(release)
		told := time.Duration(0)
		start := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := Run(ctx, 8*time.Second, slog.New(slog.DiscardHandler), []Stage{
			{"hangs", func(context.Context) error { <-release; return nil }},
			{"waits", func(ctx context.Context) error { <-ctx.Done(); told = time.Since(start); return nil }},
		})
		if took := time.Since(start); took != 8*time.Second {
			t.Errorf("stopped after %s, want drain-timeout of 8 s", took)
		}
		if told != 4*time.Second {
			t.Errorf("the stage behind the one that hangs was told after %s, want half of drain-timeout", told)
		}
		if err == nil || !strings.Contains(err.Error(), "hangs: not drained within drain-timeout") ||
			strings.Contains(err.Error(), "waits") {
			t.Errorf("Run = %v", err)
		}
	})
}
