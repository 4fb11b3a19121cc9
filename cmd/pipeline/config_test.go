package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"sluice.example/sluice/internal/cli"
	"sluice.example/sluice/pipeline/buffer"
)

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func runCommand(t *testing.T, environ []string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errOut bytes.Buffer
	status = program.Dispatch(context.Background(), args, cli.Env{Stdin: strings.NewReader(""), Stdout: &out,
		Stderr: &errOut, Environ: environ})
	return status, out.String(), errOut.String()
}

// loadArgs loads settings from a command line and an environment.
func loadArgs(t *testing.T, settings []*setting, args, environ []string) error {
	t.Helper()
	fs := cli.NewFlags(cli.Env{Stdout: io.Discard}, "test", "", "")
	flags := addFlags(fs, settings)
	if _, err := cli.Parse(fs, args, 0); err != nil {
		t.Fatal(err)
	}
	return loadSettings(settings, flags(), environ)
}

func TestConfigPrecedence(t *testing.T) {
	file := writeFile(t, "p.yaml", "listen: file:1\nadmin:\n  listen: file:2\nadmin.ready-fill: 0.5\ndrain-timeout: "+
		"1d\nlog: {level: warn}\nroles: [ingest, deliver]\n")
	cfg := defaultConfig()
	settings := cfg.settings()
	err := loadArgs(t, settings, []string{"--config", file, "--listen=flag:1", "-log.level", "debug"},
		[]string{"PIPELINE_LISTEN=env:1", "PIPELINE_ADMIN_LISTEN=env:2", "HOME=/root", "PIPELINE_PORT_8080_TCP_ADDR=10.0.0.1",
			"PIPELINE_SERVICE_HOST=10.0.0.1", "PIPELINE_ADMIN_SERVICE_HOST=10.0.0.1", "PIPELINE_PORT=tcp://10.0.0.1:80",
			"PIPELINE_ADMIN_PORT_9090_TCP=tcp://10.0.0.1:9090"})
	if err != nil {
		t.Fatal(err)
	}
	source := map[string]string{}
	for _, s := range settings {
		source[s.key] = s.source
	}
	check := func(key string, got, want any, wantSource string) {
		t.Helper()
		if got != want || source[key] != wantSource {
			t.Errorf("%s = %v from %q; want %v from %q", key, got, source[key], want, wantSource)
		}
	}
	check("listen", cfg.listen, "flag:1", "flag --listen")
	check("log.level", cfg.logLevel, "debug", "flag --log.level")
	check("admin.listen", cfg.adminListen, "env:2", "environment PIPELINE_ADMIN_LISTEN")
	check("admin.ready-fill", cfg.readyFill, 0.5, file+":4:1")
	check("drain-timeout", cfg.drainTimeout, 24*time.Hour, file+":5:1")
	check("roles", strings.Join(cfg.roles, ","), "ingest,deliver", file+":7:1")
	check("log.format", cfg.logFormat, "auto", "default")
}

func TestConfigReportsEveryFaultAtOnce(t *testing.T) {
	file := writeFile(t, "bad.yaml", "lisen: a:1\nadmin:\n  listn: b:2\nlog.level: debug\nlog:\n  level: "+
		"info\ndrain-timeout: soon\nrules: {a: b}\n")
	status, _, got := runCommand(t, []string{"PIPELINE_LISTN=x", "PIPELINE_ADMIN_READY_FILL=lots"},
		"config", "--config", file, "--drain-timeot", "5s", "--database.connections=many", "--listen")
	if status != 2 {
		t.Errorf("status = %d, want 2", status)
	}
	for _, want := range []string{
		file + `:1:1: unknown key "lisen"; did you mean "listen"?`,
		file + `:3:3: unknown key "admin.listn"; did you mean "admin.listen"?`,
		file + `:6:3: log.level is set twice, first at ` + file + `:4:1`,
		file + `:7:1: drain-timeout: "soon" is not a duration`,
		file + `:8:1: rules takes one value`,
		`unknown variable PIPELINE_LISTN; did you mean "PIPELINE_LISTEN"?`,
		`environment PIPELINE_ADMIN_READY_FILL: admin.ready-fill: "lots" is not a number`,
		`unknown flag --drain-timeot; did you mean "drain-timeout"?`,
		`flag --database.connections: database.connections: "many" is not a whole number`,
		`flag --listen needs a value`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("missing %q in:\n%s", want, got)
		}
	}
}

