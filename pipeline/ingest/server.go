package ingest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sourcegraph/conc/pool"
	"github.com/valyala/fasthttp"

	"sluice.example/sluice/internal/certfile"
	"sluice.example/sluice/internal/tenants"
	"sluice.example/sluice/pipeline"
	"sluice.example/sluice/pipeline/ingest/body"
)

// Buffer takes events towards the database. It keeps the slice and what it refers to.
type Buffer interface {
	// Add waits for the outcome of the events. verdicts[i] belongs to events[i]. When ctx ends first, the events go on
	// and only the outcome is lost.
	Add(ctx context.Context, events []pipeline.Event) ([]pipeline.Verdict, error)
	// AddAsync returns once there is room in memory.
	AddAsync(events []pipeline.Event) error
	// Room returns the error that Add would return now for events of about this many bytes. It reserves nothing.
	Room(bytes int) error
}

// Server answers HTTP requests. It is safe for concurrent use.
type Server struct {
	cfg     Config
	buffer  Buffer
	metrics *Metrics
	log     *slog.Logger

	cert     *certfile.Pair // nil: plain HTTP
	callers  atomic.Pointer[callers]
	bodies   *body.Reader
	decoders sync.Pool
	inFlight atomic.Int64
	draining atomic.Bool
	leaving  atomic.Bool
	drain    context.Context // ends when draining begins
	shut     context.CancelFunc
	waiting  context.Context // ends when nobody is to wait for an outcome any more
	hasten   context.CancelFunc
	patience atomic.Pointer[patience]
}

// New checks the configuration; the error names everything that is wrong with it. It starts nothing.
func New(cfg Config, buf Buffer, who tenants.Set, m *Metrics, log *slog.Logger) (*Server, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, buffer: buf, metrics: m, log: log}
	s.drain, s.shut = context.WithCancel(context.Background())
	s.waiting, s.hasten = context.WithCancel(context.Background())
	s.decoders.New = func() any { return new(decoder) }
	var err error
	if cfg.TLSCertFile != "" {
		if s.cert, err = certfile.Open(cfg.TLSCertFile, cfg.TLSKeyFile, log); err != nil {
			return nil, fmt.Errorf("ingest.tls-cert-file, ingest.tls-key-file: %w", err)
		}
	}
	s.bodies, err = body.NewReader(body.Config{MaxBodyBytes: cfg.MaxBodyBytes, MaxDecodedBytes: cfg.MaxDecodedBytes,
		MaxReadingBytes: cfg.MaxReadingBytes, ReadTimeout: cfg.ReadTimeout}, body.Metrics{Wire: m.wire, Reading: m.reading})
	if err == nil {
		s.use(who)
	}
	return s, err
}

// Serve answers what comes in on ln, which it closes, until ctx ends. It is called once. When ctx ends it takes no new
// connections, closes the idle ones, answers the requests that are on their way, and returns nil. That takes at most
// the timeouts of reading, answering and writing together; after that it returns an error.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	srv := &fasthttp.Server{
		Handler:                      s.handle,
		ErrorHandler:                 s.handleError,
		ExpectHandler:                s.expect,
		Name:                         "sluice",
		Concurrency:                  maxConnections,
		ReadTimeout:                  s.cfg.ReadTimeout,
		IdleTimeout:                  s.cfg.IdleTimeout,
		WriteTimeout:                 writeTimeout,
		MaxRequestBodySize:           s.cfg.MaxBodyBytes,
		ReadBufferSize:               16 << 10, // bounds the header as well
		StreamRequestBody:            true,
		DisablePreParseMultipartForm: true,
		NoDefaultContentType:         true,
		CloseOnShutdown:              true,
		SecureErrorLogMessage:        true,
		Logger:                       slogPrinter{s.log},
	}
	plain := ln
	ln = body.Listen(ln)
	if s.cert != nil {
		ln = tls.NewListener(ln, s.cert.Config())
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
	defer time.AfterFunc(s.cfg.DrainTimeout, s.hasten).Stop()
	grace := s.cfg.ReadTimeout + s.cfg.AnswerTimeout + writeTimeout
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

// Leave asks clients to go elsewhere: from now on every answer ends its connection. Requests are still taken, until
// Serve is told to stop.
func (s *Server) Leave() { s.leaving.Store(true) }

// Reading is the memory of the bodies that are being read and decoded, in bytes.
func (s *Server) Reading() int { return s.bodies.InUse() }

// slogPrinter logs what fasthttp reports, which is about single connections.
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
		problem(ctx, 408, "timeout",
			fmt.Sprintf("the request did not come within %s (ingest.read-timeout)", s.cfg.ReadTimeout), -1)
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
	if s.leaving.Load() {
		ctx.SetConnectionClose()
	}
}
