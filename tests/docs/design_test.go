package docs

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// section returns what stands below a heading of docs/design.md, up to the next one.
func section(t *testing.T, name string) string {
	t.Helper()
	_, text, found := strings.Cut(read(t, "docs/design.md"), "\n## "+name+"\n")
	if !found {
		t.Fatalf("docs/design.md has no section %q", name)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	return text
}

// goFiles are the Go files of the repository by their folders, both as paths from the root.
func goFiles(t *testing.T) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	err := fs.WalkDir(os.DirFS(root), ".", func(file string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && (d.Name() == "node_modules" || d.Name() == "testdata") {
			return fs.SkipDir
		}
		if err == nil && strings.HasSuffix(file, ".go") {
			all[path.Dir(file)] = append(all[path.Dir(file)], file)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestTreeIsTheTree: the tree of docs/design.md has every folder with Go files or documents, and no other.
func TestTreeIsTheTree(t *testing.T) {
	want := map[string]bool{}
	for folder := range goFiles(t) {
		want[folder] = true
	}
	for _, page := range pages(t) {
		want[path.Dir(page)] = true
	}
	delete(want, ".")
	var parents []string
	shown := map[string]bool{}
	for _, line := range regexp.MustCompile(`(?m)^    ( *)(\S+)/ `).FindAllStringSubmatch(section(t, "The tree"), -1) {
		depth := len(line[1]) / 2
		if depth > len(parents) {
			t.Fatalf("%s/ is indented by more than a level", line[2])
		}
		parents = append(parents[:depth], line[2])
		folder := path.Join(parents...)
		shown[folder] = true
		if _, err := os.Stat(filepath.Join(root, folder)); err != nil {
			t.Errorf("the tree of docs/design.md has %s, which does not exist", folder)
		}
	}
	for _, folder := range slices.Sorted(maps.Keys(want)) {
		if !shown[folder] {
			t.Errorf("the tree of docs/design.md lacks %s", folder)
		}
	}
}

const createTable = `(?m)^create table (\w+) \(`

var (
	codeSpan    = regexp.MustCompile("`([^`]*)`")
	commentLine = regexp.MustCompile(`(?m)^\s*//.*$`)
	// tableRow is a table, what it holds, who writes and who deletes its rows.
	tableRow = regexp.MustCompile("(?m)^\\| `(\\w+)` \\|[^|]*\\|([^|]*)\\|([^|]*)\\|$")
)

// TestTablesAreTheTables: docs/design.md has every table of the migrations, and names the folders whose SQL writes and
// deletes its rows.
func TestTablesAreTheTables(t *testing.T) {
	var tables []string
	migrations, err := filepath.Glob(filepath.Join(root, "pipeline", "schema", "*.sql"))
	if err != nil {
		t.Fatal(err)
	}
	sql := productCode(t)
	tables = finds(createTable, sql["pipeline/schema"]) // the table of versions
	for _, file := range migrations {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		tables = append(tables, finds(createTable, string(source))...)
	}
	if len(tables) < 15 {
		t.Fatalf("only %d tables found: %v", len(tables), tables)
	}
	got := map[string]string{}
	for _, row := range tableRow.FindAllStringSubmatch(section(t, "Data model"), -1) {
		got[row[1]] = fmt.Sprint(foldersIn(row[2]), foldersIn(row[3]))
	}
	for _, table := range tables {
		want := fmt.Sprint(
			foldersWith(sql, `\b(insert into|update|copy)\s+`+table+`\b`),
			foldersWith(sql, `\b(delete from|alter table)\s+`+table+`\b`)) // of events whole days are detached
		if got[table] != want {
			t.Errorf("rows of %s are written and deleted by %s; docs/design.md has %q", table, want, got[table])
		}
	}
	for _, table := range slices.Sorted(maps.Keys(got)) {
		if !slices.Contains(tables, table) {
			t.Errorf("docs/design.md has a table %s, which no migration creates", table)
		}
	}
}

// foldersIn are the folders that a cell of the table names.
func foldersIn(cell string) (all []string) {
	for _, m := range codeSpan.FindAllStringSubmatch(cell, -1) {
		if m[1] != "sluice_enqueue" { // SQL that applications call
			all = append(all, m[1])
		}
	}
	slices.Sort(all)
	return all
}

// productCode is the code of each folder without comments. Benchmarks and tests have databases of their own.
func productCode(t *testing.T) map[string]string {
	t.Helper()
	code := map[string]string{}
	for folder, files := range goFiles(t) {
		if regexp.MustCompile(`^(bench|cmd/lab|examples|internal|loadtest|tests)\b`).MatchString(folder) {
			continue
		}
		for _, file := range files {
			if !strings.HasSuffix(file, "_test.go") {
				code[folder] += commentLine.ReplaceAllString(read(t, file), "")
			}
		}
	}
	return code
}

func foldersWith(code map[string]string, pattern string) (all []string) {
	expression := regexp.MustCompile(pattern)
	for _, folder := range slices.Sorted(maps.Keys(code)) {
		if expression.MatchString(code[folder]) {
			all = append(all, folder)
		}
	}
	return all
}
