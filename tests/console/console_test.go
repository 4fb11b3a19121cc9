// Package console looks at the operators' console in a real browser, as a real program serves it from a real
// PostgreSQL. It needs chromium, node and npm.
package console

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice.example/sluice/internal/child"
	"sluice.example/sluice/internal/pgtest"
)

// root is the project's folder.
const root = "../.."

var build = sync.OnceValues(func() (folder string, err error) {
	if folder, err = os.MkdirTemp("", "sluice-console-"); err != nil {
		return "", err
	}
	cmd := exec.Command("go", "build", "-o", folder+"/", "./cmd/pipeline", "./cmd/lab")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return folder, nil
})

var installed = sync.OnceValue(func() error {
	if exec.Command("npm", "ls").Run() == nil {
		return nil // what package.json asks for is there
	}
	if out, err := exec.Command("npm", "ci", "--no-audit", "--no-fund").CombinedOutput(); err != nil {
		return fmt.Errorf("npm ci: %w\n%s", err, out)
	}
	return nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if folder, err := build(); err == nil {
		os.RemoveAll(folder)
	}
	os.Exit(code)
}

// startPipeline starts the program on a database, on free ports, and stops it when the test ends.
func startPipeline(t *testing.T, database string, args ...string) *child.Process {
	t.Helper()
	folder, err := build()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	p, err := child.Start(ctx, child.Command{
		Program: filepath.Join(folder, "pipeline"), Log: filepath.Join(t.TempDir(), "pipeline.log"), Env: child.Environ(),
		Args: append([]string{"run", "--database-url", database, "--listen", "127.0.0.1:0", "--admin.listen", "127.0.0.1:0",
			"--console.listen", "127.0.0.1:0", "--console.name", "trial", "--log.format", "json"}, args...),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(); err != nil && !t.Failed() {
			t.Error(err)
		}
	})
	if err := p.AwaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	return p
}

// startDemo plays a shop's day, and returns the link to its console, which is there until the test ends.
func startDemo(t *testing.T) (link string) {
	t.Helper()
	folder, err := build()
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.MkdirTemp("", "sluice-demo-") // which a PostgreSQL of another user can enter
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(data) })
	if err := os.Chmod(data, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(folder, "lab"), "demo", "--keep", "--visits", "300", "--data-dir", data+"/demo")
	cmd.Dir, cmd.Env = root, child.Environ()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		if err := cmd.Wait(); err != nil && !t.Failed() {
			t.Errorf("lab demo: %v\n%s", err, stderr.String())
		}
	})
	var said strings.Builder
	for lines := bufio.NewScanner(out); lines.Scan(); {
		fmt.Fprintln(&said, lines.Text())
		if link := strings.TrimSpace(lines.Text()); strings.Contains(link, "/login#t=") {
			return link
		}
	}
	t.Fatalf("lab demo printed no link:\n%s%s", said.String(), stderr.String())
	return ""
}

// seen is what every scenario reports.
type seen struct {
	// Faults are errors of scripts, dialogs, and violations of the policy.
	Faults []string
	// Pages are those of the navigation, Findings what the accessibility checker found on them. SlowestPaint is in
	// milliseconds.
	Pages, Findings []string
	SlowestPaint    float64
	Headings        []string
}

// look runs a scenario of look.mjs, and fails the test where a page had a fault.
func look(t *testing.T, scenario, link string, into any, env ...string) {
	t.Helper()
	if err := installed(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", "look.mjs", scenario)
	cmd.Env = append(append(os.Environ(), "LINK="+link), env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s%s", scenario, err, stdout.String(), stderr.String())
	}
	lines := strings.Split(strings.TrimSpace(stdout.String()), "\n")
	last := []byte(lines[len(lines)-1])
	if err := json.Unmarshal(last, into); err != nil {
		t.Fatalf("%s printed %q: %v", scenario, stdout.String(), err)
	}
	var s seen
	if err := json.Unmarshal(last, &s); err != nil {
		t.Fatal(err)
	}
	for _, fault := range s.Faults {
		t.Errorf("%s: %s", scenario, fault)
	}
}

// TestPages: every page of a shop's day answers, breaks no rule of its policy, and has no serious finding of
// accessibility, light and dark.
func TestPages(t *testing.T) {
	t.Parallel()
	var s seen
	look(t, "pages", startDemo(t), &s, "SCREENSHOTS="+os.Getenv("SCREENSHOTS"))
	for _, finding := range s.Findings {
		t.Error(finding)
	}
	t.Logf("%d pages, the slowest first paint after %.0f ms", len(s.Pages), s.SlowestPaint)
}

// TestPagesWithoutScripts: pages are complete without JavaScript.
func TestPagesWithoutScripts(t *testing.T) {
	t.Parallel()
	p := startPipeline(t, pgtest.URL(t))
	var s seen
	look(t, "plain", p.Console, &s)
	for i, heading := range s.Headings {
		if strings.TrimSpace(heading) == "" {
			t.Errorf("page %d has no heading", i)
		}
	}
	if len(s.Headings) == 0 {
		t.Error("no pages")
	}
}

// TestPolicyOfPages: whatever a script of the console does by mistake with what an event holds, it becomes no markup.
func TestPolicyOfPages(t *testing.T) {
	t.Parallel()
	p := startHostile(t)
	got := map[string]any{}
	look(t, "policy", p.Console, &got, "EVENT=/events/hostile-0?tenant=1")
	for _, way := range []string{"innerHTML", "outerHTML", "insertAdjacentHTML", "write", "parse", "srcdoc", "script",
		"policy"} {
		if got[way] != "TypeError" {
			t.Errorf("%s: %v, want a TypeError", way, got[way])
		}
	}
	if got["images"] != 0.0 {
		t.Errorf("%v images are on the page: %v", got["images"], got)
	}
}

// TestTypes: the scripts of pages have the types that they say.
func TestTypes(t *testing.T) {
	if err := installed(); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("node", "node_modules/typescript/bin/tsc", "--project", "tsconfig.json").CombinedOutput()
	if err != nil {
		t.Errorf("tsc: %v\n%s", err, out)
	}
}
