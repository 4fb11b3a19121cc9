package main

import (
	"testing"

	"sluice.example/sluice/internal/memory"
)

// TestMemoryOfARole: everything that a role bounds in bytes is in the sum, and nothing of the others.
func TestMemoryOfARole(t *testing.T) {
	for _, c := range []struct {
		roles []string
		want  int64 // MiB, beside what every process needs
	}{
		{allRoles, 256 + 256 + 8 + 64},
		{[]string{"ingest"}, 256 + 256 + 8},
		{[]string{"deliver"}, 64},
		{[]string{"retain"}, 0},
	} {
		cfg := defaultConfig()
		cfg.roles = c.roles
		if got := memory.Most(cfg.memory()); got != c.want<<20+memory.Besides {
			t.Errorf("roles %v: %d MiB, want %d", c.roles, got>>20, c.want+memory.Besides>>20)
		}
	}
}
