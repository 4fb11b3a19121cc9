package ingest

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sourcegraph/conc/pool"
	"github.com/valyala/fasthttp"

	"sluice.example/sluice/pipeline"
)

// Buffer takes events towards the database. It keeps the slice and what it refers to.
type Buffer interface {
	// Add waits for the outcome of the events. verdicts[i] belongs to events[i]. When ctx ends first, the events go on
	// and only the outcome is lost.
	Add(ctx context.Context, events []pipeline.Event) ([]pipeline.Verdict, error)
	// AddAsync returns once there is room in memory.
	AddAsync(events []pipeline.Event) error
	// Room gives the error that events of about so many bytes would meet now, nil where there may be room.
	Room(bytes int) error
}

// Server answers HTTP requests. It is safe for concurrent use.
type Server struct {
	cfg     Config
	buffer  Buffer
	auth    Auth
	metrics *Metrics
	log     *slog.Logger

	cert     *certificate       // nil: plain HTTP
	limiters map[int32]*limiter // fixed; a tenant without limits has none
	reader   *reader
	decoders sync.Pool
	inFlight atomic.Int64
	draining atomic.Bool
	drain    context.Context // ends when draining begins
	shut     context.CancelFunc
	patience atomic.Pointer[patience]
}

// New checks the configuration; the error names everything that is wrong with it.
func New(cfg Config, buf Buffer, auth Auth, m *Metrics, log *slog.Logger) (*Server, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, buffer: buf, auth: auth, metrics: m, log: log, limiters: map[int32]*limiter{}}
	s.drain, s.shut = context.WithCancel(context.Background())
	for tenant, l := range auth.limits {
		s.limiters[tenant] = newLimiter(l, time.Now())
	}
	s.decoders.New = func() any { return new(decoder) }
	var err error
	if cfg.TLSCertFile != "" {
		if s.cert, err = loadCertificate(cfg.TLSCertFile, cfg.TLSKeyFile, log); err != nil {
			return nil, err
		}
	}
	s.reader, err = newReader(&s.cfg, m)
	return s, err
}

// Serve answers what comes in on ln, which it closes, until ctx ends. It is called once. Then it takes no new connections, closes the idle
// ones, answers the requests that are on their way, and returns nil. That takes at most the time that the timeouts of
// reading, answering and writing allow together; where it took longer, the error says so.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	srv := &fasthttp.Server{
		Handler:                      s.handle,
		ErrorHandler:                 s.handleError,
		Name:                         "sluice",
		Concurrency:                  s.cfg.MaxConnections,
		ReadTimeout:                  s.cfg.ReadTimeout,
		IdleTimeout:                  s.cfg.IdleTimeout,
		WriteTimeout:                 s.cfg.WriteTimeout,
		MaxRequestBodySize:           s.cfg.MaxBodyBytes,
		ReadBufferSize:               16 << 10, // bounds the header, too
		StreamRequestBody:            true,
		DisablePreParseMultipartForm: true,
		NoDefaultContentType:         true,
		CloseOnShutdown:              true,
		SecureErrorLogMessage:        true,
		Logger:                       slogPrinter{s.log},
	}
	plain := ln
	if s.cert != nil {
		ln = tls.NewListener(ln, s.cert.config())
	}
	// Also ended by a listener that fails.
	stop, cancel := context.WithCancel(ctx)
	defer cancel()
	p := pool.New().WithErrors()
	p.Go(func() error {
		defer cancel()
		if err := srv.Serve(ln); err != nil {
			return fmt.Errorf("ingest: listen: %w", err)
		}
		return nil
	})
	<-stop.Done()
	s.draining.Store(true)
	s.shut()
	grace := s.cfg.ReadTimeout + s.cfg.AnswerTimeout + s.cfg.WriteTimeout
	p.Go(func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
		defer cancel()
		err := srv.ShutdownWithContext(ctx)
		if errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("ingest: %d connections did not end within %s", srv.GetOpenConnectionsCount(), grace)
		}
		// Shutdown knows the listener only once Serve has begun.
		if err := plain.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			return fmt.Errorf("ingest: close listener: %w", err)
		}
		return nil
	})
	return p.Wait()
}

// Reading is how many bytes the bodies hold that are being read and decoded.
func (s *Server) Reading() int { return int(s.reader.inUse.Load()) }

// slogPrinter takes what fasthttp has to say, which is about single connections.
type slogPrinter struct{ log *slog.Logger }

func (p slogPrinter) Printf(format string, args ...any) {
	p.log.Debug("ingest: " + fmt.Sprintf(format, args...))
}

