package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// finds returns what the first group of pattern holds, once each, in order.
func finds(pattern, text string) (all []string) {
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		all = append(all, m[1])
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// tables has the generated tables of settings and metrics, wherever in docs/ they stand.
func tables(t *testing.T) string {
	t.Helper()
	all := ""
	for _, page := range pages(t) {
		for _, name := range []string{"settings", "metrics"} {
			_, rest, _ := strings.Cut(read(t, page), "<!-- "+name+" -->\n")
			table, _, _ := strings.Cut(rest, "<!-- /"+name+" -->")
			all += table
		}
	}
	return all
}

// TestNamedSettingsAndMetricsExist: each setting and each metric that a page names is in the generated tables.
func TestNamedSettingsAndMetricsExist(t *testing.T) {
	known := tables(t)
	settings, metrics := finds("(?m)^\\| `([a-z.-]+)` \\|", known), finds("(?m)^\\| `(sluice_[a-z_]+)`", known)
	if len(settings) < 30 || len(metrics) < 50 {
		t.Fatalf("%d settings and %d metrics found", len(settings), len(metrics))
	}
	var stages []string
	for _, setting := range settings {
		if stage, _, dotted := strings.Cut(setting, "."); dotted {
			stages = append(stages, stage)
		}
	}
	migrations, err := filepath.Glob(filepath.Join(root, "pipeline", "schema", "*.sql"))
	if err != nil {
		t.Fatal(err)
	}
	var sql strings.Builder // its tables and functions begin as the metrics do
	for _, migration := range migrations {
		sql.WriteString(read(t, strings.TrimPrefix(migration, root+"/")))
	}
	setting := "`(?:--)?((?:" + strings.Join(slices.Compact(stages), "|") + ")\\.[a-z-]+)"
	for _, page := range pages(t) {
		text := read(t, page)
		for _, name := range finds(setting, text) {
			file := strings.HasSuffix(name, ".html") || strings.HasSuffix(name, ".json")
			if !file && !slices.Contains(settings, name) {
				t.Errorf("%s names the setting %s, which does not exist", page, name)
			}
		}
		for _, name := range finds(`\b(sluice_[a-z_]+)\b`, text) {
			group := func(metric string) bool { return strings.HasPrefix(metric, strings.TrimSuffix(name, "_")+"_") }
			if strings.Contains(sql.String(), name) {
				continue
			}
			if !slices.Contains(metrics, name) && !slices.ContainsFunc(metrics, group) {
				t.Errorf("%s names the metric %s, which does not exist", page, name)
			}
		}
	}
}

// TestNamedCommandsExist: so do the commands of the programs, and the targets of make.
func TestNamedCommandsExist(t *testing.T) {
	programs, err := filepath.Glob(filepath.Join(root, "cmd", "*"))
	if err != nil {
		t.Fatal(err)
	}
	known := map[string][]string{"make": finds(`(?m)^([a-z-]+):`, read(t, "Makefile"))}
	for _, program := range programs {
		help := exec.Command("go", "run", "./cmd/"+filepath.Base(program), "help")
		help.Dir = root
		out, err := help.Output()
		if err != nil {
			t.Fatal(err)
		}
		known[filepath.Base(program)] = append(finds(`(?m)^  ([a-z-]+)  +`, string(out)), "help")
	}
	count := 0
	for _, page := range pages(t) {
		for name, commands := range known {
			// A command begins a line of code, a code span, or a cell of its own.
			for _, command := range finds("(?m)(?:^ *|`|[A-Z_]=\\S+ )(?:bin/)?"+name+" ([a-z-]+)\\b", read(t, page)) {
				count++
				if !slices.Contains(commands, command) {
					t.Errorf("%s names %q, which is not one of %v", page, name+" "+command, commands)
				}
			}
		}
	}
	if count < 40 {
		t.Fatalf("only %d commands found", count)
	}
}

// TestNamedTestsExist: what a page tells to measure or to test can be, and the tests that it names are there.
func TestNamedTestsExist(t *testing.T) {
	functions := map[string][]string{} // by folder
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		folder := filepath.ToSlash(filepath.Dir(strings.TrimPrefix(path, root+"/")))
		functions[folder] = append(functions[folder], finds(`(?m)^func ((?:Test|Benchmark|Fuzz)\w+)\(`, string(source))...)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, names := range functions {
		all = append(all, names...)
	}
	command := regexp.MustCompile(`(?:cd (\S+) && )?go test ((?:\./\S+ |\. )*)[^` + "`" +
		`\n]*?-(?:bench|run) '?([A-Z]\w*|\.)`)
	measured := 0
	for _, page := range pages(t) {
		text := read(t, page)
		for _, name := range finds(`\b(Test[A-Z]\w+)`, text) {
			if !slices.Contains(all, name) {
				t.Errorf("%s names %s, which does not exist", page, name)
			}
		}
		for _, m := range command.FindAllStringSubmatch(text, -1) {
			folders := strings.Fields(m[2])
			if len(folders) == 0 {
				folders = []string{"."}
			}
			for _, folder := range folders {
				measured++
				folder = filepath.ToSlash(filepath.Join(m[1], folder))
				pattern := regexp.MustCompile(m[3])
				if !slices.ContainsFunc(functions[folder], pattern.MatchString) {
					t.Errorf("%s: %q finds nothing in %q: %v", page, m[0], folder, functions[folder])
				}
			}
		}
	}
	if measured < 8 {
		t.Fatalf("only %d commands to measure found", measured)
	}
}
