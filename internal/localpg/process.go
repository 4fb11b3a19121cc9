package localpg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/sourcegraph/conc"

	"sluice.example/sluice/internal/wait"
)

// process is one run of the server.
type process struct {
	cmd      *exec.Cmd
	exited   chan struct{} // closed when the server is gone
	err      error         // how it ended; read it after exited
	waiter   conc.WaitGroup
	log      *os.File
	logStart int64 // where this run's part of the log begins
}

// start runs the server and keeps the thread that started it until it ends, see killWithParent.
func (s *Server) start() (*process, error) {
	p := &process{exited: make(chan struct{}), log: s.log}
	info, err := s.log.Stat()
	if err != nil {
		return nil, err
	}
	p.logStart = info.Size()
	// Not a command that dies with a context: SIGKILL is the one signal that a server must not get.
	args := s.cfg.serverArgs(s.cluster, s.socketDir)
	p.cmd = s.account.command(context.Background(), s.cluster, filepath.Join(s.bin.dir, "postgres"), args...)
	p.cmd.Stdout, p.cmd.Stderr = s.log, s.log
	killWithParent(p.cmd.SysProcAttr, syscall.SIGINT)
	started := make(chan error, 1)
	p.waiter.Go(func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.exited)
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.err = p.cmd.Wait()
		}
	})
	if err := <-started; err != nil {
		p.waiter.Wait()
		return nil, err
	}
	return p, nil
}

// runPinned runs a short command to its end and returns what it printed.
func runPinned(cmd *exec.Cmd) ([]byte, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.WaitDelay = 5 * time.Second // a killed initdb's own child may hold the pipe a little longer
	return cmd.CombinedOutput()
}

// crashGrace is how long a new server may be refused because backends of the dead one still hold its shared memory.
// They end by themselves once they notice.
const crashGrace = 20 * time.Second

// launch starts the server and waits until it answers. Where it fails, nothing is left running.
func (s *Server) launch(ctx context.Context, crashed bool) (*process, error) {
	began := time.Now()
	for {
		p, err := s.start()
		if err != nil {
			return nil, err
		}
		if err = s.awaitReady(ctx, p); err == nil {
			return p, nil
		}
		err = errors.Join(err, p.shutdown(ctx, s.cfg.StopTimeout))
		if !crashed || ctx.Err() != nil || time.Since(began) > crashGrace || !errors.Is(err, errExited) {
			return nil, fmt.Errorf("%w; the end of %s:\n%s", err, s.log.Name(), tail(p.logged(), 20))
		}
		wait.For(ctx, 100*time.Millisecond)
	}
}

var errExited = errors.New("PostgreSQL ended while starting")

func (s *Server) awaitReady(ctx context.Context, p *process) error {
	for {
		conn, err := pgx.Connect(ctx, s.url("postgres"))
		if err == nil {
			return conn.Close(ctx)
		}
		var refused *pgconn.PgError
		if errors.As(err, &refused) && refused.Code != "57P03" { // cannot_connect_now: starting, or recovering
			return err
		}
		select {
		case <-p.exited:
			return fmt.Errorf("%w: %w", errExited, p.err)
		case <-ctx.Done():
			return fmt.Errorf("PostgreSQL does not answer yet: %w", ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// shutdown returns when the server is gone. What it does when ctx has ended already is to skip the patient way.
func (p *process) shutdown(ctx context.Context, patience time.Duration) error {
	defer p.waiter.Wait()
	fast, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if p.signal(fast, syscall.SIGINT) {
		return nil
	}
	// PostgreSQL itself kills what does not end within 5 s of this.
	hard, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if p.signal(hard, syscall.SIGQUIT) {
		return nil
	}
	p.signal(context.WithoutCancel(ctx), syscall.SIGKILL)
	return errors.New("PostgreSQL ended neither by a fast nor by an immediate shutdown and was killed")
}

// signal sends one and waits for the end of the process or of ctx.
func (p *process) signal(ctx context.Context, sig os.Signal) (gone bool) {
	select {
	case <-p.exited:
		return true
	default:
	}
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return false
	}
	select {
	case <-p.exited:
		return true
	case <-ctx.Done():
		return false
	}
}

// maxLogBytes is when the log of the runs before is put aside, in place of the one that was put aside before it.
const maxLogBytes = 16 << 20

func openLog(path string) (*os.File, error) {
	if info, err := os.Stat(path); err == nil && info.Size() > maxLogBytes {
		if err := os.Rename(path, path+".old"); err != nil {
			return nil, err
		}
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
}

// logged is what this run wrote, at most the last 64 KB.
func (p *process) logged() string {
	info, err := p.log.Stat()
	if err != nil {
		return err.Error()
	}
	from := max(p.logStart, info.Size()-64<<10)
	text, err := io.ReadAll(io.NewSectionReader(p.log, from, info.Size()-from))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// tail returns the last n lines.
func tail(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
