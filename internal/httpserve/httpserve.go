// Package httpserve serves plain HTTP to operators and in trials: the admin address, and the receiver of webhooks.
package httpserve

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"
)

// Serve serves until ctx ends, then lets requests finish for at most drain. Requests that hang are cut off.
func Serve(ctx context.Context, l net.Listener, h http.Handler, drain time.Duration) error {
	requests, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	server := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		BaseContext:       func(net.Listener) context.Context { return requests },
	}
	stopped := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		limit, cancel := context.WithTimeout(requests, drain)
		defer cancel()
		err := server.Shutdown(limit)
		if errors.Is(err, context.DeadlineExceeded) {
			cut()
			err = server.Close()
		}
		stopped <- err
	})
	err := server.Serve(l)
	if stop() {
		return err // it failed by itself
	}
	return <-stopped
}
