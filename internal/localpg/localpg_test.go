package localpg

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/internal/wait"
)

// childDir has the test binary be a program that uses the data directory named by it, until it is killed.
const childDir = "LOCALPG_TEST_CHILD_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		s, err := Start(context.Background(), testConfig(dir))
		fmt.Println(err)
		if err == nil {
			fmt.Println(s.URL())
			select {}
		}
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func testConfig(dir string) Config {
	cfg := DefaultConfig()
	cfg.DataDir = dir
	cfg.Logger = slog.New(slog.DiscardHandler)
	cfg.Settings = map[string]string{"fsync": "off", "shared_buffers": "16MB"}
	return cfg
}

// tempDir is short, so that the socket fits in, and open to the server's user. (t.TempDir is neither.)
func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "localpg-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func mustStart(t *testing.T, cfg Config) *Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	s, err := Start(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

func mustStop(t *testing.T, s *Server) {
	t.Helper()
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// query runs SQL that gives one text.
func query(t *testing.T, url, sql string) (string, error) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		return "", err
	}
	defer conn.Close(t.Context())
	var text string
	err = conn.QueryRow(t.Context(), sql).Scan(&text)
	return text, err
}

func mustQuery(t *testing.T, url, sql, want string) {
	t.Helper()
	if got, err := query(t, url, sql); err != nil || got != want {
		t.Fatalf("%s = %q, %v; want %q", sql, got, err, want)
	}
}

// mustRemember commits something, mustKnow asks for it.
func mustRemember(t *testing.T, url string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), `create table memory as select 'kept' as what`); err != nil {
		t.Fatal(err)
	}
}

func mustKnow(t *testing.T, url string) {
	t.Helper()
	mustQuery(t, url, `select what from memory`, "kept")
}

// eventually waits for a condition of the outside world.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(4 * time.Minute); !condition(); {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
		wait.For(t.Context(), 10*time.Millisecond)
	}
}

func TestKeepsDataAndSettings(t *testing.T) {
	t.Parallel()
	cfg := testConfig(tempDir(t))
	// What a killed initdb leaves behind.
	if err := os.MkdirAll(filepath.Join(cfg.DataDir, "postgres.unfinished", "base"), 0o700); err != nil {
		t.Fatal(err)
	}
	s := mustStart(t, cfg)
	mustRemember(t, s.URL())
	mustQuery(t, s.URL(), `show fsync`, "off")
	mustQuery(t, s.URL(), `show listen_addresses`, "")
	mustQuery(t, s.URL(), `show max_wal_size`, "2GB")
	mustStop(t, s)
	if _, err := query(t, s.URL(), `select ''`); err == nil {
		t.Fatal("the server answers after Stop")
	}

	cfg.Settings = nil
	s = mustStart(t, cfg)
	mustKnow(t, s.URL())
	mustQuery(t, s.URL(), `show fsync`, "on")
	mustQuery(t, s.URL(), `show synchronous_commit`, "on")

	// An impatient Stop loses nothing either.
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Stop(ended); err != nil {
		t.Fatal(err)
	}
	mustKnow(t, mustStart(t, cfg).URL())
}

func TestRefusesADirectoryInUse(t *testing.T) {
	t.Parallel()
	cfg := testConfig(tempDir(t))
	s := mustStart(t, cfg)
	_, err := Start(t.Context(), cfg)
	if !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), "process "+strconv.Itoa(os.Getpid())) {
		t.Fatalf("second Start on one directory = %v; want ErrInUse with this process's id", err)
	}
	mustQuery(t, s.URL(), `select 'unharmed'`, "unharmed")
}

func TestRecoversFromAKilledProgram(t *testing.T) {
	t.Parallel()
	cfg := testConfig(tempDir(t))
	program := exec.Command(os.Args[0])
	program.Env = append(os.Environ(), childDir+"="+cfg.DataDir)
	out, err := program.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	lines.Scan()
	if lines.Text() != "<nil>" || !lines.Scan() {
		t.Fatalf("Start in the other program: %s", lines.Text())
	}
	mustRemember(t, lines.Text())
	if err := program.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	program.Wait() // "killed", as it should be
	mustKnow(t, mustStart(t, cfg).URL())
}

// launchAlone runs the server of a stopped s as nobody's child, as far as the package can see.
func launchAlone(t *testing.T, s *Server, args []string) *exec.Cmd {
	t.Helper()
	cmd := s.account.command(context.Background(), s.cluster, filepath.Join(s.bin.dir, "postgres"), args...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGQUIT) // the test may have ended it
		cmd.Wait()
	})
	eventually(t, "the lone server answers", func() bool {
		_, err := query(t, s.URL(), `select ''`)
		return err == nil
	})
	return cmd
}

func TestStopsAServerLeftBehind(t *testing.T) {
	t.Parallel()
	cfg := testConfig(tempDir(t))
	s := mustStart(t, cfg)
	mustRemember(t, s.URL())
	mustStop(t, s)
	launchAlone(t, s, cfg.serverArgs(s.cluster, s.socketDir))
	// Nobody has to be connected for it to be found, and somebody may be.
	conn, err := pgx.Connect(t.Context(), s.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	mustKnow(t, mustStart(t, cfg).URL())
	if err := conn.Ping(t.Context()); err == nil {
		t.Fatal("the server that was left behind still serves")
	}
}

func TestLeavesSomebodyElsesServerAlone(t *testing.T) {
	t.Parallel()
	cfg := testConfig(tempDir(t))
	s := mustStart(t, cfg)
	mustStop(t, s)
	other := launchAlone(t, s, []string{
		"-D", s.cluster, "-c", "listen_addresses=", "-c", "unix_socket_directories=" + s.cluster, "-c", "port=" + port,
	})
	_, err := Start(t.Context(), cfg)
	if !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), fmt.Sprint(other.Process.Pid)) {
		t.Fatalf("Start on the cluster of another server = %v; want ErrInUse with process %d", err, other.Process.Pid)
	}
	mustQuery(t, s.URL(), `select 'unharmed'`, "unharmed")
}