func TestConfigValidates(t *testing.T) {
	status, _, got := runCommand(t, nil, "config", "--roles", "ingest,delivr", "--log.format=xml", "--drain-timeout", "0s")
	for _, want := range []string{`roles: unknown role "delivr"; did you mean "deliver"?`, "log.format", "drain-timeout"} {
		if status != 2 || !strings.Contains(got, want) {
			t.Errorf("status %d, want 2 and %q in:\n%s", status, want, got)
		}
	}
}

func TestConfigMasksSecrets(t *testing.T) {
	for _, c := range []struct{ url, keep string }{
		{"postgres://app:hunter2@db:5432/x?sslmode=require", "app"},
		{"postgres://app@db/x?password=hunter2", "db"},
		{"host=db user=app password=hunter2 dbname=x", "dbname=x"},
		{"host=db password = 'hunter2 \\' hunter2' dbname=x", "dbname=x"},
		{"host=db password=A\\ hunter2 dbname=x", "dbname=x"},
		{"host=db options='-c my.secret=hunter2' dbname=x", "dbname=x"},
		{"postgres://app@db/x?options=-c%20my.secret%3Dhunter2&sslmode=require", "sslmode=require"},
	} {
		status, got, errOut := runCommand(t, []string{"DATABASE_URL=" + c.url}, "config")
		if status != 0 || strings.Contains(got+errOut, "hunter2") || !strings.Contains(got, c.keep) ||
			!strings.Contains(got, "environment DATABASE_URL") {
			t.Errorf("config with DATABASE_URL=%s: status %d, printed\n%s%s", c.url, status, got, errOut)
		}
	}
	for _, malformed := range []string{
		"postgres://app:hun%ter2hunter2@db/x", "app:hunter2@127.0.0.1", "postgresql://app:p@ss/hunter2@h/e",
		"postgres://app:p?hunter2@h/e", "postgres://app:p#hunter2@h/e", "host=h password=A hunter2", "hunter2",
	} {
		status, got, errOut := runCommand(t, []string{"DATABASE_URL=" + malformed}, "config")
		if status != 2 || strings.Contains(got+errOut, "hunter2") || !strings.Contains(errOut, "database-url") {
			t.Errorf("config with %s: status %d, printed\n%s%s", malformed, status, got, errOut)
		}
		status, got, errOut = runCommand(t, nil, "outbox", "list", "--database-url", malformed)
		if status == 0 || strings.Contains(got+errOut, "hunter2") || !strings.Contains(errOut, "database-url") {
			t.Errorf("outbox list with %s: status %d, printed\n%s%s", malformed, status, got, errOut)
		}
	}
	_, got, _ := runCommand(t, []string{"DATABASE_URL=postgres://other", "PIPELINE_DATABASE_URL=postgres://ours"},
		"config")
	if !strings.Contains(got, "postgres://ours") {
		t.Errorf("PIPELINE_DATABASE_URL does not win over DATABASE_URL:\n%s", got)
	}
}

// "auto" is read and printed as such, and numbers stay numbers.
func TestAutoSettings(t *testing.T) {
	c := defaultConfig()
	settings := c.settings()
	args := []string{"--buffer.writers=3"}
	if err := loadArgs(t, settings, args, []string{"PIPELINE_BUFFER_MAX_WAIT=auto"}); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"buffer.writers": "3", "buffer.max-wait": "auto"}
	for _, s := range settings {
		if w, ok := want[s.key]; ok && s.text() != w {
			t.Errorf("%s is %q after %v, want %q", s.key, s.text(), args, w)
		}
	}
	if c.buffer.MaxWait != buffer.Auto || c.buffer.Writers != 3 {
		t.Errorf("%+v after %v, want auto for max-wait and 3 writers", c.buffer, args)
	}
	if err := loadArgs(t, settings, []string{"--buffer.max-wait", "0s"}, nil); err != nil || c.buffer.MaxWait != 0 {
		t.Errorf("max-wait is %s, %v, after 0s; want it fixed", c.buffer.MaxWait, err)
	}
	if err := loadArgs(t, settings, []string{"--copyin.deadline=auto"}, nil); err == nil {
		t.Error("auto was taken for a setting that has no such thing")
	}
}

