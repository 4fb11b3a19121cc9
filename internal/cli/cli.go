// Package cli is what the project's programs share on a command line: the table of commands and the exit status of
// each, flags and the errors of a wrong call, values of settings, and masks over secrets. It knows no command.
package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"golang.org/x/term"

	"sluice.example/sluice/internal/spell"
)

// Env is the world of a command, so that tests can give it another one.
type Env struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Environ has the form of os.Environ.
	Environ []string
	// Terminal is true where a person reads Stderr.
	Terminal bool
}

// Variable returns the value of an environment variable, empty where it is not set.
func (e Env) Variable(name string) string {
	for _, v := range e.Environ {
		if value, ok := strings.CutPrefix(v, name+"="); ok {
			return value
		}
	}
	return ""
}

// Command is one word after the program's name.
type Command struct {
	Name string
	// Help is one line for the list of commands; the command's own --help has the rest. A command without one is not
	// listed.
	Help string
	// Run returns nil for success, flag.ErrHelp after it printed help, a UsageError for a wrong call, and an ExitError
	// where the exit status says more than failure. ctx ends at the first SIGINT or SIGTERM.
	Run func(ctx context.Context, args []string, env Env) error
}

// Program is a table of commands.
type Program struct {
	Name string
	// About stands above the list of commands, Start below it.
	About, Start string
	Commands     []Command
}

// UsageError is a command line that can't be understood: exit status 2.
type UsageError struct{ error }

// Usagef makes a UsageError.
func Usagef(format string, args ...any) error { return UsageError{fmt.Errorf(format, args...)} }

// Usage makes a UsageError of err.
func Usage(err error) error { return UsageError{err} }

// Unwrap returns what is wrong.
func (e UsageError) Unwrap() error { return e.error }

// ExitError ends the program with a status of its own.
type ExitError struct {
	Err    error
	Status int
}

// Error is the text of Err.
func (e ExitError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e ExitError) Unwrap() error { return e.Err }

// together is how long signals count as one: a terminal and a supervisor, or a shell and its group, may both send one
// for the same stop. A guess: less than it takes to decide to press a key again.
const together = 500 * time.Millisecond

// Main runs the command that the process was called with, and ends the process. The first SIGINT or SIGTERM ends the
// command's context, a later one the process.
func (p Program) Main() {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() { // ends with the process
		<-signals
		cancel()
		first := time.Now()
		for second := range signals {
			if time.Since(first) > together {
				fmt.Fprintf(os.Stderr, "%s: second signal (%s): stopping at once\n", p.Name, second)
				os.Exit(128 + int(second.(syscall.Signal)))
			}
		}
	}()
	os.Exit(p.Dispatch(ctx, os.Args[1:], Env{
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Environ: os.Environ(),
		Terminal: term.IsTerminal(int(os.Stderr.Fd())),
	}))
}

// Dispatch runs the command that args name and returns the exit status.
func (p Program) Dispatch(ctx context.Context, args []string, env Env) int {
	if len(args) > 1 && args[0] == "help" {
		args = []string{args[1], "--help"}
	}
	if len(args) == 0 || args[0] == "help" || args[0] == "-h" || args[0] == "--help" {
		p.printCommands(env.Stdout)
		return 0
	}
	if args[0] == "--version" {
		args = []string{"version"}
	}
	var names []string
	for _, c := range p.Commands {
		if c.Name == args[0] {
			return p.run(ctx, c, args[1:], env)
		}
		if c.Help != "" {
			names = append(names, c.Name)
		}
	}
	fmt.Fprintf(env.Stderr, "%s: unknown command %q%s\nSee \"%[1]s help\".\n", p.Name, args[0],
		spell.DidYouMean(args[0], names))
	return 2
}

func (p Program) run(ctx context.Context, c Command, args []string, env Env) int {
	out := &answerWriter{w: env.Stdout}
	env.Stdout = out
	err := c.Run(ctx, args, env)
	if lost := out.close(); err == nil || errors.Is(err, flag.ErrHelp) {
		err = lost
	}
	var usage UsageError
	var exit ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &usage):
		fmt.Fprintf(env.Stderr, "%s %s: %s\nSee \"%[1]s %[2]s --help\".\n", p.Name, c.Name, Visible(err.Error()))
		return 2
	case errors.As(err, &exit):
		fmt.Fprintf(env.Stderr, "%s %s: %s\n", p.Name, c.Name, Visible(err.Error()))
		return exit.Status
	}
	fmt.Fprintf(env.Stderr, "%s %s: %s\n", p.Name, c.Name, Visible(err.Error()))
	return 1
}

func (p Program) printCommands(w io.Writer) {
	fmt.Fprintf(w, "%s\n\nUsage: %s COMMAND [flags]\n\nCommands:\n", p.About, p.Name)
	for _, c := range p.Commands {
		if c.Help != "" {
			fmt.Fprintf(w, "  %-11s  %s\n", c.Name, c.Help)
		}
	}
	fmt.Fprintf(w, `
%s
"%s COMMAND --help" shows a command's flags and an example.

Exit status: 0 success, 1 failure, 2 wrong call, 3 done but some input was rejected,
128 + N stopped at once by a second signal N.
`, p.Start, p.Name)
}

// Count returns "1 rule", "2 rules" and so on.
func Count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
