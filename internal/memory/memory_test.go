package memory

import (
	"strings"
	"testing"
	"testing/fstest"
)

func TestContainer(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string
		want  int64
	}{
		{"no control groups", nil, 0},
		{"version 2, in a container", map[string]string{"proc/self/cgroup": "0::/\n",
			"sys/fs/cgroup/memory.max": "536870912\n"}, 512 << 20},
		{"version 2, without a limit", map[string]string{"proc/self/cgroup": "0::/\n",
			"sys/fs/cgroup/memory.max": "max\n"}, 0},
		{"version 2, a smaller limit around it", map[string]string{"proc/self/cgroup": "0::/a.slice/b.service\n",
			"sys/fs/cgroup/a.slice/b.service/memory.max": "1073741824\n", "sys/fs/cgroup/a.slice/memory.max": "536870912\n"},
			512 << 20},
		{"version 1", map[string]string{"proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/docker/1\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "268435456\n"}, 256 << 20},
		{"version 1, without a limit", map[string]string{"proc/self/cgroup": "4:memory:/\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, 0},
	} {
		root := fstest.MapFS{}
		for name, text := range c.files {
			root[name] = &fstest.MapFile{Data: []byte(text)}
		}
		if limit, ok := container(root); ok != (c.want > 0) || ok && limit != c.want {
			t.Errorf("%s: %d, %v; want %d", c.name, limit, ok, c.want)
		}
	}
}

func TestFits(t *testing.T) {
	parts := []Part{{"buffer.max-bytes", 256 << 20}, {"ingest.max-reading-bytes", 128 << 20}}
	if err := Fits(parts, 384<<20+Besides); err != nil {
		t.Errorf("what fits is refused: %v", err)
	}
	err := Fits(parts, 384<<20+Besides-1)
	for _, want := range []string{"buffer.max-bytes (256MiB)", "ingest.max-reading-bytes (128MiB)", "may take 432MiB"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Fits = %v; want %q", err, want)
		}
	}
}