// handleError answers requests whose header is at fault.
func (s *Server) handleError(request *fasthttp.RequestCtx, err error) {
	ctx := exchange{request, &native}
	var small *fasthttp.ErrSmallBuffer
	var netErr net.Error
	switch {
	case errors.As(err, &small):
		problem(ctx, 431, "header-too-large", "the header of the request is larger than 16 KiB", -1)
	case errors.As(err, &netErr) && netErr.Timeout():
		problem(ctx, 408, "timeout", fmt.Sprintf("the request did not come within %s (ingest.read-timeout)", s.cfg.ReadTimeout), -1)
	default:
		problem(ctx, 400, "malformed-http", "the request is not HTTP as in RFC 9112", -1)
	}
	s.metrics.request(ctx.Response.StatusCode(), 0)
}

func (s *Server) handle(ctx *fasthttp.RequestCtx) {
	start := time.Now()
	s.metrics.inFlight.Set(float64(s.inFlight.Add(1)))
	defer func() {
		// One request that finds a bug of ours must not end the others.
		if p := recover(); p != nil {
			s.metrics.panics.Inc()
			s.log.Error("ingest: panic while answering a request", "panic", p, "stack", string(debug.Stack()))
			ctx.Response.Reset()
			problem(exchange{ctx, &native}, 500, "bug", "the server hit a bug; its log has the details", -1)
			ctx.SetConnectionClose()
		}
		s.metrics.inFlight.Set(float64(s.inFlight.Add(-1)))
		s.metrics.request(ctx.Response.StatusCode(), time.Since(start))
	}()
	s.route(ctx)
	s.discard(ctx)
}

// discard reads on where an answer came before the end of the body, since a connection that is closed on unread bytes
// is reset, and with it goes the answer. It costs no memory, and ends with the read timeout. What is longer than a
// body may be is not waited for.
func (s *Server) discard(ctx *fasthttp.RequestCtx) {
	stream := ctx.RequestBodyStream()
	if stream == nil || ctx.Response.StatusCode() < 400 {
		return
	}
	if n, err := io.CopyN(io.Discard, stream, int64(s.cfg.MaxBodyBytes)); err == nil && n > 0 || err != nil && err != io.EOF {
		ctx.SetConnectionClose()
	}
}

func (s *Server) route(request *fasthttp.RequestCtx) {
	if s.cors(request) {
		return
	}
	to, ok := routes[string(bytes.TrimSuffix(request.Path(), []byte("/")))]
	if !ok {
		problem(exchange{request, &native}, 404, "not-found", "there is nothing here; events go to POST /v1/events", -1)
		return
	}
	ctx := exchange{request, to.shape}
	switch {
	case ctx.shape == &cloudevents && ctx.IsOptions() && len(ctx.Request.Header.Peek("WebHook-Request-Origin")) > 0:
		// The sender asks whether it may send (CloudEvents webhooks, section 4); whoever has a write key may.
		ctx.Response.Header.Set("Allow", "POST")
		ctx.Response.Header.SetBytesV("WebHook-Allowed-Origin", ctx.Request.Header.Peek("WebHook-Request-Origin"))
		ctx.Response.Header.Set("WebHook-Allowed-Rate", "*")
	case to.kind == "flags":
		ctx.Response.Header.SetContentType("application/json")
		ctx.Response.SetBodyString(noFlags)
	case !ctx.IsPost():
		ctx.Response.Header.Set("Allow", "POST")
		problem(ctx, 405, "method-not-allowed", "events are sent by POST", -1)
	case s.draining.Load():
		s.unavailable(ctx, pipeline.ErrClosed)
	case s.inFlight.Load() > int64(s.cfg.Concurrency):
		retryAfter(ctx, time.Second)
		problem(ctx, 429, "overloaded", fmt.Sprintf("%d requests are being answered (ingest.concurrency)", s.cfg.Concurrency), -1)
	case to.kind == "stream":
		s.stream(ctx)
	default:
		s.events(ctx, to.kind)
	}
	if status := ctx.Response.StatusCode(); ctx.shape.holds && (status == 429 || status == 503) {
		// The connection ends without an answer: the client then keeps the events, where it would drop them on any status.
		ctx.HijackSetNoResponse(true)
		ctx.Hijack(func(net.Conn) {})
	}
}

