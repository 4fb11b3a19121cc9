// Package child runs the project's own program as another process: for the demo, the benchmarks, the load runs and the
// tests. A child writes into a log file, so it outlives whoever reads that; it is in a process group of its own, so
// that a Ctrl-C reaches it in its turn. It ends with Stop or Kill only.
package child

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"sluice.example/sluice/internal/cli"
)

// Command says what to start.
type Command struct {
	// Program is a path; empty is the program that runs now.
	Program string
	// Args begin with the program's command, which is also its name in errors.
	Args []string
	// Env is the whole environment; see Environ.
	Env []string
	// Log is the file that gets standard output and error; it is made anew.
	Log string
}

// Environ is this process's environment without the settings of a pipeline, a receiver or a PostgreSQL client, so that
// the child has defaults and what its arguments say.
func Environ() []string {
	var env []string
	for _, v := range os.Environ() {
		setting := false
		for _, prefix := range []string{"PIPELINE_", "RECEIVER_", "DATABASE_URL=", "PG"} {
			setting = setting || strings.HasPrefix(v, prefix)
		}
		if !setting {
			env = append(env, v)
		}
	}
	return env
}

// Process is a started child. Its methods are safe for concurrent use.
type Process struct {
	// Ready has the addresses that the process wrote when it was ready.
	cli.Ready

	name, log string
	cmd       *exec.Cmd
	ended     chan struct{}
	err       error // of Wait; after ended
}

// interval is how often the ready file and /readyz are looked at.
const interval = 10 * time.Millisecond

// stopTimeout is longer than a pipeline's default drain-timeout, after which it ends by itself.
const stopTimeout = 90 * time.Second

// Launch starts a child and does not wait until it is ready.
func Launch(c Command) (*Process, error) {
	if c.Program == "" {
		self, err := os.Executable()
		if err != nil {
			return nil, err
		}
		c.Program = self
	}
	log, err := os.Create(c.Log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p := &Process{
		name:  "pipeline " + c.Args[0],
		log:   c.Log,
		cmd:   exec.Command(c.Program, c.Args...),
		ended: make(chan struct{}),
	}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.Env = c.Env
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", p.name, err)
	}
	p.Pid = p.cmd.Process.Pid
	go func() { // ends with the process
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// Start starts a child with --ready-file added to its arguments, and returns once it has written that file, or with an
// error that holds the end of its log; then nothing runs. ctx bounds the start alone.
func Start(ctx context.Context, c Command) (*Process, error) {
	file := c.Log + ".ready"
	if err := cli.RemoveReady(file); err != nil {
		return nil, err
	}
	c.Args = append(slices.Clone(c.Args), "--ready-file", file)
	p, err := Launch(c)
	if err != nil {
		return nil, err
	}
	var readErr error
	err = p.await(ctx, func() bool {
		var r cli.Ready
		if r, readErr = cli.ReadReady(file); readErr == nil {
			p.Ready = r
		}
		return !errors.Is(readErr, fs.ErrNotExist)
	})
	if err != nil {
		return nil, err
	}
	if readErr != nil {
		return nil, errors.Join(readErr, p.Stop())
	}
	return p, nil
}

// AwaitReady returns when /readyz of the admin address answers 200; after an error nothing runs any more.
func (p *Process) AwaitReady(ctx context.Context) error {
	return p.await(ctx, func() bool {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.Admin+"/readyz", nil)
		if err != nil {
			return false
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return false
		}
		res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
}

// await waits for a condition, and stops a process that ctx does not give time for it.
func (p *Process) await(ctx context.Context, condition func() bool) error {
	for !condition() {
		select {
		case <-p.ended:
			if condition() { // it became true just before the end
				return nil
			}
			return fmt.Errorf("%s ended at its start: %w\n%s", p.name, p.err, p.Tail(5))
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("%s did not get ready: %w\n%s", p.name, context.Cause(ctx), p.Tail(5)), p.Stop())
		case <-time.After(interval):
		}
	}
	return nil
}

// Events is where events are posted.
func (p *Process) Events() string { return p.URL + eventsPath }

const eventsPath = "/v1/events"

// Signal sends a signal; a process that has ended is not an error.
func (p *Process) Signal(s os.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	return nil
}

// Ended is closed when the process has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Wait waits for the end and returns it: nil, or an *exec.ExitError.
func (p *Process) Wait() error {
	<-p.ended
	return p.err
}

// Stop lets the process drain and waits for its end, which has to be a good one.
func (p *Process) Stop() error {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-p.ended:
		if p.err != nil {
			return fmt.Errorf("%s did not end well: %w\n%s", p.name, p.err, p.Tail(5))
		}
		return nil
	case <-time.After(stopTimeout):
		return errors.Join(fmt.Errorf("%s did not end within %s and was killed; see %s", p.name, stopTimeout, p.log),
			p.Kill())
	}
}

// Kill ends the process without asking it, and waits.
func (p *Process) Kill() error {
	err := p.Signal(syscall.SIGKILL)
	if err == nil {
		<-p.ended
	}
	return err
}

// Log is the name of the log file.
func (p *Process) Log() string { return p.log }

// Tail is the end of the log, n lines of it.
func (p *Process) Tail(n int) string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
