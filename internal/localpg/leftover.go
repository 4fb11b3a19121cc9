package localpg

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"sluice.example/sluice/internal/wait"
)

// lock takes the data directory for this program. The kernel releases it when the file is closed, so also when the
// program is killed. The file itself stays: removing it would let two programs lock two files of the same name.
func lock(dataDir string) (*os.File, error) {
	path := filepath.Join(dataDir, "lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		holder, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("%w: %s, by process %s. "+
			"Stop that one, choose another --data-dir, or let both use one DATABASE_URL",
			ErrInUse, dataDir, strings.TrimSpace(string(holder)))
	}
	if err := errors.Join(f.Truncate(0), write(f, strconv.Itoa(os.Getpid())+"\n")); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func write(f *os.File, text string) error {
	_, err := f.WriteAt([]byte(text), 0)
	return err
}

// ErrInUse: another live process uses the data directory.
var ErrInUse = errors.New("the data directory is in use")

// pidFile is what PostgreSQL writes into postmaster.pid, as far as we need it: process id, data directory, start time,
// port, socket directory.
type pidFile struct {
	pid       int
	socketDir string
}

// Running is a private PostgreSQL that some process runs.
type Running struct {
	Pid int
	URL string
}

// ErrNotRunning: nobody runs a private PostgreSQL there, as far as its files tell.
var ErrNotRunning = errors.New("no PostgreSQL runs there")

// Find tells of the private PostgreSQL that another process runs under a data directory, or fails with ErrNotRunning. A
// server that was killed counts as running until it is started anew.
func Find(dataDir string) (Running, error) {
	f, found, err := readPidFile(filepath.Join(dataDir, "postgres"))
	switch {
	case err != nil:
		return Running{}, err
	case !found:
		return Running{}, fmt.Errorf("%s: %w", dataDir, ErrNotRunning)
	case f.pid == 0 || f.socketDir == "":
		return Running{}, fmt.Errorf("the PostgreSQL under %s is just starting", dataDir)
	}
	return Running{Pid: f.pid, URL: urlOf(f.socketDir, database)}, nil
}

// Alive reports whether the server's process exists.
func (r Running) Alive() bool { return !errors.Is(syscall.Kill(r.Pid, 0), syscall.ESRCH) }

func readPidFile(cluster string) (pidFile, bool, error) {
	text, err := os.ReadFile(filepath.Join(cluster, "postmaster.pid"))
	if errors.Is(err, fs.ErrNotExist) {
		return pidFile{}, false, nil
	} else if err != nil {
		return pidFile{}, false, err
	}
	lines := strings.Split(string(text), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(lines[0]))
	if err != nil || pid <= 1 {
		return pidFile{}, true, nil // cut off by a crash of the machine: nothing lives behind it
	}
	f := pidFile{pid: pid}
	if len(lines) > 4 {
		f.socketDir = strings.TrimSpace(lines[4])
	}
	return f, true, nil
}

// commandLine of a live process; empty where there is none, or it is a zombie.
func commandLine(ctx context.Context, pid int) string {
	if _, err := os.Stat("/proc/self/cmdline"); err == nil {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil {
			return ""
		}
		return strings.ReplaceAll(string(text), "\x00", " ")
	}
	text, err := exec.CommandContext(ctx, "ps", "-ww", "-o", "command=", "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		return ""
	}
	return string(text)
}

// clearLeftover deals with what an earlier run left behind. It must be called with the lock held, so the program that
// started what is found here is dead. It returns true where a server had not been shut down.
//
// A server of ours is stopped, not adopted: only a child's end can be waited for, and only a child gets this run's
// settings and log. A server of somebody else's is left alone and reported.
func clearLeftover(ctx context.Context, cluster string, log *slog.Logger) (bool, error) {
	left, found, err := readPidFile(cluster)
	if err != nil || !found {
		return false, err
	}
	command := commandLine(ctx, left.pid)
	switch {
	case left.pid == 0 || command == "": // dead
	case !strings.Contains(command, "postgres"):
		// The number has passed on to some other program, and PostgreSQL would take that for a server.
		for _, name := range []string{
			filepath.Join(cluster, "postmaster.pid"), filepath.Join(left.socketDir, ".s.PGSQL."+port+".lock"),
		} {
			if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return true, err
			}
		}
	case isOurs(command, cluster):
		log.WarnContext(ctx, "an earlier run left its PostgreSQL behind, stopping it", "pid", left.pid)
		if err := stopProcess(ctx, cluster, left.pid); err != nil {
			return true, err
		}
	default:
		return true, fmt.Errorf("%w: %s, by a PostgreSQL server that this program did not start, process %d (%s). "+
			"Stop it first, or choose another --data-dir", ErrInUse, cluster, left.pid, strings.TrimSpace(command))
	}
	if ours := filepath.Base(left.socketDir); strings.HasPrefix(ours, socketDirPrefix) {
		if err := os.RemoveAll(left.socketDir); err != nil {
			log.WarnContext(ctx, "cannot remove the socket folder of an earlier run",
				"folder", left.socketDir, "error", err)
		}
	}
	return true, nil
}

// isOurs recognises a server that this program started on the cluster by its command line.
func isOurs(command, cluster string) bool {
	return strings.Contains(command, " -D "+cluster+" ") && strings.Contains(command, marker)
}

// leftoverTimeout is for each of the two ways to stop a server that was left behind.
const leftoverTimeout = 15 * time.Second

func stopProcess(ctx context.Context, cluster string, pid int) error {
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGQUIT} { // fast, immediate
		if err := syscall.Kill(pid, signal); errors.Is(err, syscall.ESRCH) {
			return nil
		} else if err != nil {
			return fmt.Errorf("stop PostgreSQL, process %d: %w", pid, err)
		}
		for end := time.Now().Add(leftoverTimeout); time.Now().Before(end); {
			if !isOurs(commandLine(ctx, pid), cluster) {
				return nil
			}
			if !wait.For(ctx, 20*time.Millisecond) {
				return ctx.Err()
			}
		}
	}
	return fmt.Errorf("%w: %s, by a PostgreSQL server that does not stop, process %d", ErrInUse, cluster, pid)
}
