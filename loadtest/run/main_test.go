package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sluice.example/sluice/internal/pgtest"
)

func TestWithoutK6(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if err := run(t.Context(), []string{"-folder", ".."}); err == nil || !strings.Contains(err.Error(), "no k6 in PATH") {
		t.Errorf("run without k6 = %v; want that in the error", err)
	}
	if err := run(t.Context(), []string{"-folder", "..", "-script", "rampp"}); err == nil ||
		!strings.Contains(err.Error(), `no script "rampp"; there are mixed, overload`) {
		t.Errorf("run of an unknown script = %v; want the list of scripts", err)
	}
}

// With a program named k6 in PATH, it runs between start and stop, and is told where everything is.
func TestRunsK6(t *testing.T) {
	bin, out := t.TempDir(), t.TempDir()
	const fake = `#!/bin/sh
[ "$1 $2" = "run ../steady.js" ] || exit 9
[ "$K6_WEB_DASHBOARD" = true ] || exit 8
echo "$URL $ADMIN $RECEIVER" > "$K6_WEB_DASHBOARD_EXPORT"
`
	if err := os.WriteFile(filepath.Join(bin, "k6"), []byte(fake), 0o700); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-C", "../..", "-o", bin+"/", "./cmd/pipeline", "./cmd/lab")
	if b, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, b)
	}
	t.Setenv("PATH", bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	t.Setenv("DATABASE_URL", pgtest.URL(t))
	err := run(t.Context(), []string{"-folder", "..", "-script", "steady", "-bin", bin, "-out", out})
	log, _ := os.ReadFile(filepath.Join(out, "steady.log"))
	if err != nil {
		t.Fatalf("run = %v\n%s", err, log)
	}
	report, err := os.ReadFile(filepath.Join(out, "steady.html"))
	if err != nil || strings.Count(string(report), "http://127.0.0.1:") != 3 {
		t.Errorf("k6 was told %q, %v; want three addresses", report, err)
	}
	if !strings.Contains(string(log), `"msg":"stopped"`) {
		t.Errorf("the pipeline was not stopped in order:\n%s", log)
	}
}

// A ramp ends with failed thresholds by design.
func TestVerdict(t *testing.T) {
	exit := func(status string) error {
		return exec.CommandContext(context.Background(), "sh", "-c", "exit "+status).Run()
	}
	for _, c := range []struct {
		script, result string
		err            error
		ok             bool
	}{
		{"steady", "", nil, true},
		{"steady", `{"last_good_rate": 5, "balanced": true}`, exit("99"), false},
		{"ramp", "", nil, true},
		{"ramp", `{"last_good_rate": 5, "balanced": true}`, exit("99"), true},
		{"ramp", `{"last_good_rate": 5, "balanced": false}`, exit("99"), false},
		{"ramp", `{"last_good_rate": 0, "balanced": true}`, exit("99"), false},
		{"ramp", `{"last_good_rate": 5, "balanced": true}`, exit("107"), false},
		{"ramp", "", exit("99"), false},
		{"ramp", "no JSON", exit("99"), false},
		{"ramp", `{"last_good_rate": 5, "balanced": true}`, errors.New("killed"), false},
	} {
		file := filepath.Join(t.TempDir(), "result.json")
		if c.result != "" {
			if err := os.WriteFile(file, []byte(c.result), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := verdict(c.script, file, c.err); (err == nil) != c.ok {
			t.Errorf("verdict(%s, %s, %v) = %v; want ok %v", c.script, c.result, c.err, err, c.ok)
		}
	}
}
