package cli

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"sluice.example/sluice/internal/duration"
	"sluice.example/sluice/internal/spell"
)

// NewFlags makes the flag set of a command. Its --help prints about, an example and the flags, to stdout.
func NewFlags(env Env, name, about, example string) *flag.FlagSet {
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.Usage = func() {
		fmt.Fprintf(env.Stdout, "%s\n\nExample:\n%s\n", about, indent(example))
		title := "\nFlags:\n"
		fs.VisitAll(func(f *flag.Flag) {
			arg, text := "", f.Usage
			if strings.Contains(text, "`") {
				arg, text = flag.UnquoteUsage(f)
			}
			fmt.Fprintf(env.Stdout, "%s  --%s\n        %s", title, strings.TrimSpace(f.Name+" "+arg), text)
			title = ""
			if f.DefValue != "" && f.DefValue != "false" {
				fmt.Fprintf(env.Stdout, " (default %s)", f.DefValue)
			}
			fmt.Fprintln(env.Stdout)
		})
	}
	return fs
}

// Parse parses args, in which flags may stand before and after the arguments, and returns the arguments, of which there
// may be at most as many as most says. It takes --name=value, --name value and, for flags that are true or false,
// --name alone; one hyphen does as well as two, and -- ends the flags. The error is a UsageError that joins every
// fault, or flag.ErrHelp once help was printed.
func Parse(fs *flag.FlagSet, args []string, most int) ([]string, error) {
	var rest []string
	var errs []error
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if arg == "--" {
			rest = append(rest, args[i+1:]...)
			break
		}
		if len(arg) < 2 || arg[0] != '-' {
			rest = append(rest, arg)
			continue
		}
		name, value, hasValue := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(arg, "-"), "-"), "=")
		if name == "h" || name == "help" {
			fs.Usage()
			return nil, flag.ErrHelp
		}
		f := fs.Lookup(name)
		switch {
		case f == nil:
			errs = append(errs, fmt.Errorf("unknown flag --%s%s", name, spell.DidYouMean(name, flagNames(fs))))
			// Its value, where it has one, is not an argument either.
			if !hasValue && i+1 < len(args) && !strings.HasPrefix(args[i+1], "-") {
				i++
			}
			continue
		case !hasValue && isBool(f.Value):
			value = "true"
		case !hasValue && i+1 == len(args):
			errs = append(errs, fmt.Errorf("flag --%s needs a value", name))
			continue
		case !hasValue:
			i++
			value = args[i]
		}
		if err := fs.Set(name, value); err != nil {
			errs = append(errs, fmt.Errorf("flag --%s: %q: %w", name, value, err))
		}
	}
	if len(rest) > most {
		errs = append(errs, fmt.Errorf("unexpected argument %q", rest[most]))
	}
	if len(errs) > 0 {
		return rest, UsageError{errors.Join(errs...)}
	}
	return rest, nil
}

func flagNames(fs *flag.FlagSet) (names []string) {
	fs.VisitAll(func(f *flag.Flag) { names = append(names, f.Name) })
	return names
}

func isBool(v flag.Value) bool {
	b, ok := v.(interface{ IsBoolFlag() bool })
	return ok && b.IsBoolFlag()
}

// ParseAction parses the flags of a command that has several actions, each with the most arguments that it takes, and
// returns the action and its arguments. Without any it prints the help.
func ParseAction(fs *flag.FlagSet, args []string, actions map[string]int) (action string, rest []string, err error) {
	rest, err = Parse(fs, args, math.MaxInt)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return "", nil, err
	case len(rest) == 0 && err == nil:
		fs.Usage()
		return "", nil, flag.ErrHelp
	case len(rest) == 0:
		return "", nil, err
	}
	action, rest = rest[0], rest[1:]
	most, known := actions[action]
	var fault error
	switch {
	case !known:
		fault = Usagef("unknown action %q%s", action, spell.DidYouMean(action, slices.Sorted(maps.Keys(actions))))
	case len(rest) > most:
		fault = Usagef("unexpected argument %q", rest[most])
	}
	if err := errors.Join(err, fault); err != nil {
		return "", nil, err
	}
	return action, rest, nil
}

// Duration adds a flag for a length of time to p, of the grammar that settings and files have.
func Duration(fs *flag.FlagSet, p *time.Duration, name string, value time.Duration, usage string) {
	*p = value
	fs.Var((*duration.Value)(p), name, usage)
	if value == 0 {
		fs.Lookup(name).DefValue = ""
	}
}

func indent(s string) string {
	return "  " + strings.ReplaceAll(strings.TrimSpace(s), "\n", "\n  ")
}
