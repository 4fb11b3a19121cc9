package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
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

// processCPU is the user and system time that one process has used; 0 where there is no such process, or no /proc.
func processCPU(pid int) time.Duration {
	if pid == 0 {
		return 0
	}
	f, err := procStat(pid)
	if err != nil {
		return 0
	}
	return ticks(f[11:13])
}

// clusterCPU is the user and system time of a PostgreSQL server: of its postmaster, of the children that live, and of
// those that the postmaster has reaped. 0 where the server is on another machine.
func clusterCPU(postmaster int) time.Duration {
	if postmaster == 0 {
		return 0
	}
	f, err := procStat(postmaster)
	if err != nil {
		return 0
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

// memoryBytes is what a process holds in memory now; 0 where that is unknown.
func memoryBytes(pid int) int64 {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0
	}
	f := strings.Fields(string(raw))
	if len(f) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(f[1], 10, 64)
	return pages * int64(os.Getpagesize())
}

// CPU is processor time per unit of work, in microseconds. PostgreSQL is 0 where the server is on another machine.
// Generator is everything on the other side of the program: who posts, and who receives.
type CPU struct {
	Program    float64 `json:"program_us"`
	PostgreSQL float64 `json:"postgresql_us"`
	Generator  float64 `json:"generator_us"`
}

// cost is what one round took.
type cost struct{ wall, program, postgres, generator time.Duration }

// measure runs work and returns what it took of this process, of the program pid and of the database's server.
func measure(db *Database, pid int, work func() error) (cost, error) {
	read := func() cost {
		return cost{program: processCPU(pid), postgres: clusterCPU(db.postmaster), generator: processCPU(os.Getpid())}
	}
	before, start := read(), time.Now()
	err := work()
	c := cost{wall: time.Since(start)}
	after := read()
	c.program, c.postgres, c.generator = after.program-before.program, after.postgres-before.postgres,
		after.generator-before.generator
	return c, err
}

// per divides a cost by the units of work that it was for.
func (c cost) per(units int64) CPU {
	us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 / float64(max(1, units)) }
	return CPU{Program: us(c.program), PostgreSQL: us(c.postgres), Generator: us(c.generator)}
}

func selfCPU() time.Duration { return processCPU(os.Getpid()) }
