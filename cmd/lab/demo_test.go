package main

import (
	"os"
	"strings"
	"testing"
)

func TestDemo(t *testing.T) {
	t.Parallel()
	// A folder that PostgreSQL can enter when the tests run as root and it runs as another user.
	public, err := os.MkdirTemp("", "sluice-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(public) })
	if err := os.Chmod(public, 0o755); err != nil {
		t.Fatal(err)
	}
	dir := public + "/demo"
	status, out, errOut := runCommand(t, nil, "demo", "--pipeline", pipelineProgram(t), "--data-dir", dir, "--rules",
		"../../rules/shop.yaml", "--visits", "300")
	if status != 0 || !strings.Contains(out, "the books balance") {
		t.Fatalf("status %d\n%s%s", status, out, errOut)
	}
	// It makes its own folder anew, and no other.
	if err := makeDemoDir(dir); err != nil {
		t.Errorf("a second demo: %v", err)
	}
	if _, err := os.Stat(dir + "/postgres"); !os.IsNotExist(err) {
		t.Errorf("the first demo's data is still there: %v", err)
	}
	other := t.TempDir()
	if err := makeDemoDir(other); err == nil || !strings.Contains(err.Error(), "not made by a demo") {
		t.Errorf("in a folder that is not its own: %v", err)
	}
}
