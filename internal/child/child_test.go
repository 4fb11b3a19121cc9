package child

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"sluice.example/sluice/internal/cli"
)

// asChild in the environment makes the test binary play a program that starts well, or not.
const asChild = "SLUICE_TEST_CHILD"

func TestMain(m *testing.M) {
	switch os.Getenv(asChild) {
	case "":
		os.Exit(m.Run())
	case "good":
		stop := make(chan os.Signal, 1)
		signal.Notify(stop, syscall.SIGTERM)
		ready := cli.Ready{URL: "http://127.0.0.1:2", Admin: "http://127.0.0.1:1", Database: "postgres://here",
			Pid: os.Getpid()}
		if err := ready.Write(os.Args[len(os.Args)-1]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		<-stop
	case "failing":
		fmt.Fprintln(os.Stderr, "no such database")
		os.Exit(3)
	case "silent":
		select {}
	}
}

func start(t *testing.T, ctx context.Context, kind string) (*Process, error) {
	t.Helper()
	p, err := Start(ctx, Command{
		Args: []string{"run"}, Env: append(Environ(), asChild+"="+kind), Log: filepath.Join(t.TempDir(), "log"),
	})
	if p != nil {
		t.Cleanup(func() { _ = p.Kill() })
	}
	return p, err
}

func TestStartReadsAddressesAndStopWaits(t *testing.T) {
	p, err := start(t, t.Context(), "good")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := []string{p.URL, p.Events(), p.Admin, p.Database},
		[]string{"http://127.0.0.1:2", "http://127.0.0.1:2/v1/events", "http://127.0.0.1:1",
			"postgres://here"}; !slices.Equal(got, want) {
		t.Errorf("addresses %q, want %q", got, want)
	}
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
	select {
	case <-p.Ended():
	default:
		t.Error("Stop returned while the process ran")
	}
	if err := p.Stop(); err != nil {
		t.Errorf("Stop of an ended process: %v", err)
	}
}

func TestStartTellsWhyAProcessEnded(t *testing.T) {
	_, err := start(t, t.Context(), "failing")
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 3 || !strings.Contains(err.Error(), "no such database") {
		t.Errorf("error %v, want exit status 3 and the end of the log", err)
	}
}

func TestStartGivesUpWithItsContext(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := start(t, ctx, "silent"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want the context's", err)
	}
}

func TestKillNeedsNoConsent(t *testing.T) {
	p, err := start(t, t.Context(), "good")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(); err != nil {
		t.Error(err)
	}
	var exit *exec.ExitError
	if err := p.Wait(); !errors.As(err, &exit) || exit.ExitCode() != -1 {
		t.Errorf("it ended with %v, want a signal", err)
	}
}

func TestEnvironTakesSettingsOut(t *testing.T) {
	for _, name := range []string{"PIPELINE_LISTEN", "RECEIVER_SECRET", "DATABASE_URL", "PGHOST"} {
		t.Setenv(name, "x")
	}
	t.Setenv("OTHER", "y")
	env := Environ()
	if !slices.Contains(env, "OTHER=y") || slices.ContainsFunc(env, func(v string) bool {
		return strings.HasSuffix(v, "=x")
	}) {
		t.Errorf("environment %q, want OTHER and no settings", env)
	}
}
