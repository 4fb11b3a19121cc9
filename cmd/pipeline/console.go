package main

import (
	"context"
	"fmt"
	"net"

	"sluice.example/sluice/console"
	"sluice.example/sluice/internal/history"
	"sluice.example/sluice/internal/stages"
	"sluice.example/sluice/pipeline/rules"
)

// openConsole listens for operators, and logs the link of the first login; no stage where the role is not taken.
func (n *node) openConsole(p pools, made *parts) ([]stages.Stage, error) {
	if !n.cfg.hasRole("console") {
		return nil, nil
	}
	past := history.New(n.reg, console.Series...)
	c, err := console.New(n.cfg.console, console.Sources{
		History: past, Settings: shownSettings(n.cfg.read), Destinations: made.destinations.Names(),
		DB: p.console, Changes: p.query, Metrics: n.reg, Ready: n.ready.check, Rules: made.knownRules,
		Tenants: func() map[string]int32 { return made.who.Load().IDs() }, Version: version(),
	}, n.log)
	if err != nil {
		return nil, err
	}
	door, err := net.Listen("tcp", n.cfg.console.Listen)
	if err != nil {
		return nil, fmt.Errorf("console.listen: %w", err)
	}
	n.told.Console = c.LoginLink(door.Addr())
	n.log.Info("console", "link", n.told.Console)
	return []stages.Stage{stages.New("console", func(ctx context.Context) error { return c.Serve(ctx, door) }),
		stages.New("history", past.Run), stages.New("jobs", c.Work)}, nil
}

// shownSettings are settings as the console shows them.
func shownSettings(settings []*setting) []console.Setting {
	shown := make([]console.Setting, len(settings))
	for i, s := range settings {
		shown[i] = console.Setting{Key: s.key, Value: s.text(), Source: s.source, Doc: s.doc}
	}
	return shown
}

// knownRules are the rules in force, or those of the file where this process decides nothing; nil without a file.
func (p *parts) knownRules() (*rules.Set, error) {
	switch {
	case p.cfg.evaluate.Rules == "":
		return nil, nil
	case p.engine != nil:
		return p.engine.InForce(), nil
	}
	return p.loadRules()
}

func closeDoor(door net.Listener) error {
	if door == nil {
		return nil
	}
	return door.Close()
}
