package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"sluice.example/sluice/internal/child"
	"sluice.example/sluice/operate/books"
)

// Program is a running pipeline, or another process that serves as a floor.
type Program struct{ *child.Process }

const startTimeout = time.Minute

// startProgram starts binary with args, its log in dir, and returns when it is ready. It gets none of the caller's
// settings from the environment, but those of env.
func startProgram(ctx context.Context, binary, dir string, env []string, args ...string) (*Program, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	log, err := os.CreateTemp(dir, args[0]+"-*.log")
	if err != nil {
		return nil, err
	}
	log.Close()
	p, err := child.Start(ctx, child.Command{Program: binary, Args: args, Env: append(child.Environ(), env...),
		Log: log.Name()})
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	return &Program{p}, nil
}

// startPipeline starts "pipeline run" on the database and waits until it is ready.
func startPipeline(ctx context.Context, binary, dir string, db *Database, args ...string) (*Program, error) {
	args = append([]string{"run", "--listen", "127.0.0.1:0", "--admin.listen", "127.0.0.1:0",
		"--console.listen", "127.0.0.1:0", "--log.format", "json"},
		args...)
	p, err := startProgram(ctx, binary, dir, []string{"DATABASE_URL=" + db.URL}, args...)
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

// books asks the program for its books since a mark, empty for its start.
func (p *Program) books(ctx context.Context, since string) (*books.Answer, error) {
	a, err := books.Fetch(ctx, p.Admin, since)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	return a, nil
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
