package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Program is a running pipeline, or another process that serves as a floor.
type Program struct {
	// URL takes events, Admin answers operators.
	URL, Admin string

	cmd  *exec.Cmd
	done chan error
	log  string
}

const (
	startTimeout = time.Minute
	stopTimeout  = 90 * time.Second // longer than the program's own drain-timeout
)

// startProgram starts binary with args, in dir, and returns when its log says ready. It gets none of the caller's
// settings from the environment, but those of env.
func startProgram(ctx context.Context, binary, dir, ready string, env []string, args ...string) (*Program, error) {
	log, err := os.CreateTemp(dir, args[0]+"-*.log")
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p := &Program{cmd: exec.Command(binary, args...), done: make(chan error, 1), log: log.Name()}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	// Ctrl-C is for us; the program is told in its turn.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.Env = env
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "PIPELINE_") && !strings.HasPrefix(v, "DATABASE_URL=") && !strings.HasPrefix(v, "PG") {
			p.cmd.Env = append(p.cmd.Env, v)
		}
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("bench: start %s: %w", binary, err)
	}
	go func() { p.done <- p.cmd.Wait() }()
	deadline := time.After(startTimeout)
	for !p.readLog(ready) {
		select {
		case err := <-p.done:
			p.done <- err
			return nil, fmt.Errorf("bench: the program ended at its start: %w\n%s", err, p.said())
		case <-time.After(10 * time.Millisecond):
		case <-deadline:
			return nil, errors.Join(fmt.Errorf("bench: the program did not get ready within %s", startTimeout), p.Stop())
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), p.Stop())
		}
	}
	return p, nil
}

// startPipeline starts "pipeline run" on the database and waits until it is ready.
func startPipeline(ctx context.Context, binary, dir string, db *Database, args ...string) (*Program, error) {
	args = append([]string{"run", "--listen", "127.0.0.1:0", "--admin.listen", "127.0.0.1:0", "--log.format", "json"}, args...)
	ready := "taking events"
	for i, a := range args {
		if a == "--roles" && !strings.Contains(args[i+1], "ingest") {
			ready = "admin address"
		}
	}
	p, err := startProgram(ctx, binary, dir, ready, []string{"DATABASE_URL=" + db.URL}, args...)
	if err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(startTimeout); ; {
		if resp, err := http.Get(p.Admin + "/readyz"); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return p, nil
			}
		}
		select {
		case err := <-p.done:
			p.done <- err
			return nil, fmt.Errorf("bench: the program ended at its start: %w\n%s", err, p.said())
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), p.Stop())
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return nil, errors.Join(fmt.Errorf("bench: the program is not ready after %s\n%s", startTimeout, p.said()), p.Stop())
		}
	}
}

// readLog looks for the line that holds ready, and for the addresses in the lines up to it.
func (p *Program) readLog(ready string) bool {
	f, err := os.Open(p.log)
	if err != nil {
		return false
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		line := lines.Text()
		var entry struct{ Msg, URL string }
		if json.Unmarshal([]byte(line), &entry) == nil {
			switch entry.Msg {
			case "admin address":
				p.Admin = entry.URL
			case "taking events":
				p.URL = strings.TrimSuffix(entry.URL, "/v1/events")
			}
		}
		if strings.Contains(line, ready) {
			return true
		}
	}
	return false
}

// Stop lets the program drain and waits for its end.
func (p *Program) Stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case err := <-p.done:
		p.done <- err
		if err != nil {
			return fmt.Errorf("bench: the program did not end well: %w\n%s", err, p.said())
		}
		return nil
	case <-time.After(stopTimeout):
		return errors.Join(fmt.Errorf("bench: the program did not end within %s and was killed", stopTimeout), p.cmd.Process.Kill())
	}
}

// said is the end of its log.
func (p *Program) said() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-5):], "\n")
}

// metrics reads /metrics: the sum of each family's samples over all labels.
func (p *Program) metrics(ctx context.Context) (map[string]float64, error) {
	body, err := p.get(ctx, "/metrics")
	if err != nil {
		return nil, err
	}
	defer body.Body.Close()
	sums := map[string]float64{}
	for lines := bufio.NewScanner(body.Body); lines.Scan(); {
		line := lines.Text()
		name, _, _ := strings.Cut(line, " ")
		name, _, _ = strings.Cut(name, "{")
		if v, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64); err == nil && !strings.HasPrefix(line, "#") {
			sums[name] += v
		}
	}
	return sums, nil
}

// bookAnswer is what the checks need of /v1/books.
type bookAnswer struct {
	Mark    string
	Tenants []struct {
		Tenant                         int32
		Process, Database, Differences map[string]int64
	}
}

func (p *Program) books(ctx context.Context, since string) (*bookAnswer, error) {
	resp, err := p.get(ctx, "/v1/books?since="+since)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b := &bookAnswer{}
	return b, json.NewDecoder(resp.Body).Decode(b)
}

func (p *Program) get(ctx context.Context, path string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.Admin+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		resp.Body.Close()
		return nil, fmt.Errorf("bench: %s%s: %s", p.Admin, path, resp.Status)
	}
	return resp, nil
}

// scratch is a folder for the logs and files of a run's programs.
func scratch() (dir string, remove func() error, err error) {
	dir, err = os.MkdirTemp("", "pipeline-bench-run-")
	return dir, func() error { return os.RemoveAll(dir) }, err
}

func write(dir, name, text string) (string, error) {
	file := filepath.Join(dir, name)
	return file, os.WriteFile(file, []byte(text), 0o600)
}
