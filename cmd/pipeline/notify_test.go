package main

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"sluice.example/sluice/internal/child"
	"sluice.example/sluice/internal/pgtest"
)

// manager is the socket of a service manager, as systemd makes it for a service of Type=notify.
type manager struct {
	conn *net.UnixConn
	file string
}

func newManager(t *testing.T) manager {
	t.Helper()
	file := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: file, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return manager{conn, file}
}

// run starts "pipeline run" as a service and does not wait for it.
func (m manager) run(t *testing.T, args ...string) *child.Process {
	t.Helper()
	c := command(t, append([]string{"run", "--listen", "127.0.0.1:0", "--admin.listen", "127.0.0.1:0",
		"--console.listen", "127.0.0.1:0", "--log.format", "json"}, args...))
	c.Env = append(c.Env, "NOTIFY_SOCKET="+m.file)
	return watch(t)(child.Launch(c))
}

// told waits for the next message, for at most within; "" means that none came.
func (m manager) told(t *testing.T, within time.Duration) string {
	t.Helper()
	if err := m.conn.SetReadDeadline(time.Now().Add(within)); err != nil {
		t.Fatal(err)
	}
	var text [4096]byte
	n, err := m.conn.Read(text[:])
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return ""
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(text[:n])
}

// A service manager hears how long a start may take, that everything runs, and that the process stops; each once. The
// private PostgreSQL, which has words for a manager of its own, does not speak for us.
func TestServiceManagerIsTold(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	node := m.run(t, "--data-dir", publicDir(t)+"/data", "--database.start-timeout", "3m", "--drain-delay", "1s",
		"--drain-timeout", "20s")
	if got, want := m.told(t, time.Minute), "EXTEND_TIMEOUT_USEC=190000000"; got != want {
		t.Errorf("at the start it said %q, want %q: database.start-timeout, and 10 s", got, want)
	}
	ready := m.told(t, 3*time.Minute)
	status, found := strings.CutPrefix(ready, "READY=1\nSTATUS=taking events at ")
	if !found {
		t.Fatalf("when it was ready it said %q", ready)
	}
	if r := postEvents(client(t), status, testEvent("a", time.Now())); r.err != nil || r.status != 200 || r.Stored != 1 {
		t.Errorf("an event at once after READY=1: %+v", r)
	}
	signalNode(t, node, syscall.SIGTERM)
	want := "STOPPING=1\nEXTEND_TIMEOUT_USEC=31000000\nSTATUS=draining"
	if got := m.told(t, time.Minute); got != want {
		t.Errorf("after SIGTERM it said %q, want %q: drain-delay, drain-timeout, and 10 s", got, want)
	}
	if got := exit(t, node, time.Minute); got != 0 {
		t.Errorf("exit status %d, want 0", got)
	}
	if got := m.told(t, time.Millisecond); got != "" {
		t.Errorf("it also said %q", got)
	}
}

// A start that fails never says that it is ready.
func TestServiceManagerIsNotToldOfAFailedStart(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	node := m.run(t, "--database-url", "postgres://nobody@127.0.0.1:1/x", "--database.start-timeout", "1s")
	if got := exit(t, node, time.Minute); got != 1 {
		t.Errorf("exit status %d, want 1", got)
	}
	if got, want := m.told(t, time.Millisecond), "EXTEND_TIMEOUT_USEC=11000000"; got != want {
		t.Errorf("at the start it said %q, want %q", got, want)
	}
	if got := m.told(t, time.Millisecond); got != "" {
		t.Errorf("it also said %q", got)
	}
}

// A manager that is not there is no reason not to run.
func TestServiceManagerThatIsGone(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	m.conn.Close()
	ready := filepath.Join(t.TempDir(), "ready")
	node := m.run(t, "--data-dir", publicDir(t)+"/data", "--ready-file", ready)
	logged(t, node, `"msg":"not told"`)
	pgtest.Eventually(t, "the node is ready", func() bool {
		_, err := os.Stat(ready)
		return err == nil
	})
	signalNode(t, node, syscall.SIGTERM)
	if got := exit(t, node, time.Minute); got != 0 {
		t.Errorf("exit status %d, want 0", got)
	}
}
