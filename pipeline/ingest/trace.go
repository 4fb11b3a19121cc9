package ingest

import (
	"bytes"
	"strings"

	"github.com/valyala/fasthttp"

	"sluice.example/sluice/internal/tracecontext"
	"sluice.example/sluice/pipeline"
)

// unsampled stands for the trace of an event whose sender did not sample it. It is only seen between decoding and
// setTraces.
var unsampled = &pipeline.Trace{}

// newTrace returns the trace of a traceparent and a tracestate, unsampled where that bit is not set, and nil where
// there is none. It copies them.
func newTrace(parent, state []byte) *pipeline.Trace {
	if len(parent) == 0 {
		return nil
	}
	p, sampled, ok := tracecontext.Parent(string(parent))
	switch {
	case !ok:
		return nil
	case !sampled:
		return unsampled
	}
	// The copies are cut to what is kept of them.
	return &pipeline.Trace{Parent: strings.Clone(p), State: strings.Clone(tracecontext.State(string(state)))}
}

// requestTrace is the trace of a request. A header that is there twice is none; several tracestates are one.
func requestTrace(h *fasthttp.RequestHeader) *pipeline.Trace {
	parents := h.PeekAll("traceparent")
	if len(parents) != 1 {
		return nil
	}
	parent := parents[0] // before the next call, which uses the slice again
	return newTrace(parent, bytes.Join(h.PeekAll("tracestate"), []byte(",")))
}

// setTraces gives the events the trace of their request, except those that came with one of their own.
func setTraces(events []pipeline.Event, of *pipeline.Trace) {
	for i := range events {
		e := &events[i]
		if e.Trace == nil {
			e.Trace = of
		}
		if e.Trace == unsampled {
			e.Trace = nil
		}
	}
}
