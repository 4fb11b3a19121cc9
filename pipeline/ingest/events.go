package ingest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
	"unsafe"

	"sluice.example/sluice/internal/wait"
	"sluice.example/sluice/pipeline"
	"sluice.example/sluice/pipeline/ingest/body"
)

// events answers a request that holds events: who sends, what, and what becomes of it.
func (s *Server) events(ctx exchange, to route) {
	lines, ok := ctx.shape.media(ctx.Request.Header.ContentType())
	if !ok {
		ctx.Response.Header.Set("Accept", "application/json, application/x-ndjson")
		problem(ctx, 415, "unsupported-media-type", fmt.Sprintf("Content-Type %q is not known; application/json and "+
			"application/x-ndjson, in UTF-8, are", cut(ctx.Request.Header.ContentType())), -1)
		return
	}
	who, ok := s.authenticate(ctx)
	if !ok {
		return
	}
	b, ok := s.read(ctx, who)
	if !ok {
		return
	}
	defer func() { s.bodies.Release(b) }()
	in := input{body: b.Text, lines: lines, call: to.call, header: &ctx.Request.Header}
	if name := ctx.shape.sentInQuery; name != "" {
		in.sent = ctx.QueryArgs().Peek(name)
	}
	got, m := s.decode(ctx, in, &who)
	// Nothing below refers to the body. A request that may be held counts its memory until it is answered.
	if !ctx.shape.holds {
		s.bodies.Release(b)
		b = nil
	}
	if m != nil {
		s.malformed(ctx, m)
		return
	}
	if who.later && !s.admit(ctx, who) {
		return
	}
	s.limiter(who.tenant).Spend(got.total, got.size)
	s.metrics.receivedEvents(who.tenant, got.total)
	s.metrics.rejectedEvents(who.tenant, got.rejected)
	s.hand(ctx, who.tenant, got.events, got.rejected)
}

// sender is whose events a request holds.
type sender struct {
	tenant int32
	known  bool
	key    []byte // in the request's header
	// later: nobody is known yet, but the key may stand in the body.
	later bool
}

// authenticate finds out who sends, by the request's header. Where it returns false, it has answered.
func (s *Server) authenticate(ctx exchange) (who sender, ok bool) {
	key := credentials(ctx.Request.Header.Peek("Authorization"), ctx.Request.Header.Peek("X-Write-Key"))
	if name := ctx.shape.keyInQuery; key == nil && name != "" {
		key = ctx.QueryArgs().Peek(name)
	}
	who.tenant, who.known = s.callers.Load().OfKey(key)
	who.key = key
	who.later = !who.known && key == nil && ctx.shape.keyInBody
	return who, who.later || s.admit(ctx, who)
}

// admit reports whether the sender may send now; otherwise it has answered.
func (s *Server) admit(ctx exchange, who sender) bool {
	if !who.known {
		ctx.Response.Header.Set("WWW-Authenticate", `Bearer realm="events"`)
		problem(ctx, 401, "unauthorized",
			"a write key is needed: Authorization: Bearer KEY, Basic with the key as user name, or X-Write-Key", -1)
		return false
	}
	if wait := s.limiter(who.tenant).Wait(ctx.Time()); wait > 0 {
		s.metrics.limited.WithLabelValues(tenantLabel(who.tenant)).Inc()
		retryAfter(ctx, wait)
		problem(ctx, 429, "rate-limited",
			"this tenant sends more than its limits in the tenants file; nothing was taken, send it again", -1)
		return false
	}
	return true
}

// read reads and decompresses the body. Where it returns false, it has answered, and there is nothing to release.
func (s *Server) read(ctx exchange, who sender) (*body.Body, bool) {
	// Before the body is read, so that a refusal costs little when it has to: its length stands for what its events
	// weigh.
	if !who.later && !ctx.shape.holds {
		err := s.buffer.Room(max(0, ctx.Request.Header.ContentLength()))
		if errors.Is(err, pipeline.ErrUnavailable) {
			if async, _ := preferences(&ctx.Request.Header); async {
				err = nil // it waits in memory
			}
		}
		if err != nil {
			s.overloaded(ctx, who.tenant, err)
			return nil, false
		}
	}
	of, find := s.bodies.Tenant(who.tenant), (func([]byte) *body.Share)(nil)
	if who.later {
		of, find = s.bodies.Unknown(), s.shareOfPart
	}
	b, failed := s.bodies.Read(ctx.RequestCtx, of, find)
	if failed != nil {
		s.fail(ctx, failed)
		return nil, false
	}
	if ctx.shape.sniffs && bytes.HasPrefix(b.Text, []byte("\x1f\x8b\x08")) {
		if failed := s.bodies.Inflate(b); failed != nil {
			s.bodies.Release(b)
			s.fail(ctx, failed)
			return nil, false
		}
	}
	if !s.bodies.Expect(b, ctx.shape.copies, s.cfg.MaxEvents, 2*int(unsafe.Sizeof(pipeline.Event{}))) {
		s.bodies.Release(b)
		s.fail(ctx, body.NoRoom())
		return nil, false
	}
	return b, true
}

