// Command pipeline takes events over HTTP, stores them in PostgreSQL, decides by rules what has to be done about them,
// and does it: signed webhooks. This package is the only place that knows every stage; it holds the commands, the
// configuration, and the wiring with its ordered start and stop.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"sluice.example/sluice/internal/spell"

	"golang.org/x/term"
)

// environment is what a command knows of the world, so that tests can give it another one.
type environment struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	// environ is as os.Environ gives it.
	environ []string
	// terminal says that a person reads stderr.
	terminal bool
}

// command is one word after "pipeline". A command lives in a file of its own and adds one line to the table below.
type command struct {
	name string
	// help is one line for the list of commands; the command's own --help tells the rest.
	help string
	// run returns nil for success, flag.ErrHelp after it printed help, a usageError for a wrong call, and an
	// exitError where the exit status says more than failure. ctx ends at the first SIGINT or SIGTERM.
	run func(ctx context.Context, args []string, env environment) error
}

var commands = []command{
	{"outbox", "list, show, retry or discard what has to be delivered", outboxCommand},
	{"quarantine", "list, export or delete events that PostgreSQL would not store", quarantineCommand},
	{"migrate", "bring the database schema up to date, and end", migrateCommand},
	{"books", "what a running pipeline received, stored, decided and sent", booksCommand},
	{"config", "print the settings in force, and where each comes from", configCommand},
	{"bench", "measure this machine, each path beside its floor", benchCommand},
	{"plan", "settings and machines for a target, from measurements", planCommand},
	{"run", "take events, store them, decide, deliver", runPipeline},
	{"demo", "play a shop's day through a pipeline of its own, and check the books", demoCommand},
	{"import", "send a file of events to a running pipeline, resumable", importCommand},
	{"receiver", "a webhook sink for trials: verifies, deduplicates, fails on demand", receiverCommand},
	{"explain", "the story of an event or a message: why did this (not) fire?", explainCommand},
	{"rules", "check, test, try and list rules", rulesCommand},
	{"version", "print the version", versionCommand},
}

// usageError is a command line that can't be understood: exit status 2.
type usageError struct{ error }

// exitError ends the program with a status of its own.
type exitError struct {
	error
	status int
}

func main() {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		cancel()
		second := <-signals
		fmt.Fprintf(os.Stderr, "pipeline: second signal (%s): stopping at once\n", second)
		os.Exit(128 + int(second.(syscall.Signal)))
	}()
	os.Exit(dispatch(ctx, os.Args[1:], environment{
		stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, environ: os.Environ(),
		terminal: term.IsTerminal(int(os.Stderr.Fd())),
	}))
}

// dispatch runs the command that args name and gives the exit status.
func dispatch(ctx context.Context, args []string, env environment) int {
	if len(args) == 0 || args[0] == "help" || args[0] == "-h" || args[0] == "--help" {
		printCommands(env.stdout)
		return 0
	}
	var names []string
	for _, c := range commands {
		names = append(names, c.name)
		if c.name != args[0] {
			continue
		}
		err := c.run(ctx, args[1:], env)
		var usage usageError
		var exit exitError
		switch {
		case err == nil || errors.Is(err, flag.ErrHelp):
			return 0
		case errors.As(err, &usage):
			fmt.Fprintf(env.stderr, "pipeline %s: %v\nSee \"pipeline %s --help\".\n", c.name, err, c.name)
			return 2
		case errors.As(err, &exit):
			fmt.Fprintf(env.stderr, "pipeline %s: %v\n", c.name, err)
			return exit.status
		}
		fmt.Fprintf(env.stderr, "pipeline %s: %v\n", c.name, err)
		return 1
	}
	fmt.Fprintf(env.stderr, "pipeline: unknown command %q%s\nSee \"pipeline help\".\n", args[0], didYouMean(args[0], names))
	return 2
}

