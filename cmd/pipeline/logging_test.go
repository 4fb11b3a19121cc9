package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"sluice.example/sluice/internal/cli"
)

// TestEnvironmentThatLooksLikeOurs is told once: services beside us, and a database whose variable has another name.
func TestEnvironmentThatLooksLikeOurs(t *testing.T) {
	for _, c := range []struct {
		environ []string
		url     string
		want    string
	}{
		{[]string{"PIPELINE_ADMIN_SERVICE_HOST=10.0.0.1", "PIPELINE_PORT=tcp://10.0.0.1:80"}, "postgres://db/x",
			`"variables":["PIPELINE_ADMIN_SERVICE_HOST","PIPELINE_PORT"]`},
		{[]string{"DATABASE_URI=postgresql://app:hunter2@db/x"}, "", `"variable":"DATABASE_URI"`},
		{[]string{"OTHER_URL=postgresql://app:hunter2@db/x", "HOME=/root"}, "postgres://db/x", ""},
	} {
		var out bytes.Buffer
		cfg := defaultConfig()
		cfg.logFormat, cfg.databaseURL = "json", c.url
		warnOfEnvironment(newLogger(cli.Env{Stderr: &out}, cfg), cfg, c.environ)
		got := out.String()
		if !strings.Contains(got, c.want) || c.want == "" && got != "" || strings.Contains(got, "hunter2") {
			t.Errorf("%q: logged %s; want %s", c.environ, got, c.want)
		}
	}
	status, _, errOut := runCommand(t, []string{"PIPELINE_DRAIN_TIMEOUT=tcp://10.0.0.1:80"}, "config")
	if status != 2 || !strings.Contains(errOut, "PIPELINE_DRAIN_TIMEOUT") ||
		!strings.Contains(errOut, "enableServiceLinks") {
		t.Errorf("status %d, %s", status, errOut)
	}
}

// TestDurationsInTheLog have one form, whatever made them.
func TestDurationsInTheLog(t *testing.T) {
	var out bytes.Buffer
	cfg := defaultConfig()
	cfg.logFormat = "json"
	newLogger(cli.Env{Stderr: &out}, cfg).Info("x", "a", 90*time.Second, "b", 48*time.Hour, "c", 1234567*time.Microsecond)
	if want := `"a":"1m30s","b":"2d","c":"1.235s"}`; !strings.Contains(out.String(), want) {
		t.Errorf("logged %s; want %s", out.String(), want)
	}
}
