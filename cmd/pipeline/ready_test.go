package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"sluice.example/sluice/internal/cli"
	"sluice.example/sluice/internal/pgtest"
)

// The ready file has every address and no password, replaces that of a process that was killed, and goes with its own.
func TestReadyFile(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	sep := "?"
	if strings.Contains(url, "?") {
		sep = "&"
	}
	node := startNode(t, url+sep+"password=hunter2", "--roles", "deliver")
	file := node.Log() + ".ready"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	database, _, _ := strings.Cut(url, "?")
	if node.URL != "" || !strings.HasPrefix(node.Admin, "http://127.0.0.1:") ||
		strings.Contains(string(text), "hunter2") || !strings.HasPrefix(node.Database, database) {
		t.Errorf("a node that takes no events wrote %s", text)
	}
	if log := node.Tail(100); strings.Contains(log, "hunter2") {
		t.Errorf("the log tells the password:\n%s", log)
	}
	signalNode(t, node, syscall.SIGTERM)
	if got := exit(t, node, time.Minute); got != 0 {
		t.Errorf("exit status %d, want 0", got)
	}
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after the end: %v; want no file", err)
	}
	old := filepath.Join(t.TempDir(), "ready")
	if err := (cli.Ready{URL: "http://127.0.0.1:1"}).Write(old); err != nil {
		t.Fatal(err)
	}
	late := launch(t, "run", "--ready-file", old, "--database-url", "postgres://127.0.0.1:1/x", "--database.start-timeout",
		"1s",
		"--listen", "127.0.0.1:0", "--admin.listen", "127.0.0.1:0",
		"--console.listen", "127.0.0.1:0", "--log.format", "json")
	if got := exit(t, late, time.Minute); got != 1 {
		t.Errorf("exit status %d, want 1", got)
	}
	if _, err := os.Stat(old); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file of an earlier process is still there: %v", err)
	}
}
