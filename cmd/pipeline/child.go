package main

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
	"strings"
	"syscall"
	"time"
)

// child is another process of this program.
type child struct {
	cmd  *exec.Cmd
	done chan error
	log  string
	// What it said about itself.
	url, adminURL, databaseURL string
}

// startChild starts this program with args, its output going to name.log in dir, and returns when the log says ready.
// It gets none of our settings from the environment, since the demo is about a pipeline of its own, but those of extra.
func startChild(ctx context.Context, dir, name, ready string, extra []string, args ...string) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &child{done: make(chan error, 1), log: filepath.Join(dir, name+".log")}
	out, err := os.Create(c.log)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	c.cmd = exec.Command(self, args...)
	c.cmd.Stdout, c.cmd.Stderr = out, out
	// Ctrl-C is for us; the children are told in their order.
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.cmd.Env = extra
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "PIPELINE_") && !strings.HasPrefix(v, "DATABASE_URL=") && !strings.HasPrefix(v, "PG") && !strings.HasPrefix(v, "RECEIVER_") {
			c.cmd.Env = append(c.cmd.Env, v)
		}
	}
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { c.done <- c.cmd.Wait() }()
	for {
		if c.readLog(ready) {
			return c, nil
		}
		select {
		case err := <-c.done:
			c.done <- err
			if c.readLog(ready) { // it said so just before
				return c, nil
			}
			return nil, fmt.Errorf("the %s ended at its start: %w\n%s", name, err, lastLines(c.log, 5))
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), c.stop())
		}
	}
}

// readLog looks for the line that holds ready, and for the addresses in the lines up to it.
func (c *child) readLog(ready string) bool {
	f, err := os.Open(c.log)
	if err != nil {
		return false
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		line := lines.Text()
		var entry struct{ Msg, URL string }
		if json.Unmarshal([]byte(line), &entry) == nil {
			switch entry.Msg {
			case "admin address":
				c.adminURL = entry.URL
			case "private PostgreSQL runs":
				c.databaseURL = entry.URL
			case "taking events":
				c.url = entry.URL
			}
		} else if _, rest, ok := strings.Cut(line, "listening on "); ok {
			c.url, _, _ = strings.Cut(rest, ",")
		}
		if strings.Contains(line, ready) {
			return true
		}
	}
	return false
}

// stop tells the child to drain and waits for it.
func (c *child) stop() error {
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	err := <-c.done
	c.done <- err
	if err != nil {
		return fmt.Errorf("%s: %w; see %s", c.cmd.Args[1], err, c.log)
	}
	return nil
}

func lastLines(file string, n int) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// awaitReady waits until /readyz says so.
func awaitReady(ctx context.Context, admin string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, admin+"/readyz", nil)
		if err != nil {
			return err
		}
		if res, err := http.DefaultClient.Do(req); err == nil {
			res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return nil
			}
		}
		if !wait(ctx, 20*time.Millisecond) {
			return errors.New("the pipeline did not get ready within a minute")
		}
	}
}

func fetchJSON(ctx context.Context, url string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	return json.NewDecoder(res.Body).Decode(into)
}
