package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// clockTick is the unit of the times in /proc/PID/stat: 1/100 s on every Linux that Go supports (USER_HZ, see proc(5)).
const clockTick = 10 * time.Millisecond

// procStat reads the fields of /proc/PID/stat that follow the command's name, so that [0] is the state, [1] the parent,
// and [11] to [14] utime, stime, cutime and cstime.
func procStat(pid int) ([]string, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	_, rest, ok := strings.Cut(string(raw), ") ")
	if !ok {
		return nil, fmt.Errorf("/proc/%d/stat: no command name in %q", pid, raw)
	}
	return strings.Fields(rest), nil
}

func ticks(fields []string) time.Duration {
	var sum time.Duration
	for _, f := range fields {
		n, _ := strconv.ParseInt(f, 10, 64)
		sum += time.Duration(n) * clockTick
	}
	return sum
}

// processCPU is the user and system time that one process has used.
func processCPU(b testing.TB, pid int) time.Duration {
	f, err := procStat(pid)
	if err != nil {
		b.Fatalf("CPU of process %d: %v", pid, err)
	}
	return ticks(f[11:13])
}

// clusterCPU is the user and system time of a PostgreSQL server: of its postmaster, of the children that live, and of
// those that the postmaster has reaped.
func clusterCPU(b testing.TB, postmaster int) time.Duration {
	f, err := procStat(postmaster)
	if err != nil {
		b.Fatalf("CPU of postmaster %d: %v", postmaster, err)
	}
	sum := ticks(f[11:15])
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(dir))
		// A process that ended since the listing was either reaped, and is counted above next time, or is not ours.
		if f, err := procStat(pid); err == nil && f[1] == strconv.Itoa(postmaster) {
			sum += ticks(f[11:13])
		}
	}
	return sum
}
