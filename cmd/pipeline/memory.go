package main

import (
	"context"
	"os"
	"runtime/debug"
	"time"
)

const (
	// besides is what a node needs beside the events and bodies that are bounded by settings: connections, encoded
	// batches, and what the garbage collector has not collected yet. Measured by TestOverload.
	besides = 48 << 20
	// limitStep keeps the limit from being moved for little, since each move stops the world for a moment.
	limitStep = 16 << 20
)

// limitMemory keeps the garbage collector from letting the memory of a full buffer double before it runs: the runtime's
// limit is buffer.max-bytes and what else is needed. Bodies that are being read are added as they come; a limit below
// what is live would keep the collector running all the time. GOMEMLIMIT in the environment wins.
func limitMemory(ctx context.Context, maxBytes int, reading func() int) error {
	if os.Getenv("GOMEMLIMIT") != "" {
		<-ctx.Done() // a stage that ends stops the process
		return nil
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	limit := maxBytes + besides
	before := debug.SetMemoryLimit(int64(limit))
	defer debug.SetMemoryLimit(before)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		want := maxBytes + besides + reading()/limitStep*limitStep
		if want != limit {
			debug.SetMemoryLimit(int64(want))
			limit = want
		}
	}
}
