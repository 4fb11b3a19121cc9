package localpg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// minMajor is the oldest PostgreSQL that the program works with.
const minMajor = 14

// binaries is one installed PostgreSQL server.
type binaries struct {
	dir   string
	major int
}

// ErrNoBinaries: this machine has no PostgreSQL server that can be used. The message names what to install.
var ErrNoBinaries = errors.New("no PostgreSQL server found")

const remedy = `Install PostgreSQL 14 or newer:
  Debian, Ubuntu:  apt-get install postgresql
  RHEL, Fedora:    dnf install postgresql-server
  macOS:           brew install postgresql@17
or set DATABASE_URL to a server that runs already, and none has to be installed here`

// candidates are the folders to look in; of two with the same version the first wins.
func candidates(ctx context.Context) []string {
	dirs := filepath.SplitList(os.Getenv("PATH"))
	if out, err := exec.CommandContext(ctx, "pg_config", "--bindir").Output(); err == nil {
		dirs = append(dirs, strings.TrimSpace(string(out)))
	}
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin", // Debian, Ubuntu
		"/usr/pgsql-*/bin",          // RPMs of postgresql.org
		"/usr/libexec/postgresql*",  // Alpine
		"/opt/homebrew/opt/postgresql@*/bin",
		"/usr/local/opt/postgresql@*/bin",
		"/opt/homebrew/opt/postgresql/bin",
		"/usr/local/opt/postgresql/bin",
		"/usr/local/pgsql/bin", // built from source
	} {
		found, _ := filepath.Glob(pattern) // fails only on a malformed pattern
		dirs = append(dirs, found...)
	}
	return dirs
}

var versionLine = regexp.MustCompile(`^postgres \(PostgreSQL\) ([0-9]+)`)

// inspect returns the server that lives in dir. Links are followed first: a server finds its other files from where it
// really is, and what is on PATH is often a link, or a wrapper and not a server.
func inspect(ctx context.Context, dir string) (binaries, bool) {
	server, err := filepath.EvalSymlinks(filepath.Join(dir, "postgres"))
	if err != nil {
		return binaries{}, false
	}
	server, err = filepath.Abs(server)
	if err != nil {
		return binaries{}, false
	}
	dir = filepath.Dir(server)
	if _, err := exec.LookPath(filepath.Join(dir, "initdb")); err != nil {
		return binaries{}, false
	}
	out, err := exec.CommandContext(ctx, server, "--version").Output()
	if err != nil {
		return binaries{}, false
	}
	m := versionLine.FindSubmatch(out)
	if m == nil {
		return binaries{}, false
	}
	major, err := strconv.Atoi(string(m[1]))
	return binaries{dir, major}, err == nil
}

// choose picks the server to run: one of the major version that made the cluster, since no other can read its files;
// where there is no cluster yet (0), the newest.
func choose(ctx context.Context, dirs []string, clusterMajor int) (binaries, error) {
	var found []binaries
	var tooOld []string
	for _, dir := range dirs {
		b, ok := inspect(ctx, dir)
		switch {
		case !ok || slices.Contains(found, b):
		case b.major < minMajor:
			tooOld = append(tooOld, fmt.Sprintf("%s is PostgreSQL %d", b.dir, b.major))
		default:
			found = append(found, b)
		}
	}
	if len(found) == 0 {
		if len(tooOld) > 0 {
			return binaries{}, fmt.Errorf("%w that is new enough (%s). %s",
				ErrNoBinaries, strings.Join(tooOld, ", "), remedy)
		}
		return binaries{}, fmt.Errorf("%w on this machine. %s", ErrNoBinaries, remedy)
	}
	if clusterMajor == 0 {
		return slices.MaxFunc(found, func(a, b binaries) int { return a.major - b.major }), nil
	}
	for _, b := range found {
		if b.major == clusterMajor {
			return b, nil
		}
	}
	return binaries{}, fmt.Errorf("the data directory was made by PostgreSQL %d, but only %d is installed (%s): "+
		"install PostgreSQL %[1]d again, or upgrade the cluster with pg_upgrade", clusterMajor, found[0].major, found[0].dir)
}
