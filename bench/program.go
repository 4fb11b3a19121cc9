package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"sluice.example/sluice/internal/child"
)

// Program is a running pipeline, or another process that serves as a floor.
type Program struct{ *child.Process }

const startTimeout = time.Minute

// startProgram starts binary with args, its log in dir, and returns when that says ready. It gets none of the caller's
// settings from the environment, but those of env.
func startProgram(ctx context.Context, binary, dir, ready string, env []string, args ...string) (*Program, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	log, err := os.CreateTemp(dir, args[0]+"-*.log")
	if err != nil {
		return nil, err
	}
	log.Close()
	p, err := child.Start(ctx, child.Command{Program: binary, Args: args, Env: append(child.Environ(), env...), Log: log.Name(), Ready: ready})
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	return &Program{p}, nil
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
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := p.AwaitReady(ctx); err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	return p, nil
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