// events answers a request that holds events.
func (s *Server) events(ctx exchange, kind string) {
	header := &ctx.Request.Header
	lines, ok := ctx.shape.media(header.ContentType())
	if !ok {
		ctx.Response.Header.Set("Accept", "application/json, application/x-ndjson")
		problem(ctx, 415, "unsupported-media-type", fmt.Sprintf("Content-Type %q is not known; application/json and application/x-ndjson, in UTF-8, are", cut(header.ContentType())), -1)
		return
	}
	if lines {
		kind = "lines"
	}
	key := credentials(header.Peek("Authorization"), header.Peek("X-Write-Key"))
	if key == nil && ctx.shape.keyInQuery {
		key = ctx.QueryArgs().Peek("access_token")
	}
	tenant, ok := s.auth.tenant(key)
	later := !ok && key == nil && ctx.shape.keyInBody
	if !later && !s.admit(ctx, tenant, ok) {
		return
	}
	// Before the body is read, so that a refusal costs little when it has to: its length stands for what its events weigh.
	if !later && !ctx.shape.holds {
		if err := s.buffer.Room(max(0, header.ContentLength())); err != nil {
			s.overloaded(ctx, tenant, err)
			return
		}
	}
	b, failed := s.reader.read(ctx.RequestCtx)
	if failed != nil {
		s.fail(ctx, failed)
		return
	}
	held := true
	release := func() {
		if held {
			held = false
			s.reader.release(b)
		}
	}
	defer release()
	if ctx.shape.sniffs && bytes.HasPrefix(b.text, []byte("\x1f\x8b\x08")) {
		if failed := s.reader.inflate(b); failed != nil {
			s.fail(ctx, failed)
			return
		}
	}
	d := s.decoders.Get().(*decoder)
	d.reset(&s.cfg, tenant, ctx.Time())
	m := ctx.shape.decode(d, kind, b.text, header)
	if m == nil && later {
		tenant, ok = s.auth.tenant([]byte(d.key))
		d.tenant = tenant
	}
	var events []pipeline.Event
	if m == nil && ok {
		events = d.take()
	}
	size, total, refused := len(b.text), d.count, slices.Clone(d.refused)
	s.metrics.decoded.Add(float64(size))
	// A request that waits for its outcome holds no decoder: that has a struct for every event, and pins the body.
	d.drop()
	s.decoders.Put(d)
	// Nothing below refers to the body. A request that may be held counts its memory until it is answered.
	if !ctx.shape.holds {
		release()
	}
	if m != nil {
		what := "malformed-json"
		switch m.status {
		case 413:
			what = "too-many-events"
		case 415:
			what = "unsupported-media-type"
		}
		problem(ctx, m.status, what, m.detail, m.offset)
		return
	}
	if later && !s.admit(ctx, tenant, ok) {
		return
	}
	s.limiters[tenant].spend(total, size)
	s.metrics.receivedEvents(tenant, total)
	s.metrics.rejectedEvents(tenant, refused)
	s.hand(ctx, tenant, events, refused)
}

// admit says whether a tenant may send now; otherwise it has answered.
func (s *Server) admit(ctx exchange, tenant int32, known bool) bool {
	if !known {
		ctx.Response.Header.Set("WWW-Authenticate", `Bearer realm="events"`)
		problem(ctx, 401, "unauthorized", "a write key is needed: Authorization: Bearer KEY, Basic with the key as user name, or X-Write-Key", -1)
		return false
	}
	if wait := s.limiters[tenant].wait(ctx.Time()); wait > 0 {
		s.metrics.limited.WithLabelValues(tenantLabel(tenant)).Inc()
		retryAfter(ctx, wait)
		problem(ctx, 429, "rate-limited", "this tenant sends more than its limits in the tenants file; nothing was taken, send it again", -1)
		return false
	}
	return true
}

// hand passes the events on and answers with their outcome.
func (s *Server) hand(ctx exchange, tenant int32, events []pipeline.Event, refused []refusal) {
	if len(events) == 0 {
		answer(ctx, refused, nil, false)
		return
	}
	async := prefersAsync(&ctx.Request.Header)
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
		answerAccepted(ctx, len(events), refused)
	default:
		answer(ctx, refused, verdicts, bytes.Equal(ctx.QueryArgs().Peek("verdicts"), []byte("all")))
	}
}

// patience is the context of all requests that begin until it is renewed.
type patience struct {
	context.Context
	renew time.Time
	end   context.CancelFunc // not called: its time ends it
}

// wait gives a context that ends after ingest.answer-timeout and up to an eighth more. Requests share it, since one of its
// own costs a request 4 us, a tenth of what it costs at all.
func (s *Server) wait(now time.Time) context.Context {
	p := s.patience.Load()
	if p == nil || !now.Before(p.renew) {
		more := s.cfg.AnswerTimeout / 8
		p = &patience{renew: now.Add(more)}
		p.Context, p.end = context.WithDeadline(context.Background(), p.renew.Add(s.cfg.AnswerTimeout))
		s.patience.Store(p)
	}
	return p
}

