// Command pipeline takes events over HTTP, stores them in PostgreSQL, decides by rules what has to be done about them,
// and does it: signed webhooks. This package is the only place that knows every stage; it holds the commands, the
// configuration, and the wiring with its ordered start and stop.
package main

import (
	_ "time/tzdata" // images without zoneinfo: rules and the address of the database may name time zones

	"sluice.example/sluice/internal/cli"
)

// program is the table of commands. A command lives in a file of its own and adds one line here.
var program = cli.Program{
	Name:  "pipeline",
	About: "Events in by HTTP, stored in PostgreSQL, acted upon by rules, sent on as signed webhooks.",
	Start: `Start with "pipeline run", or with "lab demo" of the program beside this one.`,
	Commands: []cli.Command{
		{Name: "outbox", Help: "list, show, retry or discard what has to be delivered", Run: outboxCommand},
		{Name: "jobs", Help: "what operators change in bulk: list, pause, resume or cancel", Run: jobsCommand},
		{Name: "audit", Help: "what operators have changed, when, and why", Run: auditCommand},
		{Name: "destination", Help: "pause, resume, probe or test a destination", Run: destinationCommand},
		{Name: "tune", Help: "change settings while processes run", Run: tuneCommand},
		{Name: "quarantine", Help: "list, export or delete events that PostgreSQL would not store", Run: quarantineCommand},
		{Name: "migrate", Help: "bring the database schema up to date, and end", Run: migrateCommand},
		{Name: "books", Help: "what a running pipeline received, stored, decided and sent", Run: booksCommand},
		{Name: "nodes", Help: "the processes on this database, and how each is", Run: nodesCommand},
		{Name: "doctor", Help: "what is wrong, and what to do about it", Run: doctorCommand},
		{Name: "console", Help: "a link for one login to the console; end every login", Run: consoleCommand},
		{Name: "config", Help: "print the settings in force, and where each comes from", Run: configCommand},
		{Name: "run", Help: "take events, store them, decide, deliver", Run: runPipeline},
		{Name: "import", Help: "send a file of events to a running pipeline, resumable", Run: importCommand},
		{Name: "explain", Help: "the story of an event or a message: why did this (not) fire?", Run: explainCommand},
		{Name: "rules", Help: "check, test, try and list rules", Run: rulesCommand},
		{Name: "version", Help: "print the version", Run: versionCommand},
	},
}

func main() { program.Main() }
