package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"sluice.example/sluice/internal/cli"
)

// asProgram in the environment makes the test binary be the program, which starts itself for its receiver.
const asProgram = "SLUICE_TEST_BINARY_IS_THE_PROGRAM"

var built = sync.OnceValues(func() (string, error) {
	file := filepath.Join(folder, "pipeline")
	out, err := exec.Command("go", "build", "-o", file, "sluice.example/sluice/cmd/pipeline").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("go build: %w\n%s", err, out)
	}
	return file, err
})

// folder holds what the tests build.
var folder string

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Setenv(asProgram, "1")
	var err error
	if folder, err = os.MkdirTemp("", "sluice-lab-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	status := m.Run()
	os.RemoveAll(folder)
	os.Exit(status)
}

// pipelineProgram is the path of the pipeline, built once.
func pipelineProgram(t *testing.T) string {
	t.Helper()
	file, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return file
}

func runCommand(t *testing.T, environ []string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errOut bytes.Buffer
	env := cli.Env{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errOut, Environ: environ}
	status = program.Dispatch(context.Background(), args, env)
	return status, out.String(), errOut.String()
}

func TestHelp(t *testing.T) {
	status, got, _ := runCommand(t, nil)
	if status != 0 {
		t.Errorf("without a command the status is %d, want 0", status)
	}
	for _, c := range program.Commands {
		if strings.Contains(got, "  "+c.Name+" ") != (c.Help != "") {
			t.Errorf("the list of commands shows %q, or lacks it:\n%s", c.Name, got)
		}
		status, help, errOut := runCommand(t, nil, c.Name, "--help")
		if status != 0 || !strings.Contains(help, "Example:\n  lab ") && !strings.Contains(help, "lab receiver") ||
			errOut != "" {
			t.Errorf("%s --help: status %d, stderr %q, want an example in\n%s", c.Name, status, errOut, help)
		}
	}
}

// The pipeline is found by name, beside this program or in PATH, and a program that is nowhere is an error.
func TestFindPrograms(t *testing.T) {
	if p, err := findPrograms("/x/pipeline"); err != nil || p.Pipeline != "/x/pipeline" || p.Lab == "" {
		t.Errorf("by name: %+v, %v", p, err)
	}
	t.Setenv("PATH", filepath.Dir(pipelineProgram(t)))
	if p, err := findPrograms(""); err != nil || p.Pipeline != pipelineProgram(t) {
		t.Errorf("in PATH: %+v, %v", p, err)
	}
	t.Setenv("PATH", t.TempDir())
	if _, err := findPrograms(""); err == nil || !strings.Contains(err.Error(), "make build") {
		t.Errorf("nowhere: %v", err)
	}
}
