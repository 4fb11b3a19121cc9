// Package child runs the project's own program as another process: for the demo, the benchmarks, the load runs and the
// tests. A child writes into a log file, so it outlives whoever reads that; it is in a process group of its own, so that
// a Ctrl-C reaches it in its turn. It ends with Stop or Kill only.
package child

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
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
	// Ready is a text of the log line after which the process is started.
	Ready string
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
	// URL takes events (or webhooks, of a receiver), Admin answers operators, Database is the private PostgreSQL: what
	// the log told before the line that says ready, else empty. None ends with a slash.
	URL, Admin, Database string

	name, log string
	cmd       *exec.Cmd
	ended     chan struct{}
	err       error // of Wait; after ended
}

// interval is how often the log and /readyz are looked at.
const interval = 10 * time.Millisecond

// stopTimeout is longer than a pipeline's default drain-timeout, after which it ends by itself.
const stopTimeout = 90 * time.Second

// Start starts a child and returns when it is ready, or with an error that holds the end of its log; then nothing runs.
// ctx bounds the start alone.
func Start(ctx context.Context, c Command) (*Process, error) {
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
	p := &Process{name: "pipeline " + c.Args[0], log: c.Log, cmd: exec.Command(c.Program, c.Args...), ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.Env = c.Env
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", p.name, err)
	}
	go func() { // ends with the process
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	if err := p.await(ctx, func() bool { return p.readLog(c.Ready) }); err != nil {
		return nil, err
	}
	return p, nil
}

// AwaitReady returns when the admin address says that the pipeline is ready; after an error nothing runs any more.
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

// readLog looks for the line that holds ready, and for the addresses in the lines up to it.
func (p *Process) readLog(ready string) bool {
	f, err := os.Open(p.log)
	if err != nil {
		return false
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		var entry struct{ Msg, URL string }
		if json.Unmarshal([]byte(line), &entry) == nil {
			switch entry.Msg {
			case "admin address":
				p.Admin = entry.URL
			case "private PostgreSQL runs":
				p.Database = entry.URL
			case "taking events":
				p.URL = strings.TrimSuffix(entry.URL, eventsPath)
			}
		} else if _, rest, ok := strings.Cut(line, "receiver: listening on "); ok {
			p.URL, _, _ = strings.Cut(rest, ",")
		}
		if strings.Contains(line, ready) {
			return true
		}
	}
	return false
}

// Events is where events are posted.
func (p *Process) Events() string { return p.URL + eventsPath }

const eventsPath = "/v1/events"

// Pid is the process id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Signal sends a signal; a process that has ended is no error.
func (p *Process) Signal(s os.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	return nil
}

// Ended is closed when the process has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Wait waits for the end and gives it: nil, or an *exec.ExitError.
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
		return errors.Join(fmt.Errorf("%s did not end within %s and was killed; see %s", p.name, stopTimeout, p.log), p.Kill())
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
