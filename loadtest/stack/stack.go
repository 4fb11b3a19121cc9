// Package stack starts what a load run needs, a pipeline and a receiver, each as a process of its own on free
// loopback ports, joined by the rules and destinations of loadtest/. Both sign and verify with a secret made for the run.
package stack

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"syscall"
	"time"
)

// Options say how to start.
type Options struct {
	// Program is the path of bin/pipeline, Folder that of loadtest/.
	Program, Folder string
	// PipelineArgs and ReceiverArgs come after ours.
	PipelineArgs, ReceiverArgs []string
	// Env is added to the environment, for example DATABASE_URL.
	Env []string
	// Log gets what both write.
	Log io.Writer
}

// Stack is a running pipeline and a receiver.
type Stack struct {
	// URL takes events, Admin answers operators, Receiver takes webhooks.
	URL, Admin, Receiver string
	pipeline, receiver   *process
}

// startTimeout bounds the start, with a private PostgreSQL that has to be made first.
const startTimeout = 2 * time.Minute

// Start starts both and returns when the pipeline is ready. Call Stop in any case but an error.
func Start(ctx context.Context, o Options) (_ *Stack, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	key := make([]byte, 32)
	rand.Read(key) // never fails, see crypto/rand
	secret := "whsec_" + base64.StdEncoding.EncodeToString(key)
	log := &lockedWriter{w: o.Log}

	s := &Stack{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Stop())
		}
	}()
	env := append(os.Environ(), o.Env...)
	s.receiver, err = start(log, append(env, "RECEIVER_WEBHOOK_SECRET="+secret, "RECEIVER_SECRET="+secret), o.Program,
		append([]string{"receiver", "--listen", "127.0.0.1:0", "--keep-messages", "2000"}, o.ReceiverArgs...))
	if err != nil {
		return nil, err
	}
	if s.Receiver, err = s.receiver.url(ctx, "receiver"); err != nil {
		return nil, err
	}
	s.pipeline, err = start(log, append(env, "LOADTEST_RECEIVER="+s.Receiver, "LOADTEST_SECRET="+secret), o.Program,
		append([]string{"run", "--listen", "127.0.0.1:0", "--admin.listen", "127.0.0.1:0", "--log.format", "json",
			"--rules", filepath.Join(o.Folder, "rules.yaml"), "--destinations", filepath.Join(o.Folder, "destinations.yaml")}, o.PipelineArgs...))
	if err != nil {
		return nil, err
	}
	if s.Admin, err = s.pipeline.url(ctx, "admin address"); err != nil {
		return nil, err
	}
	if s.URL, err = s.pipeline.url(ctx, "taking events"); err != nil {
		return nil, err
	}
	return s, s.ready(ctx)
}

func (s *Stack) ready(ctx context.Context) error {
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.Admin+"/readyz", nil)
		if err != nil {
			return err
		}
		res, err := http.DefaultClient.Do(req)
		if err == nil {
			res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the pipeline did not become ready: %w", context.Cause(ctx))
		case <-s.pipeline.ended:
			return errors.New("the pipeline ended while it started; its log tells why")
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Stop lets the pipeline drain, then ends the receiver.
func (s *Stack) Stop() error {
	var errs []error
	for _, p := range []*process{s.pipeline, s.receiver} {
		if p != nil {
			errs = append(errs, p.stop())
		}
	}
	return errors.Join(errs...)
}

// process is a running program and the addresses that it says it listens on.
type process struct {
	name  string
	cmd   *exec.Cmd
	urls  chan [2]string
	known map[string]string
	ended chan struct{}
	err   error
}

func start(log io.Writer, env []string, program string, args []string) (*process, error) {
	p := &process{
		name: "pipeline " + args[0], cmd: exec.Command(program, args...), urls: make(chan [2]string, 8),
		known: map[string]string{}, ended: make(chan struct{}),
	}
	p.cmd.Env = env
	p.cmd.WaitDelay = 5 * time.Second // what the program started may hold its output open
	// A Ctrl-C is for whoever started the run, who then stops us in order.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, in := io.Pipe()
	p.cmd.Stdout, p.cmd.Stderr = in, in
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", p.name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		in.Close()
		close(p.ended)
	}()
	go p.read(out, log)
	return p, nil
}

var receiverLine = regexp.MustCompile(`^receiver: listening on (http://[0-9.:]+)`)

// read passes the output on and picks out the addresses.
func (p *process) read(out io.Reader, log io.Writer) {
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		fmt.Fprintf(log, "%s: %s\n", p.name, lines.Bytes())
		var entry struct{ Msg, URL string }
		if m := receiverLine.FindSubmatch(lines.Bytes()); m != nil {
			entry.Msg, entry.URL = "receiver", string(m[1])
		} else if json.Unmarshal(lines.Bytes(), &entry) != nil {
			continue
		}
		if entry.URL != "" && len(p.urls) < cap(p.urls) {
			p.urls <- [2]string{entry.Msg, baseURL(entry.URL)}
		}
	}
	_, _ = io.Copy(io.Discard, out) // a line too long; the program must not wait for us
}

var base = regexp.MustCompile(`^https?://[^/]+`)

func baseURL(url string) string { return base.FindString(url) }

// url waits for the line that tells an address.
func (p *process) url(ctx context.Context, message string) (string, error) {
	for p.known[message] == "" {
		select {
		case u := <-p.urls:
			p.known[u[0]] = u[1]
		case <-p.ended:
			return "", fmt.Errorf("%s ended while it started: %w", p.name, p.err)
		case <-ctx.Done():
			return "", fmt.Errorf("%s: no %q in its log: %w", p.name, message, context.Cause(ctx))
		}
	}
	return p.known[message], nil
}

// stopTimeout is longer than the pipeline's own drain-timeout.
const stopTimeout = time.Minute

func (p *process) stop() error {
	select {
	case <-p.ended:
		return fmt.Errorf("%s ended before it was told to: %w", p.name, p.err)
	default:
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	select {
	case <-p.ended:
		if p.err != nil {
			return fmt.Errorf("%s: %w", p.name, p.err)
		}
		return nil
	case <-time.After(stopTimeout):
		err := p.cmd.Process.Kill()
		return errors.Join(fmt.Errorf("%s did not end within %s and was killed", p.name, stopTimeout), err)
	}
}

// lockedWriter lets two processes write whole lines.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}
