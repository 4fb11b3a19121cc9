// Package monitoring holds what Prometheus and Grafana load; its tests hold that to the program.
package monitoring

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/VictoriaMetrics/metricsql"
	"go.yaml.in/yaml/v3"
)

// metric is a line of the table of metrics in docs/reference.md, which a test of the program compares with what it
// registers.
type metric struct {
	kind   string
	labels []string
}

func metrics(t *testing.T) map[string]metric {
	t.Helper()
	all := map[string]metric{
		// What Prometheus and the Go client add.
		"up":                            {kind: "gauge"},
		"ALERTS":                        {kind: "gauge", labels: []string{"alertname", "alertstate"}},
		"process_cpu_seconds_total":     {kind: "counter"},
		"process_resident_memory_bytes": {kind: "gauge"},
	}
	line := regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| (counter|gauge|histogram) \\| ([a-z, ]*) \\|")
	for _, m := range line.FindAllStringSubmatch(read(t, "../docs/reference.md"), -1) {
		one := metric{kind: m[2]}
		if labels := strings.TrimSpace(m[3]); labels != "" {
			one.labels = strings.Split(labels, ", ")
		}
		all[m[1]] = one
	}
	if len(all) < 50 {
		t.Fatalf("%d metrics found in docs/reference.md", len(all))
	}
	for name := range recorded(t) {
		all[name] = metric{kind: "gauge", labels: []string{"tenant", "destination"}}
	}
	return all
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

type rule struct {
	Record, Alert, Expr string
	Labels, Annotations map[string]string
}

func rules(t *testing.T, file string) (all []rule) {
	t.Helper()
	var f struct{ Groups []struct{ Rules []rule } }
	if err := yaml.Unmarshal([]byte(read(t, file)), &f); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	for _, g := range f.Groups {
		all = append(all, g.Rules...)
	}
	if len(all) == 0 {
		t.Fatalf("%s has no rules", file)
	}
	return all
}

func recorded(t *testing.T) map[string]string {
	t.Helper()
	names := map[string]string{}
	for _, r := range rules(t, "rules.yml") {
		names[r.Record] = r.Expr
	}
	return names
}

type panel struct {
	ID                       int
	Type, Title, Description string
	GridPos                  struct{ X, Y, W, H int }
	FieldConfig              struct{ Defaults struct{ Unit string } }
	Targets                  []struct{ Expr string }
}

type dashboard struct {
	UID    string
	Panels []panel
}

func dashboards(t *testing.T) map[string]dashboard {
	t.Helper()
	all := map[string]dashboard{}
	for _, file := range []string{"dashboard.json", "destination.json"} {
		var d dashboard
		if err := json.Unmarshal([]byte(read(t, file)), &d); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all[file] = d
	}
	return all
}

// expressions are all of them by their place, with the variables of dashboards replaced.
func expressions(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, file := range []string{"rules.yml", "alerts.yml"} {
		for _, r := range rules(t, file) {
			all[file+": "+r.Record+r.Alert] = r.Expr
		}
	}
	variables := strings.NewReplacer("$__rate_interval", "5m", "$destination", "crm")
	for file, d := range dashboards(t) {
		for _, p := range d.Panels {
			for i, target := range p.Targets {
				all[fmt.Sprintf("%s: %s %d", file, p.Title, i)] = variables.Replace(target.Expr)
			}
		}
	}
	return all
}

// TestExpressions: every metric and label that an expression names is one that the program exports, counters are looked
// at as rates, and histograms by their parts.
func TestExpressions(t *testing.T) {
	known := metrics(t)
	for place, text := range expressions(t) {
		e, err := metricsql.Parse(text)
		if err != nil {
			t.Errorf("%s: %v", place, err)
			continue
		}
		labels := map[string]bool{"instance": true, "job": true}
		var groups []string
		inRate := map[metricsql.Expr]bool{}
		metricsql.VisitAll(e, func(e metricsql.Expr) {
			switch e := e.(type) {
			case *metricsql.RollupExpr:
				inRate[e.Expr] = true
			case *metricsql.AggrFuncExpr:
				groups = append(groups, e.Modifier.Args...)
			case *metricsql.BinaryOpExpr:
				groups = append(groups, e.GroupModifier.Args...)
			}
		})
		metricsql.VisitAll(e, func(e metricsql.Expr) {
			m, ok := e.(*metricsql.MetricExpr)
			if !ok {
				return
			}
			for _, filters := range m.LabelFilterss {
				for _, name := range strings.Split(filters[0].Value, "|") {
					look(t, place, name, known, inRate[m], filters, labels)
				}
			}
		})
		for _, l := range groups {
			if !labels[l] {
				t.Errorf("%s groups by %s, which none of its metrics has", place, l)
			}
		}
	}
}

// look checks one metric of an expression, and adds its labels to those that may be grouped by.
func look(t *testing.T, place, name string, known map[string]metric, rate bool, filters []metricsql.LabelFilter,
	labels map[string]bool) {
	t.Helper()
	family := name
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		if f, ok := strings.CutSuffix(name, suffix); ok && known[f].kind == "histogram" {
			family = f
			labels["le"] = true
		}
	}
	m, ok := known[family]
	if !ok {
		t.Errorf("%s names %s, which the program does not export", place, name)
		return
	}
	if m.kind == "histogram" && family == name {
		t.Errorf("%s looks at the histogram %s, and not at its _bucket, _sum or _count", place, name)
	}
	isCounter := m.kind == "counter" || family != name
	if isCounter && !rate && place != "rules.yml: sluice:books:difference" {
		t.Errorf("%s looks at the counter %s without rate or increase", place, name)
	}
	for _, l := range m.labels {
		labels[l] = true
	}
	for _, f := range filters[1:] {
		if f.Label != "job" && f.Label != "le" && !slices.Contains(m.labels, f.Label) {
			t.Errorf("%s: %s has no label %s", place, name, f.Label)
		}
	}
}

