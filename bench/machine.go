package bench

import (
	"bufio"
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"
)

// Machine is where figures come from. Two that differ in it can't be compared.
type Machine struct {
	Taken    time.Time `json:"taken"`
	Cores    int       `json:"cores"`
	CPU      string    `json:"cpu"`
	Memory   int64     `json:"memory_bytes"`
	Kernel   string    `json:"kernel"`
	Go       string    `json:"go"`
	Revision string    `json:"revision"`
	// of others, when it began: over a few tenths spoils wall-clock rates
	Load     float64           `json:"load_average_at_start"`
	Postgres string            `json:"postgresql"`
	Settings map[string]string `json:"postgresql_settings"`
	// Shared is true where PostgreSQL runs on this machine too, and so shares its cores with program and generator.
	Shared bool `json:"postgresql_on_this_machine"`
}

func describe(ctx context.Context, db *Database) (m Machine, err error) {
	m = Machine{Taken: time.Now().UTC().Truncate(time.Second), Cores: runtime.NumCPU(), Go: runtime.Version(),
		Shared: db.postmaster != 0,
		CPU:    procLine("/proc/cpuinfo", "model name"), Settings: map[string]string{}}
	kib, _ := strconv.ParseInt(strings.TrimSuffix(procLine("/proc/meminfo", "MemTotal"), " kB"), 10, 64)
	m.Memory = kib << 10
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	m.Kernel = runtime.GOOS + " " + strings.TrimSpace(string(kernel))
	load, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(load), " ")
	m.Load, _ = strconv.ParseFloat(first, 64)
	m.Revision = "unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				m.Revision = s.Value[:min(12, len(s.Value))]
			}
			if s.Key == "vcs.modified" && s.Value == "true" {
				m.Revision += " with changes"
			}
		}
	}
	const settingsSQL = `
select name, current_setting(name) from unnest(array['server_version', 'fsync', 'synchronous_commit',
    'full_page_writes', 'wal_compression', 'shared_buffers', 'max_wal_size', 'checkpoint_timeout', 'max_connections',
    'superuser_reserved_connections'])
    as name`
	rows, err := db.Pool.Query(ctx, settingsSQL)
	if err != nil {
		return m, err
	}
	defer rows.Close()
	for rows.Next() {
		var name, value string
		if err := rows.Scan(&name, &value); err != nil {
			return m, err
		}
		m.Settings[name] = value
	}
	m.Postgres = m.Settings["server_version"]
	delete(m.Settings, "server_version")
	return m, rows.Err()
}

// procLine returns the value of a "name : value" line of a file in /proc.
func procLine(file, name string) string {
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		key, value, ok := strings.Cut(lines.Text(), ":")
		if ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
