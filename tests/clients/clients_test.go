// Package clients drives the SDKs that people use against the stages from socket to COMMIT, on a real PostgreSQL. It
// needs node and npm.
package clients

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/internal/tenants"
	"sluice.example/sluice/pipeline"
	"sluice.example/sluice/pipeline/buffer"
	"sluice.example/sluice/pipeline/copyin"
	"sluice.example/sluice/pipeline/ingest"
)

// trouble stands before the buffer: its first calls fail.
type trouble struct {
	ingest.Buffer
	left atomic.Int64
	err  error
}

func (b *trouble) Add(ctx context.Context, events []pipeline.Event) ([]pipeline.Verdict, error) {
	if b.left.Add(-1) >= 0 {
		return nil, b.err
	}
	return b.Buffer.Add(ctx, events)
}

// start runs the stages; the first `fails` requests meet err. Pages of shop.example.com may send.
func start(t *testing.T, fails int64, err error) (url string, pool *pgxpool.Pool) {
	t.Helper()
	pool = pgtest.New(t)
	return serve(t, pool, fails, err), pool
}

// serve runs the stages on a database.
func serve(t *testing.T, pool *pgxpool.Pool, fails int64, err error) (url string) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	reg := prometheus.NewRegistry()
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	w, werr := copyin.New(copyin.DefaultConfig(), pool, func([]pipeline.Event) copyin.Recorder { return nil },
		copyin.NewMetrics(reg), log)
	must(werr)
	buf, berr := buffer.New(buffer.DefaultConfig(), w.Write, buffer.NewMetrics(reg))
	must(berr)
	buf.RefuseWhile(w.Away)
	front := &trouble{Buffer: buf, err: err}
	front.left.Store(fails)
	cfg := ingest.DefaultConfig()
	cfg.CORSOrigins = []string{"https://shop.example.com"}
	server, serr := ingest.New(cfg, front, tenants.Set{}, ingest.NewMetrics(reg), log)
	must(serr)
	ln, lerr := net.Listen("tcp", "127.0.0.1:0")
	must(lerr)

	serving, stopServing := context.WithCancel(context.Background())
	writing, stopWriting := context.WithCancel(context.Background())
	var running sync.WaitGroup
	var served sync.WaitGroup
	served.Go(func() {
		if err := server.Serve(serving, ln); err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	running.Go(func() {
		if err := buf.Run(writing); err != nil {
			t.Errorf("buffer: %v", err)
		}
	})
	t.Cleanup(func() {
		stopServing()
		served.Wait()
		stopWriting()
		running.Wait()
	})
	return "http://" + ln.Addr().String()
}

// cutting forwards requests, and ends the connection in place of the answers for which cut returns true: the events are
// committed, and the client does not know.
func cutting(t *testing.T, to string, cut func(n int64) bool) (url string, cuts *atomic.Int64) {
	t.Helper()
	cuts = new(atomic.Int64)
	var n atomic.Int64
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
			return
		}
		req, err := http.NewRequestWithContext(r.Context(), r.Method, to+r.URL.RequestURI(), bytes.NewReader(body))
		if err != nil {
			t.Error(err)
			return
		}
		req.Header = r.Header.Clone()
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Error(err)
			panic(http.ErrAbortHandler)
		}
		defer resp.Body.Close()
		if r.Method == "POST" && cut(n.Add(1)) {
			cuts.Add(1)
			panic(http.ErrAbortHandler)
		}
		maps.Copy(w.Header(), resp.Header)
		w.WriteHeader(resp.StatusCode)
		io.Copy(w, resp.Body)
	}))
	t.Cleanup(proxy.Close)
	return proxy.URL, cuts
}

var installed = sync.OnceValue(func() error {
	if exec.Command("npm", "ls").Run() == nil {
		return nil // what package.json asks for is there
	}
	if out, err := exec.Command("npm", "ci", "--no-audit", "--no-fund").CombinedOutput(); err != nil {
		return fmt.Errorf("npm ci: %w\n%s", err, out)
	}
	return nil
})

// run runs a script and reads what it prints at its end. env is set beside HOST, KEY and COUNT.
func run(t *testing.T, script, host string, count int, result any, env ...string) {
	t.Helper()
	if err := installed(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", script)
	cmd.Env = append(os.Environ(), "HOST="+host, "KEY=key", fmt.Sprintf("COUNT=%d", count))
	cmd.Env = append(cmd.Env, env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s%s", script, err, stdout.String(), stderr.String())
	}
	if stderr.Len() > 0 {
		t.Logf("%s says:\n%.2000s", script, stderr.String())
	}
	lines := strings.Split(strings.TrimSpace(stdout.String()), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), result); err != nil {
		t.Fatalf("%s printed %q: %v", script, stdout.String(), err)
	}
}

// query returns one text.
func query(t *testing.T, pool *pgxpool.Pool, sql string) string {
	t.Helper()
	var s *string
	if err := pool.QueryRow(t.Context(), sql).Scan(&s); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	if s == nil {
		return ""
	}
	return *s
}

// counted checks that the events of a loop came once each, and no others beside those that are told.
func counted(t *testing.T, pool *pgxpool.Pool, name string, count, others int) {
	t.Helper()
	got := query(t, pool, fmt.Sprintf(`select format('%%s events, %%s different, %%s others',
		count(*) filter (where event_name = '%[1]s'),
		count(distinct properties->>'i') filter (where event_name = '%[1]s'),
		count(*) filter (where event_name <> '%[1]s')) from events`, name))
	if want := fmt.Sprintf("%d events, %d different, %d others", count, count, others); got != want {
		t.Errorf("stored: %s; want %s", got, want)
	}
}