// TestDashboards: what Grafana would not complain about and people would.
func TestDashboards(t *testing.T) {
	uids := map[string]bool{}
	for file, d := range dashboards(t) {
		if d.UID == "" || uids[d.UID] {
			t.Errorf("%s: uid %q is empty or taken", file, d.UID)
		}
		uids[d.UID] = true
		ids := map[int]bool{}
		cells := map[[2]int]string{}
		for _, p := range d.Panels {
			if ids[p.ID] {
				t.Errorf("%s: %s: id %d is taken", file, p.Title, p.ID)
			}
			ids[p.ID] = true
			for x := range p.GridPos.W {
				for y := range p.GridPos.H {
					cell := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
					if cell[0] > 23 || cells[cell] != "" {
						t.Fatalf("%s: %s lies over %q or beyond the edge", file, p.Title, cells[cell])
					}
					cells[cell] = p.Title
				}
			}
			if p.Type != "row" && (p.Description == "" || p.FieldConfig.Defaults.Unit == "" || len(p.Targets) == 0) {
				t.Errorf("%s: %s lacks a description, a unit or a query", file, p.Title)
			}
		}
	}
}

// TestRunbook: each alert has a severity and a section of docs/operations.md, and each section there is an alert.
func TestRunbook(t *testing.T) {
	sections := map[string]bool{}
	heading := regexp.MustCompile(`(?m)^#### (Sluice\w+)$`)
	for _, m := range heading.FindAllStringSubmatch(read(t, "../docs/operations.md"), -1) {
		sections[m[1]] = true
	}
	for _, r := range rules(t, "alerts.yml") {
		if !slices.Contains([]string{"page", "warning", "info"}, r.Labels["severity"]) || r.Annotations["summary"] == "" {
			t.Errorf("%s lacks a severity or a summary", r.Alert)
		}
		if !strings.HasSuffix(r.Annotations["runbook_url"], "/docs/operations.md#"+strings.ToLower(r.Alert)) {
			t.Errorf("%s has the runbook %s", r.Alert, r.Annotations["runbook_url"])
		}
		if !sections[r.Alert] {
			t.Errorf("docs/operations.md has no section %q", "#### "+r.Alert)
		}
		delete(sections, r.Alert)
	}
	for _, name := range slices.Sorted(maps.Keys(sections)) {
		t.Errorf("docs/operations.md describes %s, which is no alert", name)
	}
}

// TestPromtool: Prometheus itself takes every expression, those of the dashboards as well, and each alert fires on its
// fault and clears after it.
func TestPromtool(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		if promtool, err = filepath.Abs("../bin/promtool"); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(promtool); err != nil {
			t.Skip("promtool is missing; .ci/promtool fetches it, as make test does")
		}
	}
	var all strings.Builder
	all.WriteString("groups:\n  - name: dashboards\n    rules:\n")
	texts := expressions(t)
	for i, place := range slices.Sorted(maps.Keys(texts)) {
		fmt.Fprintf(&all, "      - {record: 'x%d', expr: %q}\n", i, texts[place])
	}
	file := filepath.Join(t.TempDir(), "expressions.yml")
	if err := os.WriteFile(file, []byte(all.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) {
		if out, err := exec.CommandContext(t.Context(), promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	run("check", "rules", file)
	run("check", "rules", "rules.yml", "alerts.yml")
	run("test", "rules", "alerts_test.yml")
	var tests struct {
		Tests []struct {
			Name string
			Expr []struct {
				Samples []struct{ Labels string } `yaml:"exp_samples"`
			} `yaml:"promql_expr_test"`
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, "alerts_test.yml")), &tests); err != nil {
		t.Fatal(err)
	}
	for _, r := range rules(t, "alerts.yml") {
		var fires, clears bool
		for _, test := range tests.Tests {
			for _, e := range test.Expr {
				is := len(e.Samples) == 1 && e.Samples[0].Labels == fmt.Sprintf(`{alertname="%s"}`, r.Alert)
				fires = fires || is
				clears = clears || test.Name == r.Alert && len(e.Samples) == 0
			}
		}
		if !fires || !clears {
			t.Errorf("alerts_test.yml does not prove that %s fires and clears", r.Alert)
		}
	}
}
