package memory

import (
	"context"
	"os"
	"runtime/debug"
	"time"
)

const (
	// Besides is what a node needs beside what settings bound: connections, encoded batches, and what the garbage
	// collector has not collected yet. In bytes, measured by TestOverload.
	Besides = 48 << 20
	// limitStep keeps the limit from being moved for little, since each move stops the world for a moment.
	limitStep = 16 << 20
)

// LimitToContainer has the garbage collector work harder before the container's limit is reached, past which the kernel
// kills the process: the runtime's limit is nine tenths of it, since not all memory is the runtime's. GOMEMLIMIT in the
// environment wins.
func LimitToContainer() {
	if limit, ok := Container(); ok && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(limit / 10 * 9)
	}
}

// Limit keeps the garbage collector from letting the memory of a full buffer double before it runs: the runtime's limit
// is maxBytes and what else is needed, and no more than it was before. Bodies that are being read are added as they
// come; a limit below what is live would keep the collector running all the time. GOMEMLIMIT in the environment wins.
// It returns when ctx ends.
func Limit(ctx context.Context, maxBytes int, reading func() int) error {
	if os.Getenv("GOMEMLIMIT") != "" {
		<-ctx.Done() // a stage that ends stops the process
		return nil
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	before := debug.SetMemoryLimit(-1)
	most := func(reading int) int64 { return min(before, int64(maxBytes+Besides+reading/limitStep*limitStep)) }
	limit := most(0)
	debug.SetMemoryLimit(limit)
	defer debug.SetMemoryLimit(before)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if want := most(reading()); want != limit {
			debug.SetMemoryLimit(want)
			limit = want
		}
	}
}
