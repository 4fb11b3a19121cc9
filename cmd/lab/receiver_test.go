package main

import (
	"strings"
	"testing"
)

func TestReceiverRefusesNonsense(t *testing.T) {
	status, _, got := runCommand(t, []string{"RECEIVER_SECRET=two\nlines"}, "receiver", "--fail-rate", "2")
	if status != 2 || !strings.Contains(got, "RECEIVER_SECRET") || strings.Contains(got, "two") {
		t.Errorf("status %d, %q", status, got)
	}
	status, _, got = runCommand(t, nil, "receiver", "--fail-rate", "2", "--fail-status=7")
	if status != 2 || !strings.Contains(got, "--fail-rate") || !strings.Contains(got, "--fail-status") {
		t.Errorf("status %d, %q", status, got)
	}
	status, _, got = runCommand(t, nil, "receiver", "--fail-rat", "2")
	if status != 2 || !strings.Contains(got, `did you mean "fail-rate"?`) {
		t.Errorf("status %d, %q", status, got)
	}
}
