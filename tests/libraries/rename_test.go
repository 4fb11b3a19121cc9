package libraries

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// make module changes the module path everywhere, in a copy of this tree: nothing is left of the old one, and all
// modules build, with their tests.
func TestMakeModule(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("compiles everything once more")
	}
	dir := t.TempDir()
	command := func(dir, name string, args ...string) string {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
		return strings.TrimSpace(string(out))
	}
	copyTree(t, "../..", dir, strings.Split(command("../..", "git", "ls-files", "-co", "--exclude-standard"), "\n"))
	command(dir, "git", "init", "-q")
	command(dir, "git", "add", "-A")

	for _, bad := range []string{"", "sluice", "/a.b/c", "a.b/c d", "a.b/$(touch evil)", "a.b/"} {
		if out, err := exec.Command("make", "-C", dir, "module", "NAME="+bad).CombinedOutput(); err == nil {
			t.Errorf("make module takes the name %q: %s", bad, out)
		}
	}
	old := command(dir, "go", "list", "-m")
	const name = "git.example.org/acme/pipes"
	command(dir, "make", "module", "NAME="+name)

	if left, err := exec.Command("git", "-C", dir, "grep", "-nF", old).Output(); err == nil {
		t.Errorf("the old path is left in\n%s", left)
	}
	goMods := strings.Split(command(dir, "git", "ls-files", "*go.mod"), "\n")
	if want := []string{"go.mod", "inbox/go.mod", "loadtest/go.mod", "outbox/go.mod"}; len(goMods) < len(want)+2 ||
		slices.ContainsFunc(want, func(m string) bool { return !slices.Contains(goMods, m) }) {
		t.Fatalf("modules of the copy: %q; want %q and two more", goMods, want)
	}
	for _, goMod := range goMods {
		module := filepath.Join(dir, filepath.Dir(goMod))
		if got := command(module, "go", "list", "-m"); got != filepath.Join(name, filepath.Dir(goMod)) {
			t.Errorf("the path of %s is %s now", goMod, got)
		}
		command(module, "go", "vet", "./...")
	}
	if out := command(dir, "gofmt", "-l", "."); out != "" {
		t.Errorf("gofmt wants other lines in %s", out)
	}
}

// copyTree copies the named files, and skips those that git knows of and that were removed.
func copyTree(t *testing.T, from, to string, names []string) {
	t.Helper()
	if len(names) < 100 {
		t.Fatalf("git knows %d files of this tree", len(names))
	}
	for _, name := range names {
		info, err := os.Lstat(filepath.Join(from, name))
		if os.IsNotExist(err) {
			continue
		}
		if err != nil || !info.Mode().IsRegular() {
			t.Fatalf("%s: %v, %v", name, info, err)
		}
		content, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Dir(filepath.Join(to, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(to, name), content, info.Mode().Perm()); err != nil {
			t.Fatal(err)
		}
	}
}
