package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/pprof"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// readiness reports whether the process should get traffic. Its zero value is of a process that starts.
type readiness struct {
	// checks all have to pass; set once, when everything runs.
	checks   atomic.Pointer[[]func(ctx context.Context) error]
	draining atomic.Bool
}

func (r *readiness) started(checks ...func(ctx context.Context) error) { r.checks.Store(&checks) }

func (r *readiness) check(ctx context.Context) error {
	if r.draining.Load() {
		return errors.New("draining: the process is stopping")
	}
	checks := r.checks.Load()
	if checks == nil {
		return errors.New("starting: the database is not ready yet")
	}
	var errs []error
	for _, c := range *checks {
		if err := c(ctx); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// newRegistry has the runtime's own metrics and the version.
func newRegistry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		collectors.NewBuildInfoCollector())
	return reg
}

// adminHandler serves operators. Everything on it is for a private network.
func adminHandler(reg *prometheus.Registry, ready *readiness, book http.Handler, log *slog.Logger) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second)
		defer cancel()
		if err := ready.check(ctx); err != nil {
			log.Debug("not ready", "reason", err)
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ready")
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{Registry: reg,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelError)}))
	mux.Handle("GET /v1/books", book)
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", http.NotFound) // it may hold a password
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return mux
}
