package localpg

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// account is the operating system user that the server runs as; nil stands for our own.
type account struct {
	uid, gid uint32
	name     string
}

// chooseAccount keeps our own user unless that is root. A cluster that exists stays with its owner.
func chooseAccount(cluster string) (*account, error) {
	info, err := os.Stat(cluster)
	exists := err == nil
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var owner *syscall.Stat_t
	if exists {
		owner = info.Sys().(*syscall.Stat_t)
	}
	if me := os.Geteuid(); me != 0 {
		if exists && int(owner.Uid) != me {
			return nil, fmt.Errorf("%s belongs to user id %d and this program runs as %d: "+
				"run it as that user or as root, or choose another --data-dir", cluster, owner.Uid, me)
		}
		return nil, nil
	}
	if exists && owner.Uid != 0 {
		return &account{owner.Uid, owner.Gid, "user id " + strconv.Itoa(int(owner.Uid))}, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err := errors.Join(err1, err2); err != nil {
			return nil, fmt.Errorf("user %s: %w", name, err)
		}
		return &account{uint32(uid), uint32(gid), "user " + name}, nil
	}
	return nil, errors.New("PostgreSQL refuses to run as root, and there is neither a user postgres " +
		"nor a user nobody to run it as: make one, run this program as another user, or set DATABASE_URL")
}

// own makes the account the owner of a path, and of nothing above or below it.
func (a *account) own(path string) error {
	if a == nil {
		return nil
	}
	return os.Chown(path, int(a.uid), int(a.gid))
}

// keepMemory lets a backend keep the few MiB that each COPY takes, instead of giving them back to the kernel after it:
// where backends move between processors, that interrupts all of them. glibc reads it, other libraries don't. 16 MiB is
// several times what a COPY of 2,000 rows takes; 8 MiB is PostgreSQL's largest usual block.
var keepMemory = []string{"MALLOC_TRIM_THRESHOLD_=16777216", "MALLOC_MMAP_THRESHOLD_=8388608"}

// command prepares a program of the server's to run as the account, in a process group of its own: a Ctrl-C at the
// terminal is for our program alone, which then stops the server in its turn.
func (a *account) command(ctx context.Context, dir, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	cmd.Env = slices.Clone(keepMemory) // the environment's own come later and count
	for _, v := range os.Environ() {
		// PGPORT, PGDATA and the like, and the locale, must not change what the cluster is.
		if !strings.HasPrefix(v, "PG") && !strings.HasPrefix(v, "LC_") && !strings.HasPrefix(v, "LANG") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if a != nil {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: a.uid, Gid: a.gid}
	}
	return cmd
}

// checkReach names the folder on the way to dir that the account may not pass; PostgreSQL itself names only the last.
func (a *account) checkReach(ctx context.Context, dir string, bin binaries) error {
	if a == nil {
		return nil
	}
	server := filepath.Join(bin.dir, "postgres")
	enter := func(dir string) error { return a.command(ctx, dir, server, "--version").Run() }
	if err := enter("/"); err != nil {
		return fmt.Errorf("run %s as %s: %w", server, a.name, err)
	}
	for i, r := range dir + "/" {
		if r != '/' || i == 0 {
			continue
		}
		err := enter(dir[:i])
		if errors.Is(err, fs.ErrPermission) {
			return fmt.Errorf("PostgreSQL refuses to run as root, so it runs as %s, which may not enter %s: "+
				"choose a --data-dir that every user can reach (for example /var/lib/sluice), "+
				"or allow it with chmod o+x %[2]s", a.name, dir[:i])
		} else if err != nil {
			return fmt.Errorf("run %s as %s in %s: %w", server, a.name, dir[:i], err)
		}
	}
	return nil
}

// clusterMajor is the major version that made the cluster, 0 where there is none.
func clusterMajor(cluster string) (int, error) {
	text, err := os.ReadFile(filepath.Join(cluster, "PG_VERSION"))
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat(cluster); err == nil {
			return 0, fmt.Errorf("%s exists but holds no PostgreSQL cluster (no PG_VERSION): "+
				"move it away, or choose another --data-dir", cluster)
		}
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	major, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("%s: %w", filepath.Join(cluster, "PG_VERSION"), err)
	}
	return major, nil
}

// makeCluster runs initdb beside the final place and renames the result, so that a cluster is whole or not there.
func makeCluster(ctx context.Context, cluster string, bin binaries, acc *account, sync bool) error {
	unfinished := cluster + ".unfinished"
	if err := os.RemoveAll(unfinished); err != nil {
		return err
	}
	if err := os.Mkdir(unfinished, 0o700); err != nil {
		return err
	}
	if err := acc.own(unfinished); err != nil {
		return err
	}
	// "trust" lets in whoever can reach the socket, and the socket's folder is closed to all but the server's user
	// and root.
	args := []string{
		"-D", unfinished, "--username=" + role, "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-instructions",
	}
	if !sync {
		args = append(args, "--no-sync")
	}
	cmd := acc.command(ctx, unfinished, filepath.Join(bin.dir, "initdb"), args...)
	killWithParent(cmd.SysProcAttr, syscall.SIGKILL)
	if out, err := runPinned(cmd); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, tail(string(out), 20))
	}
	return os.Rename(unfinished, cluster)
}