// shareOfPart returns the share of the tenant whose write key stands in a part of a body, or nil.
func (s *Server) shareOfPart(part []byte) *body.Share {
	if tenant, ok := s.callers.Load().OfKey(body.FindKey(part)); ok {
		return s.bodies.Tenant(tenant)
	}
	return nil
}

// decoded is what a body held.
type decoded struct {
	events   []pipeline.Event
	rejected []rejection
	// total counts the events, and size the bytes of the body.
	total, size int
}

// decode decodes a body; what it returns does not refer to it. Where who was to be found later, it is.
func (s *Server) decode(ctx exchange, in input, who *sender) (decoded, *malformed) {
	d := s.decoders.Get().(*decoder)
	d.reset(&s.cfg, who.tenant, ctx.Time())
	m := ctx.shape.decode(d, in)
	if m == nil && who.later {
		who.tenant, who.known = s.callers.Load().OfKey([]byte(d.key))
		d.tenant = who.tenant
	}
	got := decoded{total: d.count, size: len(in.body), rejected: slices.Clone(d.rejected)}
	if m == nil && who.known {
		got.events = d.take()
	}
	if d.traced {
		setTraces(got.events, requestTrace(&ctx.Request.Header))
	}
	s.metrics.decoded.Add(float64(got.size))
	// A request that waits for its outcome holds no decoder: that has a struct for every event, and pins the body.
	d.drop()
	s.decoders.Put(d)
	return got, m
}

// hand passes the events on and answers with their outcome.
func (s *Server) hand(ctx exchange, tenant int32, events []pipeline.Event, rejected []rejection) {
	if len(events) == 0 {
		answer(ctx, rejected, nil, false)
		return
	}
	async, anyAge := preferences(&ctx.Request.Header)
	if anyAge {
		for i := range events {
			events[i].AnyAge = true
		}
	}
	var verdicts []pipeline.Verdict
	var err error
	if async {
		err = s.buffer.AddAsync(events)
	} else {
		verdicts, err = s.add(s.wait(time.Now()), ctx, events)
		if err == nil && len(verdicts) != len(events) {
			panic(fmt.Sprintf("%d verdicts for %d events", len(verdicts), len(events)))
		}
	}
	switch {
	case err != nil:
		s.refuse(ctx, tenant, err, len(events))
	case async:
		answerAccepted(ctx, len(events), rejected)
	default:
		answer(ctx, rejected, verdicts, bytes.Equal(ctx.QueryArgs().Peek("verdicts"), []byte("all")))
	}
}

// patience is the context of all requests that begin until it is renewed.
type patience struct {
	context.Context
	renew time.Time
	end   context.CancelFunc // not called: its time ends it
}

// wait returns a context that ends after ingest.answer-timeout and up to an eighth more. Requests share it, since one
// of its own costs a request 4 us, a tenth of its whole cost.
func (s *Server) wait(now time.Time) context.Context {
	p := s.patience.Load()
	if p == nil || !now.Before(p.renew) {
		more := s.cfg.AnswerTimeout / 8
		p = &patience{renew: now.Add(more)}
		p.Context, p.end = context.WithDeadline(s.waiting, p.renew.Add(s.cfg.AnswerTimeout))
		s.patience.Store(p)
	}
	return p
}

// holdFor is how long a request of a shape that holds waits for room: less than the 10 s after which posthog-node
// abandons a request and repeats it.
const holdFor = 8 * time.Second

// add hands events to the buffer. For a shape that holds it tries again while there is no room.
func (s *Server) add(patience context.Context, ctx exchange, events []pipeline.Event) ([]pipeline.Verdict, error) {
	giveUp := ctx.Time().Add(holdFor)
	for {
		verdicts, err := s.buffer.Add(patience, events)
		if err == nil || !ctx.shape.holds || !errors.Is(err, pipeline.ErrOverloaded) || time.Now().After(giveUp) {
			return verdicts, err
		}
		if !wait.For(s.drain, 100*time.Millisecond) {
			return nil, pipeline.ErrClosed
		}
		if patience.Err() != nil {
			return nil, err
		}
	}
}
