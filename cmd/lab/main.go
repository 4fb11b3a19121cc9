// Command lab is for trying and measuring the pipeline: a demo, a webhook receiver that fails on demand, benchmarks
// beside their floors, and a planner. It runs the pipeline as another process. Nothing in it is needed where the
// pipeline works.
package main

import "sluice.example/sluice/internal/cli"

var program = cli.Program{
	Name:  "lab",
	About: "Tries and measures a pipeline, which it runs as another process.",
	Start: `Start with "lab demo", or "pipeline run" and "lab receiver" in two terminals.`,
	Commands: []cli.Command{
		{Name: "demo", Help: "play a shop's day through a pipeline of its own, and check the books", Run: demoCommand},
		{Name: "receiver", Help: "a webhook sink for trials: verifies, deduplicates, fails on demand", Run: receiverCommand},
		{Name: "bench", Help: "measure this machine, each path beside its floor", Run: benchCommand},
		{Name: "plan", Help: "settings and machines for a target, from measurements", Run: planCommand},
		// The floors that bench measures are processes of their own, as the pipeline is.
		{Name: "floor-server", Run: floorServerCommand},
		{Name: "floor-sender", Run: floorSenderCommand},
	},
}

func main() { program.Main() }
