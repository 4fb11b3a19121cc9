package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"

	"sluice.example/sluice/internal/cli"
)

const configAbout = `Prints every setting in force and where it comes from: a flag, the environment, the file or the
default, in this order of precedence. Secrets are masked. The output is a configuration file.`

// configCommand prints what "pipeline run" with the same file, environment and flags would use.
func configCommand(_ context.Context, args []string, env cli.Env) error {
	cfg := defaultConfig()
	settings, err := readConfig(cfg, "config", configAbout,
		"pipeline config --config pipeline.yaml --buffer.max-wait 2ms", args, env)
	printSettings(env.Stdout, settings) // what is in force helps to find what is wrong with it
	return err
}

const settingsAbout = `

The flags are settings: they stand under the same names in a configuration file, nested or dotted, and in the
environment as PIPELINE_LISTEN and so on.`

// readConfig fills cfg for a command that takes every setting, and validates it. It returns no settings where they
// could not even be read.
func readConfig(cfg *config, name, about, example string, args []string, env cli.Env) ([]*setting, error) {
	settings := cfg.settings()
	fs := cli.NewFlags(env, name, about+settingsAbout, example)
	flags := addFlags(fs, settings)
	_, err := cli.Parse(fs, args, 0)
	if errors.Is(err, flag.ErrHelp) {
		return nil, err
	}
	if err := errors.Join(loadSettings(settings, flags(), env.Environ), err); err != nil {
		return nil, cli.Usage(err)
	}
	cfg.read = settings
	if err := errors.Join(cfg.validate(), checkStages(cfg)); err != nil {
		return settings, cli.Usage(err)
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
