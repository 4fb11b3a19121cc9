package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
)

// configCommand prints what "pipeline run" with the same file, environment and flags would use.
func configCommand(_ context.Context, args []string, env environment) error {
	cfg := defaultConfig()
	settings, err := readConfig(cfg, "config", `Prints every setting in force and where it comes from: a flag, the environment, the file or the default, in this
order of precedence. Secrets are masked. The output is a configuration file.`, "pipeline config --config pipeline.yaml --buffer.max-wait 2ms", args, env)
	printSettings(env.stdout, settings) // what is in force helps to find what is wrong with it
	return err
}

// readConfig fills cfg for a command that takes every setting, and validates it. It gives no settings where they could
// not even be read.
func readConfig(cfg *config, name, about, example string, args []string, env environment) ([]*setting, error) {
	settings := cfg.settings()
	rest, help, err := loadSettings(settings, args, env.environ)
	if help {
		fmt.Fprintf(env.stdout, "%s\n\nExample:\n%s\n\nFlags; in a file the same names, nested or dotted; in the environment as PIPELINE_LISTEN and so on:\n", about, indent(example))
		fmt.Fprint(env.stdout, "  --config\n        configuration file (YAML)\n")
		for _, s := range defaultConfig().settings() {
			fmt.Fprintf(env.stdout, "  --%s\n        %s", s.key, s.doc)
			if d := s.text(); d != "" {
				fmt.Fprintf(env.stdout, " (default %s%s)", d, unitSuffix(s))
			}
			fmt.Fprintln(env.stdout)
		}
		return nil, flag.ErrHelp
	}
	if err != nil {
		return nil, usageError{err}
	}
	if len(rest) > 0 {
		return nil, usageError{fmt.Errorf("unexpected argument %q", rest[0])}
	}
	if err := errors.Join(cfg.validate(), checkStages(cfg)); err != nil {
		return settings, usageError{err}
	}
	return settings, nil
}

func unitSuffix(s *setting) string {
	if s.unit == "" || s.unit == "bytes" {
		return ""
	}
	return " " + s.unit
}

// printSettings prints a configuration file with the source of each value behind it.
func printSettings(w io.Writer, settings []*setting) {
	for _, s := range settings {
		line := s.key + ": " + yamlScalar(s.text())
		fmt.Fprintf(w, "%-52s # %s\n", line, s.source)
	}
}

// yamlScalar quotes where YAML would otherwise read something else.
func yamlScalar(text string) string {
	if text == "" || strings.ContainsAny(text, `:#,[]{}&*!|>'"%@`+"`") || strings.TrimSpace(text) != text {
		return "'" + strings.ReplaceAll(text, "'", "''") + "'"
	}
	return text
}