// What "pipeline config" prints is a configuration file that gives the same settings.
func TestConfigPrintsAFile(t *testing.T) {
	destinations := writeFile(t, "it's: a # file.yaml", "")
	_, first, errOut := runCommand(t, nil, "config", "--drain-timeout=90s", "--destinations", destinations)
	again := defaultConfig().settings()
	if err := loadArgs(t, again, []string{"--config", writeFile(t, "again.yaml", first)}, nil); err != nil {
		t.Fatalf("%v in what was printed:\n%s%s", err, first, errOut)
	}
	want := defaultConfig()
	want.drainTimeout, want.destinations = 90*time.Second, destinations
	for i, s := range want.settings() {
		if got := again[i].text(); got != s.text() {
			t.Errorf("%s is read back as %q, want %q", s.key, got, s.text())
		}
	}
}

// TestNoFileTakesTheProcessDown: a file whose anchors multiply, or contain themselves, is refused wherever files are
// read.
func TestNoFileTakesTheProcessDown(t *testing.T) {
	multiplies := "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
	for _, letter := range "bcdefghij" {
		before := string(letter - 1)
		multiplies += fmt.Sprintf("%c: &%c [%s*%s]\n", letter, letter, strings.Repeat("*"+before+", ", 9), before)
	}
	for text, want := range map[string]string{
		multiplies:                 ":6:",
		"rules: &r [*r]\n":         ":1:12: alias *r stands for what contains it",
		"rules: &r\n  <<: *r\n":    ":2:7: alias *r stands for what contains it",
		"tenants: &r [{id: *r}]\n": ":1:19: alias *r stands for what contains it",
	} {
		file := writeFile(t, "file.yaml", text)
		for _, flag := range []string{"--config", "--rules", "--destinations", "--tenants", "--topics"} {
			status, out, errOut := runCommand(t, nil, "config", flag, file)
			if status == 0 || !strings.Contains(out+errOut, file+want) {
				t.Errorf("%s with %.20q: exit status %d, want the fault at %s\n%s%s", flag, text, status, want, out, errOut)
			}
		}
		if status, out, _ := runCommand(t, nil, "rules", "check", file); status != 1 || !strings.Contains(out, file+want) {
			t.Errorf("rules check of %.20q: exit status %d\n%s", text, status, out)
		}
	}
}

func TestEnvironmentNamesAreDistinct(t *testing.T) {
	seen := map[string]string{}
	for _, s := range defaultConfig().settings() {
		n := envName(s.key)
		if seen[n] != "" {
			t.Errorf("%s and %s share the variable %s", s.key, seen[n], n)
		}
		if cli.IsServiceVariable(n) {
			t.Errorf("%s would be taken for a variable of a container platform", n)
		}
		seen[n] = s.key
	}
}

// A field that a stage adds to its Config can be set from its first day, or the wiring sets it.
func TestEveryFieldIsASetting(t *testing.T) {
	cfg := defaultConfig()
	set := map[any]bool{}
	for _, s := range cfg.settings() {
		set[s.value] = true
	}
	for name, stage := range map[string]any{"ingest": &cfg.ingest, "buffer": &cfg.buffer, "copyin": &cfg.copyin,
		"evaluate": &cfg.evaluate, "claim": &cfg.claim, "deliver": &cfg.deliver, "retain": &cfg.retain} {
		v := reflect.ValueOf(stage).Elem()
		for i := range v.NumField() {
			field := name + "." + v.Type().Field(i).Name
			if !set[v.Field(i).Addr().Interface()] && !strings.HasSuffix(field, ".DrainTimeout") {
				t.Errorf("%s is not in the table of settings", field)
			}
		}
	}
}

func TestHelp(t *testing.T) {
	status, got, _ := runCommand(t, nil)
	if status != 0 {
		t.Errorf("without a command the status is %d, want 0", status)
	}
	for _, c := range program.Commands {
		if !strings.Contains(got, c.Name) || !strings.Contains(got, c.Help) {
			t.Errorf("the list of commands lacks %q", c.Name)
		}
		status, help, errOut := runCommand(t, nil, c.Name, "--help")
		if status != 0 || !strings.Contains(help, "Example:\n  ") || errOut != "" {
			t.Errorf("%s --help: status %d, stderr %q, want an example in\n%s", c.Name, status, errOut, help)
		}
	}
	status, _, errOut := runCommand(t, nil, "confg")
	if status != 2 || !strings.Contains(errOut, `did you mean "config"?`) {
		t.Errorf("pipeline confg: status %d, %q", status, errOut)
	}
}
