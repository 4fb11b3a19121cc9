package localpg

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/sourcegraph/conc"

	"sluice.example/sluice/internal/wait"
)

// role and database are what the program connects as and to.
const (
	role     = "sluice"
	database = "sluice"
)

// maxSocketPath is what fits into a socket address on every system (macOS has 104 bytes, Linux 108), without the NUL.
const maxSocketPath = 103

const socketDirPrefix = "sluice-pg-"

// Server is a running private PostgreSQL.
type Server struct {
	cfg       Config
	bin       binaries
	account   *account
	cluster   string
	socketDir string
	lock      *os.File
	log       *os.File

	child      *process // the supervisor's until that has ended
	restarts   atomic.Int64
	cancel     context.CancelFunc // ends the supervisor
	supervisor conc.WaitGroup
	stop       sync.Once
	stopErr    error
}

// Start makes the cluster where there is none, starts PostgreSQL, and returns when it answers. Recovery from a crash
// may take long: ctx bounds it. ctx counts until Start returns; after that, Stop ends the server.
func Start(ctx context.Context, cfg Config) (_ *Server, err error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg}
	defer func() {
		if err != nil {
			err = fmt.Errorf("private PostgreSQL: %w", errors.Join(err, s.release()))
		}
	}()
	dataDir, err := filepath.Abs(cfg.DataDir)
	if err != nil {
		return nil, err
	}
	s.cluster = filepath.Join(dataDir, "postgres")
	if err := makeDataDir(dataDir); err != nil {
		return nil, err
	}
	if s.lock, err = lock(dataDir); err != nil {
		return nil, err
	}
	major, err := clusterMajor(s.cluster)
	if err != nil {
		return nil, err
	}
	dirs := candidates(ctx)
	if cfg.BinDir != "" {
		dirs = []string{cfg.BinDir}
	}
	if s.bin, err = choose(ctx, dirs, major); err != nil {
		return nil, err
	}
	if s.account, err = chooseAccount(s.cluster); err != nil {
		return nil, err
	}
	if err := s.account.checkReach(ctx, dataDir, s.bin); err != nil {
		return nil, err
	}
	crashed := false
	if major != 0 {
		crashed, err = clearLeftover(ctx, s.cluster, cfg.Logger)
	} else {
		cfg.Logger.InfoContext(ctx, "making a private PostgreSQL", "folder", s.cluster, "version", s.bin.major)
		err = makeCluster(ctx, s.cluster, s.bin, s.account, cfg.Settings["fsync"] != "off")
	}
	if err != nil {
		return nil, err
	}
	if err := s.chooseSocketDir(ctx); err != nil {
		return nil, err
	}
	if s.log, err = openLog(filepath.Join(dataDir, "postgres.log")); err != nil {
		return nil, err
	}
	if s.child, err = s.launch(ctx, crashed); err != nil {
		return nil, err
	}
	if err := s.createDatabase(ctx); err != nil {
		return nil, errors.Join(err, s.child.shutdown(ctx, cfg.StopTimeout))
	}
	cfg.Logger.InfoContext(ctx, "private PostgreSQL runs",
		"version", s.bin.major, "url", s.URL(), "pid", s.child.cmd.Process.Pid)
	var running context.Context
	running, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	s.supervisor.Go(func() { s.supervise(running) })
	return s, nil
}

// URL is what to connect to; it stays the same until Stop, also over restarts.
func (s *Server) URL() string { return s.url(database) }

func (s *Server) url(name string) string { return urlOf(s.socketDir, name) }

func urlOf(socketDir, name string) string {
	return "postgres:///" + name + "?host=" + url.QueryEscape(socketDir) +
		"&port=" + port + "&user=" + role + "&sslmode=disable"
}

// Stop shuts the server down: fast, and where that has not ended with ctx or after Config.StopTimeout, immediately.
// Everything committed is kept either way. It returns when the server is gone. Further calls return the same.
func (s *Server) Stop(ctx context.Context) error {
	s.stop.Do(func() {
		s.cancel()
		s.supervisor.Wait()
		if s.child != nil {
			s.stopErr = s.child.shutdown(ctx, s.cfg.StopTimeout)
		}
		if err := errors.Join(s.stopErr, s.release()); err != nil {
			s.stopErr = fmt.Errorf("private PostgreSQL: stop: %w", err)
		}
	})
	return s.stopErr
}

// release lets go of what Start took, the lock last.
func (s *Server) release() error {
	var err error
	if s.socketDir != "" && s.socketDir != s.cluster {
		err = os.RemoveAll(s.socketDir)
	}
	for _, f := range []*os.File{s.log, s.lock} {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
	}
	return err
}

// supervise starts PostgreSQL again whenever it ends by itself, until ctx ends. It never gives up: the program's
// readiness tells that it has no database, and an operator may be about to free the full disk.
func (s *Server) supervise(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.child.exited:
		}
		s.cfg.Logger.ErrorContext(ctx, "private PostgreSQL died, starting it again",
			"cause", s.child.err, "log", s.log.Name(), "last_lines", tail(s.child.logged(), 5))
		s.child = nil
		for delay := 100 * time.Millisecond; ; delay = min(2*delay, 10*time.Second) {
			child, err := s.launch(ctx, true)
			if err == nil {
				s.child = child
				s.restarts.Add(1)
				s.cfg.Logger.InfoContext(ctx, "private PostgreSQL runs again", "pid", child.cmd.Process.Pid)
				break
			}
			if ctx.Err() == nil {
				s.cfg.Logger.ErrorContext(ctx, "private PostgreSQL does not start", "error", err, "next_try_in", delay)
			}
			if !wait.For(ctx, delay) {
				return
			}
		}
	}
}

// makeDataDir makes a folder that the server's user can pass, whatever the umask says.
func makeDataDir(dir string) error {
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.Chmod(dir, 0o755)
}

// chooseSocketDir takes the cluster's own folder, which nobody else can enter, or a short private one where the path
// would be too long for a socket address.
func (s *Server) chooseSocketDir(ctx context.Context) error {
	fits := func(dir string) bool { return len(dir)+len("/.s.PGSQL."+port) <= maxSocketPath }
	if fits(s.cluster) {
		s.socketDir = s.cluster
		return nil
	}
	parent := os.TempDir()
	if !fits(filepath.Join(parent, socketDirPrefix+"0123456789")) {
		parent = "/tmp"
	}
	if err := s.account.checkReach(ctx, parent, s.bin); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(parent, socketDirPrefix)
	if err != nil {
		return err
	}
	s.socketDir = dir
	return s.account.own(dir)
}

const (
	databaseExistsSQL = `select exists (select from pg_database where datname = $1)`
	createDatabaseSQL = `create database ` + database
)

func (s *Server) createDatabase(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.url("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var exists bool
	if err := conn.QueryRow(ctx, databaseExistsSQL, database).Scan(&exists); err != nil || exists {
		return err
	}
	_, err = conn.Exec(ctx, createDatabaseSQL)
	return err
}
