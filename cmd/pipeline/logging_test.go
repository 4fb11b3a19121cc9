package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"sluice.example/sluice/internal/cli"
)

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
