package main

import (
	"net/http"
	"testing"

	"sluice.example/sluice/internal/pgtest"
)

// TestAdminIsNotForWebPages: a name that a page made point here reads nothing, and no path shows the command line,
// which may hold a password.
func TestAdminIsNotForWebPages(t *testing.T) {
	t.Parallel()
	node := startNode(t, pgtest.URL(t), "--admin.hosts", "sluice")
	for _, c := range []struct {
		host, path string
		want       int
	}{
		{"rebound.example", "/v1/books", 403}, {"rebound.example", "/debug/pprof/heap", 403},
		{"rebound.example", "/readyz", 200}, {"sluice:9090", "/metrics", 200}, {"", "/v1/books", 200},
		{"", "/debug/pprof/cmdline", 404}, {"", "/debug/pprof/goroutine", 200},
	} {
		r, err := http.NewRequestWithContext(t.Context(), "GET", node.Admin+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = c.host
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != c.want {
			t.Errorf("Host %q, %s: %d; want %d", c.host, c.path, res.StatusCode, c.want)
		}
	}
}
