package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"sluice.example/sluice/internal/child"
	"sluice.example/sluice/internal/localpg"
)

const (
	demoSecretFile  = "secret"
	demoSecret      = "whsec_ZGVtby1vbmx5LWRlbW8tb25seS1kZW1vLW9ubHk="
	demoDestination = `# Written by "lab demo". All destinations are the demo's receiver, which fails now and then,
# so retries come soon.
destinations:
`
)

// demoDir is .pipeline/demo, unless we are root and PostgreSQL, which then runs as another user, could not get there.
func demoDir() string {
	dir := filepath.Join(".pipeline", "demo")
	at, err := filepath.Abs(".")
	if os.Getuid() != 0 || err != nil {
		return dir
	}
	for ; ; at = filepath.Dir(at) {
		info, err := os.Stat(at)
		if err != nil || info.Mode()&0o001 == 0 {
			return filepath.Join(os.TempDir(), "sluice-demo")
		}
		if at == filepath.Dir(at) {
			return dir
		}
	}
}

// makeDemoDir makes the demo's folder anew. It removes only what an earlier demo made, and not while that runs.
func makeDemoDir(dir string) error {
	_, err := os.Stat(dir)
	if err == nil {
		if _, err := os.Stat(filepath.Join(dir, demoSecretFile)); err != nil {
			return fmt.Errorf("%s exists and was not made by a demo; name another --data-dir", dir)
		}
		if server, err := localpg.Find(dir); err == nil && server.Alive() {
			return fmt.Errorf("a PostgreSQL (process %d) runs in %s: end that demo or pipeline first", server.Pid, dir)
		}
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := os.Chmod(dir, 0o755); err != nil { // PostgreSQL may run as another user and has to pass
		return err
	}
	return os.WriteFile(filepath.Join(dir, demoSecretFile), []byte(demoSecret), 0o600)
}

// ruleNames is what the demo has to know of a rules file; the pipeline reads and checks it.
type ruleNames struct {
	Ruleset string `yaml:"ruleset"`
	Rules   []struct {
		SendTo yaml.Node `yaml:"send_to"`
	} `yaml:"rules"`
}

func readRuleNames(file string) (names ruleNames, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return names, err
	}
	return names, yaml.Unmarshal(text, &names)
}

// destinations lists every name that a rule sends to.
func (r ruleNames) destinations() []string {
	found := map[string]bool{}
	for _, rule := range r.Rules {
		if rule.SendTo.Kind == yaml.ScalarNode {
			found[rule.SendTo.Value] = true
		}
		for _, name := range rule.SendTo.Content {
			found[name.Value] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// writeDemoSettings writes the files with which the demo's pipeline, and later any other, can be started.
func writeDemoSettings(o demoOptions, names []string, receiver string) (settings string, err error) {
	dir, err := filepath.Abs(o.dir)
	if err != nil {
		return "", err
	}
	destinations := demoDestination
	for _, name := range names {
		destinations += fmt.Sprintf(`  - name: %s
    url: %s/%s
    allow_private: true  # a receiver on this machine
    secret_file: %s
    attempts: 12
    retry: [200ms, 400ms, 800ms, 1s]
`, name, receiver, name, strconv.Quote(filepath.Join(dir, demoSecretFile)))
	}
	if err := os.WriteFile(filepath.Join(dir, "destinations.yaml"), []byte(destinations), 0o600); err != nil {
		return "", err
	}
	settings = filepath.Join(dir, "pipeline.yaml")
	return settings, os.WriteFile(settings, fmt.Appendf(nil, `# Written by "lab demo".
data-dir: %s
rules: %s
destinations: %s
`, strconv.Quote(dir), strconv.Quote(o.rules), strconv.Quote(filepath.Join(dir, "destinations.yaml"))), 0o600)
}

const demoCurl = `  event='{"event_id":"try-1","event_name":"signup_completed","user_id":"you"}'
  curl -s %[1]s -H 'Content-Type: application/json' -d "$event"
  curl -s %[1]s -H 'Content-Type: application/json' -d "$event"   # again: a duplicate
  curl -s %[2]s/messages      # what the receiver got
  curl -s %[2]s/stats
  curl -s %[3]s/metrics | grep ^pipeline_
`

func (r *demoReport) printGoOn(w io.Writer, pipe, receiver *child.Process) {
	fmt.Fprintf(w, "Go on with:\n"+demoCurl, pipe.Events(), receiver.URL, pipe.Admin)
}

// printRestart prints how to go on after the demo's processes have ended, with its data.
func printRestart(w io.Writer, o demoOptions, receiver *child.Process) {
	address := strings.TrimPrefix(receiver.URL, "http://")
	fmt.Fprintf(w, `Go on with its data, in two terminals:
  RECEIVER_SECRET=$(cat %[1]s/secret) bin/lab receiver --listen %[2]s
  bin/pipeline run --config %[1]s/pipeline.yaml
It prints a link to the console, where the day can be looked at. In a third:
`, o.dir, address)
	fmt.Fprintf(w, demoCurl, "http://127.0.0.1:8080/v1/events", receiver.URL, "http://127.0.0.1:9090")
}
