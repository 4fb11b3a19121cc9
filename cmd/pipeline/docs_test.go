package main

import (
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sluice.example/sluice/internal/pgtest"
)

var update = flag.Bool("update", false, "write what the program says into the documents and lists that tests "+
	"compare with it")

const (
	operationsFile = "../../docs/operations.md"
	referenceFile  = "../../docs/reference.md"
)

// The tables of settings and metrics in docs/reference.md are what the program has.
func TestReferenceDocument(t *testing.T) {
	text, err := os.ReadFile(referenceFile)
	if err != nil {
		t.Fatal(err)
	}
	want := string(text)
	for name, table := range map[string]string{"settings": settingsTable(), "metrics": metricsTable(t)} {
		begin, end := "<!-- "+name+" -->\n", "<!-- /"+name+" -->"
		a, b := strings.Index(want, begin), strings.Index(want, end)
		if a < 0 || b < a {
			t.Fatalf("%s has no %q ... %q", referenceFile, begin, end)
		}
		want = want[:a+len(begin)] + table + want[b:]
	}
	if want == string(text) {
		return
	}
	if *update {
		if err := os.WriteFile(referenceFile, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, wanted := strings.Split(string(text), "\n"), strings.Split(want, "\n")
	for i := range wanted {
		if i >= len(got) || got[i] != wanted[i] {
			t.Fatalf("%s:%d differs from the program, which says\n%s\nRun: go test ./cmd/pipeline -run TestReferenceDocument "+
				"-update", referenceFile, i+1, wanted[i])
		}
	}
}

// What the document tells operators to ask the database works. (What prepares a managed PostgreSQL changes the server;
// it has a test of its own.)
func TestOperationsQueries(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(operationsFile)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, _ := strings.Cut(string(text), "\n## Managed PostgreSQL\n")
	_, after, _ := strings.Cut(rest, "\n## ")
	text = []byte(before + after)
	conn := connect(t, pgtest.URL(t))
	queries := regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	if len(queries) < 4 {
		t.Fatalf("%d queries found in %s", len(queries), operationsFile)
	}
	for _, q := range queries {
		if _, err := conn.Exec(t.Context(), q[1]); err != nil {
			t.Errorf("%v in\n%s", err, q[1])
		}
	}
}

func settingsTable() string {
	var b strings.Builder
	b.WriteString("| Setting | Default | Unit | What it does |\n|---|---|---|---|\n")
	for _, s := range defaultConfig().settings() {
		unit := s.unit
		if unit == "" {
			switch s.value.(type) {
			case *bool:
				unit = "true or false"
			case *[]string:
				unit = "list"
			case *string:
				unit = "text"
			default:
				unit = "duration"
			}
		}
		value := s.text()
		if value == "" {
			value = "empty"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", s.key, value, unit, strings.ReplaceAll(s.doc, "|", `\|`))
	}
	return b.String()
}

// described collects what is registered, and registers nothing.
type described struct{ names map[string]string }

var (
	descText = regexp.MustCompile(
		`fqName: "([^"]*)", help: ("(?:[^"\\]|\\.)*"),.* constLabels: \{([^}]*)\}, variableLabels: \{([^}]*)\}`)
	labelValue = regexp.MustCompile(`="[^"]*"`)
)

func (d described) Register(c prometheus.Collector) error {
	ch := make(chan *prometheus.Desc, 100)
	c.Describe(ch)
	close(ch)
	for desc := range ch {
		m := descText.FindStringSubmatch(desc.String())
		if m == nil {
			return fmt.Errorf("%s is not understood", desc)
		}
		var help string
		if _, err := fmt.Sscanf(m[2], "%q", &help); err != nil {
			return err
		}
		kind := "gauge"
		switch c.(type) {
		case prometheus.Histogram, *prometheus.HistogramVec:
			kind = "histogram"
		}
		if strings.HasSuffix(m[1], "_total") {
			kind = "counter"
		}
		labels := strings.Trim(labelValue.ReplaceAllString(m[3], "")+","+m[4], ",")
		d.names[m[1]] = fmt.Sprintf("| `%s` | %s | %s | %s |\n", m[1], kind, strings.ReplaceAll(labels, ",", ", "),
			strings.ReplaceAll(help, "|", `\|`))
	}
	return nil
}

func (d described) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		if err := d.Register(c); err != nil {
			panic(err)
		}
	}
}

func (d described) Unregister(prometheus.Collector) bool { return false }

// allMetrics is what a running process registers, the line of each by its name.
func allMetrics(t *testing.T) map[string]string {
	t.Helper()
	d := described{names: map[string]string{}}
	db := &database{url: "postgres:///not-connected-to"}
	defer db.close(t.Context(), time.Second)
	p, err := db.openPools(defaultConfig(), d)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := build(defaultConfig(), p, d, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	return d.names
}

// OpenMetrics names a counter's family without _total, and adds suffixes of its own to the samples of others. A name
// that is another one with such a suffix would make the two one family, which scrapers refuse.
func TestMetricFamiliesAreApart(t *testing.T) {
	metrics := allMetrics(t)
	if len(metrics) < 50 {
		t.Fatalf("%d metrics; is this the whole process?", len(metrics))
	}
	for name := range metrics {
		for _, suffix := range []string{"_total", "_created", "_bucket", "_count", "_sum", "_info"} {
			family, cut := strings.CutSuffix(name, suffix)
			if _, taken := metrics[family]; cut && taken {
				t.Errorf("%s and %s are one family in OpenMetrics: rename one", name, family)
			}
		}
	}
}

func metricsTable(t *testing.T) string {
	t.Helper()
	lines := slices.Sorted(maps.Values(allMetrics(t)))
	return "| Metric | Type | Labels | What it counts |\n|---|---|---|---|\n" + strings.Join(lines, "")
}

// The tests that docs/design.md names for its promises exist.
func TestDesignNamesTestsThatExist(t *testing.T) {
	text, err := os.ReadFile("../../docs/design.md")
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	for _, pattern := range []string{"../*/*_test.go", "../../operate/*/*_test.go", "../../pipeline/*_test.go",
		"../../pipeline/*/*_test.go", "../../pipeline/*/*/*_test.go", "../../internal/*/*_test.go",
		"../../tests/*/*_test.go", "../../monitoring/*_test.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			source, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(t `).FindAllStringSubmatch(string(source), -1) {
				have[m[1]] = true
			}
		}
	}
	named := regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch(string(text), -1)
	if len(named) < 20 {
		t.Fatalf("only %d tests are named", len(named))
	}
	for _, m := range named {
		if !have[m[1]] {
			t.Errorf("docs/design.md names %s, which does not exist", m[1])
		}
	}
}
