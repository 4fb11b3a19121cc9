// Command run starts a pipeline and a receiver, runs one of the k6 scripts against them with k6 from PATH, and stops
// them again. It is what "make loadtest SCRIPT=..." calls. It never fetches k6.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"sluice.example/sluice/loadtest/stack"
)

const noK6 = `k6 is not installed, and we can't bring it along: its licence is the AGPL. Get it from its makers:

  https://grafana.com/docs/k6/latest/set-up/install-k6/
  macOS:    brew install k6
  Windows:  winget install k6 --source winget
  Debian:   add the repository that the page above names, then apt-get install k6
  Docker:   grafana/k6, see loadtest/README.md

Then run this again. Without k6, "make bench" measures the same paths with our own generator.
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "loadtest:", err)
		os.Exit(1)
	}
}

// how a script wants the processes started.
var pipelineArgs = map[string][]string{
	// So small that a laptop fills it.
	"overload": {"--buffer.max-bytes", "8MiB"},
}

var receiverArgs = map[string][]string{
	"mixed": {"--delay", "50ms", "--fail-rate", "0.1", "--lose-answers", "0.05"},
}

func run(ctx context.Context, args []string) (err error) {
	fs := flag.NewFlagSet("loadtest", flag.ContinueOnError)
	folder := fs.String("folder", "loadtest", "`path` of the folder with the scripts")
	script := fs.String("script", "smoke", "`name` of the script, without .js")
	bin := fs.String("bin", "bin", "`folder` of the programs pipeline and lab")
	out := fs.String("out", "loadtest/out", "`folder` for the report, the result and the log")
	if err := fs.Parse(args); err != nil {
		return err
	}
	names, err := scripts(*folder)
	if err != nil {
		return err
	}
	if !slices.Contains(names, *script) {
		return fmt.Errorf("there is no script %q; there are %s", *script, strings.Join(names, ", "))
	}
	k6, err := exec.LookPath("k6")
	if err != nil {
		fmt.Fprint(os.Stderr, noK6)
		return errors.New("no k6 in PATH")
	}
	if err := os.MkdirAll(*out, 0o755); err != nil {
		return err
	}
	log := filepath.Join(*out, *script+".log")
	fmt.Printf("starting a pipeline and a receiver; the pipeline's log is %s\n", log)
	s, err := stack.Start(ctx, stack.Options{
		Pipeline: filepath.Join(*bin, "pipeline"), Lab: filepath.Join(*bin, "lab"), Folder: *folder,
		ReceiverArgs: receiverArgs[*script],
		PipelineLog:  log, ReceiverLog: filepath.Join(*out, *script+"-receiver.log"),
		PipelineArgs: append([]string{"--data-dir", filepath.Join(".pipeline", "loadtest")}, pipelineArgs[*script]...),
	})
	if err != nil {
		return fmt.Errorf("%w (see %s)", err, log)
	}
	defer func() { err = errors.Join(err, s.Stop()) }()

	report, result := filepath.Join(*out, *script+".html"), filepath.Join(*out, *script+".json")
	cmd := exec.CommandContext(ctx, k6, "run", filepath.Join(*folder, *script+".js"))
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // k6 then runs teardown
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), "URL="+s.URL, "ADMIN="+s.Admin, "RECEIVER="+s.Receiver, "RESULT="+result,
		"K6_WEB_DASHBOARD=true", "K6_WEB_DASHBOARD_EXPORT="+report, "K6_NO_USAGE_REPORT=true",
		"K6_NEW_MACHINE_READABLE_SUMMARY=false") // the form that ramp.js knows best
	err = cmd.Run()
	fmt.Printf("report: %s\n", report)
	return verdict(*script, result, err)
}

// verdict turns k6's end into ours. A ramp that finds where it breaks has done its work, although k6 says that
// thresholds have failed; then its result shows whether the books balance.
func verdict(script, result string, err error) error {
	const thresholdsFailed = 99
	var exit *exec.ExitError
	if script != "ramp" || !errors.As(err, &exit) || exit.ExitCode() != thresholdsFailed {
		if err != nil {
			return fmt.Errorf("k6: %w", err)
		}
		return nil
	}
	text, readErr := os.ReadFile(result)
	if readErr != nil {
		return errors.Join(fmt.Errorf("k6: %w", err), readErr)
	}
	var r struct {
		LastGoodRate float64 `json:"last_good_rate"`
		Balanced     bool    `json:"balanced"`
	}
	if jsonErr := json.Unmarshal(text, &r); jsonErr != nil {
		return errors.Join(fmt.Errorf("k6: %w", err), jsonErr)
	}
	switch {
	case !r.Balanced:
		return errors.New("the books do not balance")
	case r.LastGoodRate == 0:
		return errors.New("no step was good: set FROM lower")
	}
	return nil
}

// scripts lists the scripts by name.
func scripts(folder string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(folder, "*.js"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no scripts in %s: run this from the project's folder, or give -folder", folder)
	}
	names := make([]string, len(files))
	for i, f := range files {
		names[i] = strings.TrimSuffix(filepath.Base(f), ".js")
	}
	return names, nil
}
