// Package localpg runs a private PostgreSQL from the server binaries that are installed on the machine.
//
// The cluster lives in Config.DataDir and outlives the program. It listens on a Unix socket in a directory that only
// its own operating system user (and root) can enter, never on a network. One program at a time may use a data
// directory; a lock that the kernel releases, however the program ends, holds the others off.
//
// After a crash of the program, of PostgreSQL, or of both, the next Start cleans up and PostgreSQL's own recovery
// keeps everything that was committed. Where PostgreSQL dies under a running program it is started again, and
// clients see a short outage. PostgreSQL refuses to run as root; it then runs as an unprivileged user.
package localpg

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"
)

// Config is where the cluster lives and how it is set.
type Config struct {
	// DataDir holds everything: the cluster in "postgres", the server's log in "postgres.log", the lock. It is made
	// where it does not exist. Default: ".pipeline".
	DataDir string
	// BinDir is the folder that holds postgres and initdb. Empty: the newest that is found on this machine, or the one
	// that fits the cluster where there is one already. Default: empty.
	BinDir string
	// Settings are PostgreSQL's own (postgresql.conf), on top of DefaultSettings. With "fsync" set to "off" making the
	// cluster does not wait for the disk either: for tests only.
	Settings map[string]string
	// StopTimeout is how long a fast shutdown (sessions are cut, one checkpoint) may take before an immediate one
	// follows, which loses nothing either but has to be recovered from at the next start. Default: 30 s (a guess: a
	// checkpoint of 256 MB on a slow disk).
	StopTimeout time.Duration
	// Logger is told about starts, takeovers and crashes. Never nil.
	Logger *slog.Logger
}

// DefaultConfig is complete.
func DefaultConfig() Config {
	return Config{DataDir: ".pipeline", StopTimeout: 30 * time.Second, Logger: slog.Default()}
}

// DefaultSettings are chosen for a machine that runs the program beside its database and ingests all the time. What
// they promise to a client is PostgreSQL's default: fsync, full_page_writes and synchronous_commit stay on.
func DefaultSettings() map[string]string {
	return map[string]string{
		// Holds the hot part of today's index; the rest is left to the page cache. A guess that fits a 2 GB machine.
		"shared_buffers": "256MB",
		// After a checkpoint the first change of each page writes the whole page to the WAL, so fewer checkpoints mean
		// less WAL. 2 GB bounds what has to be read again after a crash to well under a minute.
		"checkpoint_timeout": "15min",
		"max_wal_size":       "2GB",
		// Keeps recycled WAL files for the next burst instead of making new ones in the middle of it.
		"min_wal_size": "256MB",
		// The largest that is of use: one WAL file. A COPY of a batch then seldom waits for room.
		"wal_buffers": "16MB",
		// The statements are short and many; compiling them costs more than it saves.
		"jit": "off",
		// One language for the log, one time zone for everything.
		"lc_messages":     "C",
		"timezone":        "UTC",
		"log_timezone":    "UTC",
		"log_line_prefix": "%m [%p] ",
	}
}

// port is part of the socket's file name and nothing else.
const port = "5432"

// marker is how a server that an earlier run of this program left behind is told from one that somebody else started.
const marker = "cluster_name=sluice"

// fixedSettings are what the rest of this package stands on.
func fixedSettings(socketDir string) map[string]string {
	return map[string]string{
		"listen_addresses":        "",
		"unix_socket_directories": socketDir,
		"unix_socket_permissions": "0700",
		"port":                    port,
		"cluster_name":            "sluice",
		"logging_collector":       "off", // the program hands the server its log file
		"log_destination":         "stderr",
	}
}

func (c Config) validate() error {
	var faults []error
	if c.DataDir == "" {
		faults = append(faults,
			errors.New("data-dir is empty: name a folder for the private PostgreSQL, or set DATABASE_URL"))
	}
	if c.StopTimeout <= 0 {
		faults = append(faults, fmt.Errorf("localpg: StopTimeout is %s; it has to be positive", c.StopTimeout))
	}
	if c.Logger == nil {
		faults = append(faults, errors.New("localpg: Logger is nil"))
	}
	fixed := fixedSettings("")
	for _, name := range slices.Sorted(maps.Keys(c.Settings)) {
		if _, ok := fixed[name]; ok {
			faults = append(faults, fmt.Errorf("localpg: the setting %s cannot be changed", name))
		}
	}
	return errors.Join(faults...)
}

// serverArgs is the server's command line.
func (c Config) serverArgs(cluster, socketDir string) []string {
	settings := DefaultSettings()
	maps.Copy(settings, c.Settings)
	maps.Copy(settings, fixedSettings(socketDir))
	args := []string{"-D", cluster}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "-c", name+"="+settings[name])
	}
	return args
}
