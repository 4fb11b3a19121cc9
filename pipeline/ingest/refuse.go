package ingest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"sluice.example/sluice/pipeline"
	"sluice.example/sluice/pipeline/ingest/body"
)

// refuse answers for events that the buffer did not take, or whose outcome it does not know.
func (s *Server) refuse(ctx exchange, tenant int32, err error, n int) {
	if cause := refusedAs(err); cause != "" {
		s.metrics.refusedEvents(tenant, cause, n)
	}
	s.overloaded(ctx, tenant, err)
}

// overloaded answers for events that there is no room for, or that nobody would store.
func (s *Server) overloaded(ctx exchange, tenant int32, err error) {
	if !errors.Is(err, pipeline.ErrOverloaded) {
		s.unavailable(ctx, err)
		return
	}
	s.metrics.overloaded.WithLabelValues(tenantLabel(tenant)).Inc()
	wait := time.Second
	if full := (*pipeline.Overloaded)(nil); errors.As(err, &full) {
		wait = full.RetryAfter
	}
	retryAfter(ctx, wait)
	problem(ctx, 429, "overloaded",
		"more events come in than the database stores; nothing of this request was taken, send it again", -1)
}

// crowded answers for a request that there is no place for.
func (s *Server) crowded(ctx exchange) {
	err := s.buffer.Room(math.MaxInt / 2)
	if errors.Is(err, pipeline.ErrUnavailable) {
		s.unavailable(ctx, err)
		return
	}
	wait := time.Second
	if full := (*pipeline.Overloaded)(nil); errors.As(err, &full) {
		wait = full.RetryAfter
	}
	retryAfter(ctx, wait)
	problem(ctx, 429, "overloaded",
		fmt.Sprintf("%d requests are being answered (ingest.concurrency)", s.cfg.Concurrency), -1)
}

// fullAfter is when to come back after a disk was full. A guess: room takes an operator, and the answer comes at once.
const fullAfter = 5 * time.Second

// unavailable answers 503, or 500 after a fault. The events may or may not be stored; after ErrClosed and ErrFault they
// are not.
func (s *Server) unavailable(ctx exchange, err error) {
	const again = "send the request again: events that carry an event_id are stored once however often they come"
	retryAfter(ctx, time.Second)
	away := (*pipeline.Away)(nil)
	if errors.As(err, &away) {
		ctx.Response.Header.Set("Retry-After", strconv.Itoa(int(away.RetryAfter/time.Second)))
	}
	switch {
	case away != nil && away.Err == nil:
		problem(ctx, 503, "unavailable", "the database is away, and nothing was taken; send the request again", -1)
	case errors.Is(err, pipeline.ErrClosed):
		ctx.SetConnectionClose()
		problem(ctx, 503, "draining", "the server is shutting down and took nothing; send the request again", -1)
	case s.waiting.Err() != nil && errors.Is(err, context.Canceled):
		ctx.SetConnectionClose()
		problem(ctx, 503, "outcome-unknown", "the server is shutting down before the outcome is known; "+again, -1)
	case errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, pipeline.ErrUnavailable): // ours
		problem(ctx, 503, "outcome-unknown",
			fmt.Sprintf("the outcome was not known within %s; %s", s.cfg.AnswerTimeout, again), -1)
	case errors.Is(err, pipeline.ErrFault):
		problem(ctx, 500, "cannot-store", "a fault on this server keeps events from being stored; its operator finds "+
			"the reason in the log and at /readyz. When it is repaired, "+again, -1)
	case errors.Is(err, pipeline.ErrDiskFull):
		retryAfter(ctx, fullAfter)
		problem(ctx, 503, "disk-full", "the database's disk is full, and nothing was stored; "+again, -1)
	case errors.Is(err, pipeline.ErrLocked):
		problem(ctx, 503, "locked", "the database waits for a lock that somebody holds, and nothing was stored; "+again, -1)
	case errors.Is(err, pipeline.ErrUnavailable):
		problem(ctx, 503, "unavailable", "the database is away; "+again, -1)
	default:
		s.log.Error("ingest: events were not stored", "error", err)
		problem(ctx, 503, "unavailable", "the events could not be stored; "+again, -1)
	}
}

func (s *Server) fail(ctx exchange, f *body.Failure) {
	switch f.Status {
	case 429:
		retryAfter(ctx, time.Second)
	case 415:
		ctx.Response.Header.Set("Accept-Encoding", "gzip, zstd")
	}
	problem(ctx, f.Status, f.Kind, f.Detail, f.Offset)
}

// malformed answers for a body that can't be decoded.
func (s *Server) malformed(ctx exchange, m *malformed) {
	kind := "malformed-json"
	switch m.status {
	case 413:
		kind = "too-many-events"
	case 415:
		kind = "unsupported-media-type"
	}
	problem(ctx, m.status, kind, m.detail, m.offset)
}

// refusedAs is why events were not taken, "" where they may be.
func refusedAs(err error) string {
	switch {
	case errors.Is(err, pipeline.ErrOverloaded):
		return refusedFull
	case errors.Is(err, pipeline.ErrClosed):
		return refusedDraining
	}
	if away, ok := errors.AsType[*pipeline.Away](err); ok && away.Err == nil {
		return refusedAway
	}
	return ""
}