// holdFor is how long a request of a shape that holds waits for room: less than the 10 s after which posthog-node gives
// a request up and repeats it.
const holdFor = 8 * time.Second

// add hands events to the buffer; where the shape says so, again and again while there is no room.
func (s *Server) add(wait context.Context, ctx exchange, events []pipeline.Event) ([]pipeline.Verdict, error) {
	give := ctx.Time().Add(holdFor)
	for {
		verdicts, err := s.buffer.Add(wait, events)
		if err == nil || !ctx.shape.holds || !errors.Is(err, pipeline.ErrOverloaded) || time.Now().After(give) {
			return verdicts, err
		}
		t := time.NewTimer(100 * time.Millisecond)
		select {
		case <-t.C:
		case <-s.drain.Done():
			t.Stop()
			return nil, pipeline.ErrClosed
		case <-wait.Done():
			t.Stop()
			return nil, err
		}
	}
}

// refuse answers for events that the buffer did not take, or whose outcome it does not know.
func (s *Server) refuse(ctx exchange, tenant int32, err error, n int) {
	if cause := refusedAs(err); cause != "" {
		s.metrics.refusedEvents(tenant, cause, n)
	}
	if !errors.Is(err, pipeline.ErrOverloaded) {
		s.unavailable(ctx, err)
		return
	}
	s.overloaded(ctx, tenant, err)
}

// overloaded answers for events that there is no room for.
func (s *Server) overloaded(ctx exchange, tenant int32, err error) {
	s.metrics.overloaded.WithLabelValues(tenantLabel(tenant)).Inc()
	wait := time.Second
	if full := (*pipeline.Overloaded)(nil); errors.As(err, &full) {
		wait = full.RetryAfter
	}
	retryAfter(ctx, wait)
	problem(ctx, 429, "overloaded", "more events come in than the database stores; nothing of this request was taken, send it again", -1)
}

// unavailable answers 503. The events may or may not be stored, but for ErrClosed, where they are not.
func (s *Server) unavailable(ctx exchange, err error) {
	const again = "send the request again: events that carry an event_id are stored once however often they come"
	retryAfter(ctx, time.Second)
	switch {
	case errors.Is(err, pipeline.ErrClosed):
		ctx.SetConnectionClose()
		problem(ctx, 503, "draining", "the server is shutting down and took nothing; send the request again", -1)
	case errors.Is(err, context.DeadlineExceeded):
		problem(ctx, 503, "outcome-unknown", fmt.Sprintf("the outcome was not known within %s (ingest.answer-timeout); %s", s.cfg.AnswerTimeout, again), -1)
	case errors.Is(err, pipeline.ErrUnavailable):
		problem(ctx, 503, "unavailable", "the database is away; "+again, -1)
	default:
		s.log.Error("ingest: events were not stored", "error", err)
		problem(ctx, 503, "unavailable", "the events could not be stored; "+again, -1)
	}
}

func (s *Server) fail(ctx exchange, f *failure) {
	switch f.status {
	case 429:
		retryAfter(ctx, time.Second)
	case 415:
		ctx.Response.Header.Set("Accept-Encoding", "gzip, zstd")
	}
	problem(ctx, f.status, f.kind, f.detail, f.offset)
}

// mediaType says whether a Content-Type is one that is known, and whether it is NDJSON. Without one, a body is taken
// for JSON; browsers' beacons say text/plain.
func mediaType(t []byte) (lines, ok bool) {
	if string(t) == "application/json" { // nearly always
		return false, true
	}
	kind, params, _ := bytes.Cut(t, []byte(";"))
	if params = bytes.ToLower(params); bytes.Contains(params, []byte("charset")) {
		_, charset, _ := bytes.Cut(params, []byte("charset="))
		charset, _, _ = bytes.Cut(charset, []byte(";"))
		switch string(bytes.Trim(charset, ` "`)) {
		case "utf-8", "utf8", "us-ascii":
		default:
			return false, false
		}
	}
	switch string(bytes.ToLower(bytes.TrimSpace(kind))) {
	case "", "application/json", "text/json", "text/plain":
		return false, true
	case "application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines", "application/jsonlines":
		return true, true
	}
	return false, false
}

// prefersAsync looks for respond-async among the preferences (RFC 7240).
func prefersAsync(h *fasthttp.RequestHeader) bool {
	if len(h.Peek("Prefer")) == 0 {
		return false
	}
	found := false
	for _, line := range h.PeekAll("Prefer") {
		for _, p := range bytes.FieldsFunc(line, func(r rune) bool { return r == ',' || r == ';' }) {
			found = found || bytes.EqualFold(bytes.TrimSpace(p), []byte("respond-async"))
		}
	}
	return found
}