func printCommands(w io.Writer) {
	fmt.Fprint(w, `Events in by HTTP, stored in PostgreSQL, acted upon by rules, sent on as signed webhooks.

Usage: pipeline COMMAND [flags]

Commands:
`)
	for _, c := range commands {
		fmt.Fprintf(w, "  %-11s %s\n", c.name, c.help)
	}
	fmt.Fprint(w, `
Start with "pipeline demo", or "pipeline run" and "pipeline receiver" in two terminals.
"pipeline COMMAND --help" shows a command's flags and an example.

Exit status: 0 success, 1 failure, 2 wrong call, 3 done but some input was rejected,
128 + N stopped at once by a second signal N.
`)
}

// newFlags makes the flag set of a command. Its --help prints about, an example and the flags, to stdout.
func newFlags(env environment, name, about, example string) *flag.FlagSet {
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.Usage = func() {
		fmt.Fprintf(env.stdout, "%s\n\nExample:\n%s\n", about, indent(example))
		any := false
		fs.VisitAll(func(f *flag.Flag) {
			if !any {
				fmt.Fprint(env.stdout, "\nFlags:\n")
				any = true
			}
			arg, text := flag.UnquoteUsage(f)
			fmt.Fprintf(env.stdout, "  --%s\n        %s", strings.TrimSpace(f.Name+" "+arg), text)
			if f.DefValue != "" && f.DefValue != "false" {
				fmt.Fprintf(env.stdout, " (default %s)", f.DefValue)
			}
			fmt.Fprintln(env.stdout)
		})
	}
	return fs
}

// parseFlags parses args, in which flags may stand before and after the arguments, and gives the arguments, at most so many.
func parseFlags(fs *flag.FlagSet, args []string, most int) ([]string, error) {
	var rest []string
	for {
		if err := fs.Parse(args); err != nil {
			if errors.Is(err, flag.ErrHelp) {
				return nil, err
			}
			var names []string
			fs.VisitAll(func(f *flag.Flag) { names = append(names, f.Name) })
			if name, ok := strings.CutPrefix(err.Error(), "flag provided but not defined: -"); ok {
				return nil, usageError{fmt.Errorf("unknown flag --%s%s", name, didYouMean(name, names))}
			}
			return nil, usageError{err}
		}
		if done := len(args) - fs.NArg(); done > 0 && args[done-1] == "--" {
			rest, args = append(rest, fs.Args()...), nil
		} else if fs.NArg() > 0 {
			rest, args = append(rest, fs.Arg(0)), fs.Args()[1:]
		} else {
			args = nil
		}
		if len(rest) > most {
			return nil, usageError{fmt.Errorf("unexpected argument %q", rest[most])}
		}
		if len(args) == 0 {
			return rest, nil
		}
	}
}

// parseAction parses the flags of a command that has several actions, each with the most arguments that it takes, and
// gives the action and its arguments. Without any it prints the help.
func parseAction(fs *flag.FlagSet, args []string, actions map[string]int) (action string, rest []string, err error) {
	rest, err = parseFlags(fs, args, math.MaxInt)
	if err != nil {
		return "", nil, err
	}
	if len(rest) == 0 {
		fs.Usage()
		return "", nil, flag.ErrHelp
	}
	action, rest = rest[0], rest[1:]
	most, known := actions[action]
	switch {
	case !known:
		return "", nil, usageError{fmt.Errorf("unknown action %q%s", action, didYouMean(action, slices.Sorted(maps.Keys(actions))))}
	case len(rest) > most:
		return "", nil, usageError{fmt.Errorf("unexpected argument %q", rest[most])}
	}
	return action, rest, nil
}

func indent(s string) string {
	return "  " + strings.ReplaceAll(strings.TrimSpace(s), "\n", "\n  ")
}

// didYouMean gives `; did you mean "x"?` for the nearest of names, or nothing where none is near.
func didYouMean(got string, names []string) string {
	if nearest := spell.Nearest(got, names, max(2, len(got)/4)); nearest != "" {
		return fmt.Sprintf("; did you mean %q?", nearest)
	}
	return ""
}
