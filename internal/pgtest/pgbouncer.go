package pgtest

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// NewPgBouncer starts a real PgBouncer in transaction mode for the database at address, which may be on a Unix socket,
// and returns the URL to connect to. Its few sessions go round, so that hardly two transactions of a client meet the
// same one. It ends with the test. Without the program the test is skipped.
func NewPgBouncer(t testing.TB, address string) string {
	t.Helper()
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		if program, err = exec.LookPath("/usr/sbin/pgbouncer"); err != nil {
			t.Skip("pgtest: pgbouncer is not installed; CI installs it with .ci/pgbouncer")
		}
	}
	cfg, err := pgx.ParseConfig(address)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	listen := free.Addr().(*net.TCPAddr)
	free.Close()
	dir, err := os.MkdirTemp("", "sluice-pgbouncer-")
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	file, log := filepath.Join(dir, "pgbouncer.ini"), filepath.Join(dir, "log")
	const settings = `[databases]
%[1]s = host=%[2]s port=%[3]d dbname=%[1]s user=%[4]s%[5]s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %[6]d
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 8
server_round_robin = 1
`
	password := ""
	if cfg.Password != "" {
		password = " password=" + cfg.Password
	}
	text := fmt.Sprintf(settings, cfg.Database, cfg.Host, cfg.Port, cfg.User, password, listen.Port)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	out, err := os.Create(log)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	defer out.Close()
	cmd := exec.Command(program, file)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: owner(cfg.Host)}
	if err := cmd.Start(); err != nil {
		t.Fatalf("pgtest: %s: %v", program, err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
	})
	u := url.URL{Scheme: "postgres", User: url.User(cfg.User), Host: listen.String(), Path: "/" + cfg.Database,
		RawQuery: "sslmode=disable&default_query_exec_mode=simple_protocol"}
	up := func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		conn, err := pgx.Connect(ctx, u.String())
		if err != nil {
			select {
			case <-ended:
				text, _ := os.ReadFile(log)
				t.Fatalf("pgtest: pgbouncer ended:\n%s", text)
			default:
			}
			return false
		}
		return conn.Close(ctx) == nil
	}
	Eventually(t, "pgbouncer answers", up, func() any { text, _ := os.ReadFile(log); return string(text) })
	return strings.TrimSuffix(u.String(), "&default_query_exec_mode=simple_protocol")
}

// owner is who has to run what connects to a socket in the folder: PostgreSQL's own user, where that runs as another
// one than the test, which is where the test is root. PgBouncer does not run as root either.
func owner(folder string) *syscall.Credential {
	if os.Geteuid() != 0 {
		return nil
	}
	info, err := os.Stat(folder)
	if err != nil {
		return nil
	}
	stat := info.Sys().(*syscall.Stat_t)
	if stat.Uid == 0 {
		return &syscall.Credential{Uid: 65534, Gid: 65534}
	}
	return &syscall.Credential{Uid: stat.Uid, Gid: stat.Gid}
}
