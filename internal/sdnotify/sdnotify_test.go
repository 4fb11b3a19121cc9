package sdnotify

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestTell(t *testing.T) {
	for _, name := range []string{filepath.Join(t.TempDir(), "notify"), "@sluice-" + filepath.Base(t.TempDir()) +
		filepath.Base(os.Args[0])} {
		if name[0] == '@' && !abstract(t) {
			continue
		}
		l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		t.Setenv(variable, name)
		m := Take()
		if left, set := os.LookupEnv(variable); set {
			t.Errorf("%s is still %q: children would speak for this process", variable, left)
		}
		if err := m.Tell("READY=1", Within(1500*time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		var text [100]byte
		n, err := l.Read(text[:])
		if want := "READY=1\nEXTEND_TIMEOUT_USEC=1500000"; err != nil || string(text[:n]) != want {
			t.Errorf("at %s came %q, %v; want %q", name, text[:n], err, want)
		}
	}
}

// abstract reports whether the system has sockets without a file, as Linux does.
func abstract(t *testing.T) bool {
	t.Helper()
	_, err := os.Stat("/proc/net/unix")
	return err == nil
}

func TestTellNobody(t *testing.T) {
	t.Setenv(variable, "")
	if err := Take().Tell("READY=1"); err != nil {
		t.Errorf("without a manager: %v", err)
	}
	t.Setenv(variable, filepath.Join(t.TempDir(), "none"))
	if err := Take().Tell("READY=1"); err == nil || !strings.Contains(err.Error(), variable) {
		t.Errorf("a manager that is not there: %v; want an error that names %s", err, variable)
	}
}

// A manager that reads nothing holds a message up for a moment only.
func TestTellIsBounded(t *testing.T) {
	name := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	m := Manager{name}
	for range 1 << 20 {
		if err = m.Tell("STATUS=" + strings.Repeat("x", 1000)); err != nil {
			break
		}
	}
	if err == nil || !os.IsTimeout(err) && !strings.Contains(err.Error(), "timeout") {
		t.Errorf("messages that nobody reads: %v; want a timeout", err)
	}
}
