package main

import (
	"maps"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
)

const dependenciesFile = "testdata/dependencies.txt"

// What the program links is a list, so that nothing gets into it unseen: our packages, and the modules of others. The
// laboratory, benchmarks and stand-ins are not among them.
func TestDependencies(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the list is that of linux")
	}
	const format = `{{if not .Standard}}{{with .Module}}{{.Path}}{{end}} {{.ImportPath}}{{end}}`
	out, err := exec.Command("go", "list", "-deps", "-f", format, ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		module, path, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch {
		case path == "":
		case strings.HasPrefix(path, "sluice.example/sluice"):
			found[path] = true
		default:
			found[module] = true
		}
	}
	var got strings.Builder
	for _, name := range slices.Sorted(maps.Keys(found)) {
		got.WriteString(name + "\n")
	}
	if *update {
		if err := os.WriteFile(dependenciesFile, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(dependenciesFile)
	if err != nil {
		t.Fatal(err)
	}
	if got.String() != string(want) {
		t.Errorf("the program links\n%s\n%s has\n%s\nIf that is meant: go test ./cmd/pipeline -run TestDependencies -update",
			got.String(), dependenciesFile, want)
	}
}

// A rule may name a time zone where the machine has no files of them, as in an image made from scratch.
func TestTimeZonesAreInTheProgram(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(strings.Fields(string(out)), "time/tzdata") {
		t.Error("the program does not link time/tzdata")
	}
}
