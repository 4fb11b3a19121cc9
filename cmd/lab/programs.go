package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"sluice.example/sluice/bench"
)

// pipelineFlag adds the flag that names the pipeline's program.
func pipelineFlag(fs *flag.FlagSet) *string {
	return fs.String("pipeline", "", "`path` of the pipeline's program (default: beside this one, else in PATH)")
}

// readyFlag adds the flag of a program that serves; see cli.Ready.
func readyFlag(fs *flag.FlagSet) *string {
	return fs.String("ready-file", "", "`file` that gets the address, as one JSON object, once it serves")
}

// findPrograms finds the pipeline, and this program for what is run beside it.
func findPrograms(pipeline string) (p bench.Programs, err error) {
	if p.Lab, err = os.Executable(); err != nil {
		return p, err
	}
	p.Pipeline = pipeline
	if p.Pipeline != "" {
		return p, nil
	}
	p.Pipeline = filepath.Join(filepath.Dir(p.Lab), "pipeline")
	if _, err := os.Stat(p.Pipeline); err == nil {
		return p, nil
	}
	if p.Pipeline, err = exec.LookPath("pipeline"); err != nil {
		return p, fmt.Errorf("there is no program \"pipeline\" beside %s or in PATH: make build, or name it with --pipeline",
			p.Lab)
	}
	return p, nil
}