// What another process runs is found by its data directory, and one that is not there is told from a fault.
func TestFind(t *testing.T) {
	t.Parallel()
	cfg := testConfig(tempDir(t))
	if _, err := Find(cfg.DataDir); !errors.Is(err, ErrNotRunning) {
		t.Errorf("before the start: %v; want ErrNotRunning", err)
	}
	s := mustStart(t, cfg)
	found, err := Find(cfg.DataDir)
	if err != nil || found.URL != s.URL() || !found.Alive() {
		t.Errorf("found %+v, %v; want %s, alive", found, err, s.URL())
	}
	mustStop(t, s)
	if _, err := Find(cfg.DataDir); !errors.Is(err, ErrNotRunning) {
		t.Errorf("after the end: %v; want ErrNotRunning", err)
	}
}

func TestIgnoresARecycledProcessID(t *testing.T) {
	t.Parallel()
	cfg := testConfig(tempDir(t))
	s := mustStart(t, cfg)
	mustStop(t, s)
	// This very test has the number now.
	text := fmt.Sprintf("%d\n%s\n1\n%s\n%s\n\n0 0\n", os.Getpid(), s.cluster, port, s.cluster)
	name := filepath.Join(s.cluster, "postmaster.pid")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	mustQuery(t, mustStart(t, cfg).URL(), `select 'up'`, "up")
}

func TestRestartsAServerThatDies(t *testing.T) {
	t.Parallel()
	s := mustStart(t, testConfig(tempDir(t)))
	mustRemember(t, s.URL())
	for n := range int64(2) {
		left, _, err := readPidFile(s.cluster)
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(left.pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the server was restarted", func() bool { return s.restarts.Load() == n+1 })
		mustKnow(t, s.URL())
	}
}

func TestLongPathGetsAShortSocket(t *testing.T) {
	t.Parallel()
	cfg := testConfig(filepath.Join(tempDir(t), strings.Repeat("long", 15), strings.Repeat("long", 15)))
	s := mustStart(t, cfg)
	mustQuery(t, s.URL(), `select 'up'`, "up")
	info, err := os.Stat(s.socketDir)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Fatalf("socket folder: %v, %v; want mode 0700", info.Mode(), err)
	}
	mustStop(t, s)
	if _, err := os.Stat(s.socketDir); err == nil {
		t.Fatalf("%s is still there after Stop", s.socketDir)
	}
}

func TestClosedParentFolder(t *testing.T) {
	t.Parallel()
	closed := filepath.Join(tempDir(t), "closed")
	if err := os.Mkdir(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	cfg := testConfig(filepath.Join(closed, "checkout", ".pipeline"))
	if os.Geteuid() != 0 {
		mustQuery(t, mustStart(t, cfg).URL(), `select 'our own user may pass'`, "our own user may pass")
		return
	}
	_, err := Start(t.Context(), cfg)
	if err == nil ||
		!strings.Contains(err.Error(), "may not enter "+closed+":") || !strings.Contains(err.Error(), "--data-dir") {
		t.Fatalf("Start as root below a folder of mode 0700 = %v; want an error that names %s and --data-dir", err, closed)
	}
	info, err := os.Stat(closed)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Fatalf("the folder above the data directory was changed: %v, %v", info.Mode(), err)
	}
}

func TestFailedStartShowsTheLog(t *testing.T) {
	t.Parallel()
	cfg := testConfig(tempDir(t))
	cfg.Settings["shared_buffers"] = "nonsense"
	_, err := Start(t.Context(), cfg)
	if err == nil || !strings.Contains(err.Error(), `invalid value for parameter "shared_buffers"`) {
		t.Fatalf("Start with a bad setting = %v; want PostgreSQL's own words", err)
	}
	cfg.Settings = nil
	mustQuery(t, mustStart(t, cfg).URL(), `select 'up'`, "up") // and the lock was given back
}

func TestConfigNamesEveryFault(t *testing.T) {
	_, err := Start(t.Context(), Config{
		Settings: map[string]string{"port": "1", "listen_addresses": "*", "work_mem": "8MB"},
	})
	if err == nil {
		t.Fatal("want an error")
	}
	for _, part := range []string{"data-dir", "StopTimeout", "Logger", "setting port", "setting listen_addresses"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error = %q; want it to say %q", err, part)
		}
	}
	if strings.Contains(err.Error(), "work_mem") {
		t.Errorf("error = %q; it refuses a setting that may be changed", err)
	}
}

func TestServerKeepsItsMemory(t *testing.T) {
	t.Setenv("MALLOC_MMAP_THRESHOLD_", "4096")
	env := (*account)(nil).command(t.Context(), ".", "/bin/true").Environ()
	for _, want := range []string{"MALLOC_TRIM_THRESHOLD_=16777216", "MALLOC_MMAP_THRESHOLD_=4096"} {
		if !slices.Contains(env, want) {
			t.Errorf("the server's environment lacks %s; it has %q", want, env)
		}
	}
}
