// Package memory relates what a process may take to what its container has.
package memory

import (
	"bytes"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path"
	"strconv"
	"strings"

	"sluice.example/sluice/internal/cli"
)

// Part is what one setting lets the process hold, in bytes.
type Part struct {
	Setting string
	Bytes   int
}

// Most is the sum of the parts and of Besides.
func Most(parts []Part) (sum int64) {
	for _, p := range parts {
		sum += int64(p.Bytes)
	}
	return sum + Besides
}

// Fits returns an error where the parts together can exceed a limit in bytes.
func Fits(parts []Part, limit int64) error {
	most := Most(parts)
	if most <= limit {
		return nil
	}
	var terms []string
	for _, p := range parts {
		terms = append(terms, fmt.Sprintf("%s (%s)", p.Setting, size(int64(p.Bytes))))
	}
	return fmt.Errorf("memory: the process may take %s, and its container has %s, past which the kernel kills it: raise "+
		"the container's limit, or lower %s; %s more are needed besides", size(most), size(limit),
		strings.Join(terms, ", "), size(Besides))
}

func size(n int64) string {
	v := int(n)
	return cli.FormatValue(&v, "bytes")
}

// Container is the memory limit of this process's control group, or of one around it, in bytes.
func Container() (limit int64, ok bool) { return container(os.DirFS("/")) }

// container knows version 2 of control groups and version 1. Inside a container the group is mostly the root of what is
// mounted.
func container(root fs.FS) (limit int64, ok bool) {
	text, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return 0, false
	}
	limit = math.MaxInt64
	for line := range strings.Lines(string(text)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		folder, file := "sys/fs/cgroup", "memory.max"
		if parts[1] == "memory" {
			folder, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		} else if parts[1] != "" {
			continue
		}
		for group := path.Clean("/" + parts[2]); ; group = path.Dir(group) {
			text, err := fs.ReadFile(root, path.Join(folder, group, file))
			if err == nil {
				if n, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64); err == nil {
					limit = min(limit, n)
				}
			}
			if group == "/" {
				break
			}
		}
	}
	// Version 1 writes no limit as a number of pages near the largest.
	return limit, limit < 1<<60
}
