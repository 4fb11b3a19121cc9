package main

import (
	"fmt"
	"time"

	"github.com/schollz/progressbar/v3"

	"sluice.example/sluice/internal/cli"
)

// benchProgress shows how far a run is: a bar for a person, a line for each step in a log.
type benchProgress struct {
	env cli.Env
	bar *progressbar.ProgressBar // nil before the first step and without a terminal
}

func newBenchProgress(env cli.Env) *benchProgress { return &benchProgress{env: env} }

func (p *benchProgress) show(step, steps int, what string) {
	if !p.env.Terminal {
		fmt.Fprintf(p.env.Stderr, "bench: %d of %d: %s\n", step+1, steps, what)
		return
	}
	if p.bar == nil {
		p.bar = progressbar.NewOptions(steps, progressbar.OptionSetWriter(p.env.Stderr), progressbar.OptionSetWidth(30),
			progressbar.OptionShowCount(), progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish())
	}
	p.bar.Describe(fmt.Sprintf("%-36.36s", what))
	_ = p.bar.Set(step) // drawing is not worth failing for
}

func (p *benchProgress) finish() {
	if p.bar != nil {
		_ = p.bar.Clear()
	}
}
