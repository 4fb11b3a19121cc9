package yamlfile

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// bomb is a file whose anchors multiply: levels of ten, each made of the one before.
func bomb(levels int) string {
	text := "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
	for i := 1; i < levels; i++ {
		text += fmt.Sprintf("a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 10),
			", "))
	}
	return text
}

// TestBombs: what would take the memory or the stack of the process is refused at once, at its place.
func TestBombs(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{bomb(9), "f.yaml:6:"},
		{bomb(9), "the file expands to more than 1000000 values here; use fewer aliases"},
		{bomb(200), "the file expands to more than 1000000 values here"},
		{"rules: &r [*r]\n", "f.yaml:1:12: alias *r stands for what contains it; an anchor may not contain itself"},
		{"rules: &r\n  <<: *r\n", "f.yaml:2:7: alias *r stands for what contains it"},
		{"a: &a {b: {c: [1, {d: *a}]}}\n", "f.yaml:1:23: alias *a stands for what contains it"},
		{"? &k [*k]\n: 1\n", "alias *k stands for what contains it"},
		{"a: " + strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000), "not valid YAML: exceeded max depth"},
		{"a: '" + strings.Repeat("x", 4<<20) + "'", "f.yaml: it is larger than 4 MiB"},
	} {
		start := time.Now()
		f := Parse("f.yaml", []byte(c.text))
		if err := f.Err(); err == nil || !strings.Contains(err.Error(), c.want) || f.Root() != nil {
			t.Errorf("%.60q: got %v, want %q and no value", c.text, err, c.want)
		}
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("%.60q took %s", c.text, took)
		}
	}
	// Aliases as people use them.
	for _, text := range []string{
		bomb(5), "a: &a {x: 1}\nb: [*a, *a]\nc: {<<: *a}\n", "a: &a [1]\nb: &b [*a]\nc: [*a, *b]\n",
		"a: &a 1\nb: &a 2\nc: *a\n",
	} {
		if f := Parse("f.yaml", []byte(text)); f.Err() != nil || f.Root() == nil {
			t.Errorf("%.60q: %v", text, f.Err())
		}
	}
}

// TestOnlyRegularFiles: what could block, or never end, is not read. A link to a regular file is.
func TestOnlyRegularFiles(t *testing.T) {
	dir := t.TempDir()
	pipe, file, link, large := filepath.Join(dir, "pipe"), filepath.Join(dir, "file"), filepath.Join(dir, "link"),
		filepath.Join(dir, "large")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("a: 1"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(large, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(large, 1<<40); err != nil { // no more than a bound of it is read
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		pipe: "it is not a regular file", dir: "it is not a regular file", "/dev/zero": "it is not a regular file",
		large: "it is larger than 4 MiB", file: "", link: "",
	} {
		err := Read(name).Err()
		if want == "" && err != nil || want != "" && (err == nil || err.Error() != name+": "+want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
}
