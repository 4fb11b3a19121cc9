package copyin

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"sluice.example/sluice/internal/localpg"
	"sluice.example/sluice/pipeline"
	"sluice.example/sluice/pipeline/schema"
)

// The disk is full, really: it says so at once, in the error, the counter, readiness and one line of the log, and the
// first batch after there is room is stored.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("a small file system can be mounted by root alone")
	}
	root, err := os.MkdirTemp("", "copyin-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	small := filepath.Join(root, "small")
	if err := errors.Join(os.Chmod(root, 0o755), os.Mkdir(small, 0o755)); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", small, "tmpfs", 0, "size=4m"); err != nil {
		t.Skipf("mounting is refused here: %v", err)
	}
	t.Cleanup(func() { syscall.Unmount(small, syscall.MNT_DETACH) })
	cfg := localpg.DefaultConfig()
	cfg.DataDir, cfg.Logger = filepath.Join(root, "data"), slog.New(slog.DiscardHandler)
	cfg.Settings = map[string]string{"fsync": "off", "shared_buffers": "16MB", "min_wal_size": "32MB"}
	server, err := localpg.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Stop(context.Background()) })
	info, err := os.Stat(filepath.Join(root, "data", "postgres"))
	if err != nil {
		t.Fatal(err)
	}
	space := filepath.Join(small, "space")
	owner := info.Sys().(*syscall.Stat_t)
	if err := errors.Join(os.Mkdir(space, 0o700), os.Chown(space, int(owner.Uid), int(owner.Gid))); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := schema.Migrate(t.Context(), conn, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	conn.Close(t.Context())
	pool, err := pgxpool.New(t.Context(), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	exec(t, pool, `create tablespace small location '`+space+`'`)
	exec(t, pool, `alter database sluice set default_tablespace = small`)
	pool.Reset()

	var lines bytes.Buffer
	w := newWriter(t, pool)
	w.log = slog.New(slog.NewTextHandler(&lines, nil))
	mustWrite(t, w, events(1)) // makes the partition there
	filler := filepath.Join(small, "filler")
	if err := os.WriteFile(filler, make([]byte, 8<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the small file system took 8 MiB: %v", err)
	}
	failed := 0
	for i := 0; failed < 20 && i < 1000; i++ {
		begin := time.Now()
		es := events(200)
		verdicts, err := w.Write(t.Context(), es)
		if err == nil {
			continue // the last pages
		}
		failed++
		if !errors.Is(err, pipeline.ErrDiskFull) || !errors.Is(err, pipeline.ErrUnavailable) || verdicts != nil {
			t.Fatalf("Write = %v, want ErrDiskFull", err)
		}
		if took := time.Since(begin); took > 5*time.Second {
			t.Errorf("it took %s to say that the disk is full", took)
		}
	}
	if got := counterValue(t, w.m.failed.WithLabelValues("disk-full")); failed != 20 || got != 20 {
		t.Errorf("%d batches failed, %v counted as disk-full, want 20", failed, got)
	}
	if err := w.Trouble(); err == nil || !strings.Contains(err.Error(), "disk is full") {
		t.Errorf("Trouble = %v, want the disk", err)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	checkOutcomes(t, mustWrite(t, w, events(3)), "sss")
	if err := w.Trouble(); err != nil {
		t.Errorf("Trouble = %v with room again", err)
	}
	said := 0
	for line := range strings.Lines(lines.String()) {
		if strings.Contains(line, "batches are") {
			said++
		}
	}
	if said != 2 || !strings.Contains(lines.String(), "cause=disk-full") {
		t.Errorf("the log has %d lines about it, want one when it began and one when it ended:\n%s", said, lines.String())
	}
}

// A log that repeats itself counts what it left out.
func TestFailuresAreLoggedByTheMinute(t *testing.T) {
	t.Parallel()
	var lines bytes.Buffer
	log := slog.New(slog.NewTextHandler(&lines, nil))
	var f failing
	for range 5 {
		f.note(log, "unavailable", 10, pipeline.ErrUnavailable)
	}
	f.said = f.said.Add(-sayEvery)
	f.note(log, "unavailable", 10, pipeline.ErrUnavailable)
	f.note(log, "disk-full", 10, pipeline.ErrDiskFull)
	f.end(log)
	f.end(log)
	for _, want := range []string{
		"cause=unavailable batches=1", "cause=unavailable batches=5 events=50", "cause=disk-full batches=1",
	} {
		if strings.Count(lines.String(), want) != 1 {
			t.Errorf("the log lacks %q:\n%s", want, lines.String())
		}
	}
	if n := strings.Count(lines.String(), "\n"); n != 4 {
		t.Errorf("%d lines, want 4:\n%s", n, lines.String())
	}
}
