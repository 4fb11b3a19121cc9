package main

import (
	"context"
	"fmt"
	"runtime/debug"

	"sluice.example/sluice/internal/cli"
	"sluice.example/sluice/pipeline/schema"
)

func versionCommand(_ context.Context, args []string, env cli.Env) error {
	fs := cli.NewFlags(env, "version", "Prints the version of the program, the commit it was built from, "+
		"the version of the schema that it knows, and the Go that built it.", "pipeline version")
	if _, err := cli.Parse(fs, args, 0); err != nil {
		return err
	}
	fmt.Fprintln(env.Stdout, version())
	return nil
}

// version is what the Go toolchain recorded in the binary.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "pipeline (no build information)"
	}
	revision, modified := "unknown commit", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision" && len(s.Value) >= 12:
			revision = s.Value[:12]
		case s.Key == "vcs.modified" && s.Value == "true":
			modified = ", modified"
		}
	}
	return fmt.Sprintf("pipeline %s (%s%s) schema %d %s",
		info.Main.Version, revision, modified, schema.Version(), info.GoVersion)
}
