// Package stages runs the parts of a process and stops them in order, within a bound.
package stages

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/sourcegraph/conc"
)

// Stage is a part of the process that runs for as long as the process does.
type Stage struct {
	Name string
	// Run blocks; it drains when its context ends and returns nil then.
	Run func(ctx context.Context) error
}

// New makes a stage.
func New(name string, run func(context.Context) error) Stage { return Stage{name, run} }

// Run starts the stages and returns when all have ended. When ctx ends, or a stage ends by itself, which is a
// fault, it stops them in the order given: each is told to drain after the one before it has ended.
//
// drain bounds the whole stop. So that one stage that hangs leaves the others time, each may hold up the next for half
// of what is left; it goes on draining while the next does. A stage that has not ended when the time is up is left
// behind and named in the error; the process has to exit then. left is what was not used of drain.
func Run(ctx context.Context, drain time.Duration, log *slog.Logger, stages []Stage) (left time.Duration,
	err error) {
	type running struct {
		Stage
		stop context.CancelFunc
		done chan struct{}
		err  error
	}
	all := make([]*running, len(stages))
	first := make(chan *running, len(stages))
	var group conc.WaitGroup
	for i, s := range stages {
		// Not ended by ctx: the order is ours.
		sctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		defer cancel()
		r := &running{Stage: s, stop: cancel, done: make(chan struct{})}
		all[i] = r
		group.Go(func() {
			defer close(r.done)
			r.err = r.Run(sctx)
			first <- r
		})
	}

	var errs []error
	select {
	case <-ctx.Done():
		log.Info("stopping", "drain_timeout", drain)
	case r := <-first:
		if r.err == nil {
			r.err = errors.New("ended by itself")
		}
		log.Error("a stage failed, stopping", "stage", r.Name, "error", r.err)
	}
	start := time.Now()
	deadline := start.Add(drain)
	over := time.NewTimer(drain)
	defer over.Stop()
	for i, r := range all {
		r.stop()
		share := time.Until(deadline)
		if i < len(all)-1 {
			share /= 2
		}
		patience := time.NewTimer(share)
		select {
		case <-r.done:
			log.Info("drained", "stage", r.Name, "after", time.Since(start).Round(time.Millisecond))
		case <-patience.C:
			log.Warn("still draining, going on with the next", "stage", r.Name, "after",
				time.Since(start).Round(time.Millisecond))
		}
		patience.Stop()
	}
	expired := false
	for _, r := range all {
		if !expired {
			select {
			case <-r.done:
			case <-over.C:
				expired = true
			}
		}
		select {
		case <-r.done:
			if r.err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", r.Name, r.err))
			}
		default:
			errs = append(errs, fmt.Errorf("%s: not drained within drain-timeout (%s)", r.Name, drain))
		}
	}
	if !expired {
		group.Wait()
	}
	return max(0, time.Until(deadline)), errors.Join(errs...)
}
