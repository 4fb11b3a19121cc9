// Package pgtest makes a real PostgreSQL database for each test, migrated, with event partitions for today and two days
// to either side. It is for _test.go files and bench/ only.
//
// The first call in a test binary starts a private server in a temporary folder; the others share it. Nothing has to
// be stopped: when the test binary ends, however it does, a waiting child process ends the server and removes the
// folder.
// PIPELINE_TEST_POSTGRES names the folder of PostgreSQL's programs to use in place of the newest that is found, and
// PIPELINE_TEST_DATABASE_URL names a running server to use instead; its user must be allowed to create databases.
//
// The server forgets everything when the machine stops (fsync=off); what PostgreSQL promises otherwise holds.
package pgtest

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"sluice.example/sluice/internal/localpg"
	"sluice.example/sluice/pipeline/schema"
)

// timeout bounds each thing done here, so that a test fails with a reason and not by go test's own timeout.
const timeout = 2 * time.Minute

// maxConns is the size of a test's pool. Tests of concurrency want more than pgx's default of 4.
const maxConns = 16

// New returns a pool on a fresh database, which is dropped at the end of the test. New(t).Config().ConnString() is its
// URL. A connection that is not given back by then fails the test.
func New(t testing.TB) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(URL(t))
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	cfg.MaxConns = maxConns
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() {
		closed := make(chan struct{})
		go func() { pool.Close(); close(closed) }()
		select {
		case <-closed:
		case <-time.After(30 * time.Second):
			t.Errorf("pgtest: %d connections of the pool were not given back at the end of the test",
				pool.Stat().AcquiredConns())
		}
	})
	return pool
}

// URL returns the address of a fresh database, which is dropped at the end of the test, even with connections open.
func URL(t testing.TB) string {
	t.Helper()
	server, err := shared()
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	name := fmt.Sprintf("sluice_test_%d_%d", os.Getpid(), databases.Add(1))
	if err := server.create(ctx, name); err != nil {
		t.Fatalf("pgtest: make database %s: %v", name, err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		if err := exec1(ctx, server.url, `drop database if exists `+name+` with (force)`); err != nil {
			t.Errorf("pgtest: drop database %s: %v", name, err)
		}
	})
	return withDatabase(server.url, name)
}

var databases atomic.Int64

// server is where databases are made. Those of our own server are copies of one that was migrated; on a server that is
// not ours each is migrated by itself, which leaves nothing behind there.
type server struct {
	url, template string
	// janitor is our end of the janitor's pipe. It has to stay reachable, or the garbage collector would close it.
	janitor io.Closer
}

var shared = sync.OnceValues(func() (server, error) {
	if u := os.Getenv("PIPELINE_TEST_DATABASE_URL"); u != "" {
		return server{url: u}, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	s, err := startServer(ctx)
	if err != nil {
		return server{}, err
	}
	const template = "sluice_template"
	if err := s.create(ctx, template); err != nil {
		return server{}, err
	}
	s.template = template
	return s, nil
})

// BinDir is the folder of PostgreSQL's programs that tests use, empty for the newest that is found.
func BinDir() string { return os.Getenv("PIPELINE_TEST_POSTGRES") }

func startServer(ctx context.Context) (server, error) {
	dir, err := os.MkdirTemp("", "sluice-pgtest-")
	if err != nil {
		return server{}, err
	}
	// PostgreSQL may run as another user than the test, who has to pass through.
	if err := os.Chmod(dir, 0o755); err != nil {
		return server{}, err
	}
	janitor, err := startJanitor(dir)
	if err != nil {
		return server{}, err
	}
	cfg := localpg.DefaultConfig()
	cfg.DataDir, cfg.BinDir = dir, BinDir()
	cfg.Logger = slog.New(slog.DiscardHandler)
	cfg.Settings = map[string]string{
		"fsync":            "off",
		"full_page_writes": "off", // of use only after a crash of the machine
		"min_wal_size":     "32MB",
		"max_connections":  "300",
		// For the test of what a prepared transaction holds back.
		"max_prepared_transactions": "10",
	}
	pg, err := localpg.Start(ctx, cfg)
	if err != nil {
		return server{}, err
	}
	return server{url: pg.URL(), janitor: janitor}, nil
}

// janitorScript waits for the end of its input, which is the end of the test binary, since only that holds the other
// end of the pipe.
const janitorScript = `
read -r nothing
pid=$(head -n 1 "$1/postgres/postmaster.pid" 2>/dev/null)
if [ -n "$pid" ]; then
	kill -QUIT "$pid"
	for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
		kill -0 "$pid" || break
		sleep 0.5
	done
fi
rm -rf "$1"
`

func startJanitor(dir string) (io.Closer, error) {
	cmd := exec.Command("/bin/sh", "-c", janitorScript, "janitor", dir)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is not for it
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return in, nil
}

func (s server) create(ctx context.Context, name string) error {
	statement := `create database ` + name
	if s.template != "" {
		statement += ` template ` + s.template
	}
	if err := exec1(ctx, s.url, statement); err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, withDatabase(s.url, name))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	if s.template == "" {
		if _, err := schema.Migrate(ctx, conn, slog.New(slog.DiscardHandler)); err != nil {
			return err
		}
	}
	_, err = conn.Exec(ctx, partitionsSQL)
	return err
}

// partitionsSQL costs a look-up each where the template has them already.
const partitionsSQL = `
select create_events_partition((now() at time zone 'UTC')::date + i) from generate_series(-2, 2) as i`

func exec1(ctx context.Context, url, statement string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, statement)
	return err
}

func withDatabase(address, name string) string {
	u, err := url.Parse(address)
	if err != nil {
		return address // connecting to it reports what is wrong
	}
	u.Path = "/" + name
	return u.String()
}
