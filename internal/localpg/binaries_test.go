package localpg

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// install makes a folder with programs that print what a PostgreSQL of that version prints.
func install(t *testing.T, version string, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range names {
		script := "#!/bin/sh\necho '" + name + " (PostgreSQL) " + version + "'\n"
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestChoose(t *testing.T) {
	t.Parallel()
	old := install(t, "13.4", "postgres", "initdb")
	v15 := install(t, "15.18 (Debian 15.18-0+deb12u1)", "postgres", "initdb")
	v18 := install(t, "18beta1", "postgres", "initdb")
	wrapper := install(t, "18.0", "pg_ctl", "postgres")
	links := t.TempDir()
	for _, name := range []string{"postgres", "initdb"} {
		if err := os.Symlink(filepath.Join(v15, name), filepath.Join(links, name)); err != nil {
			t.Fatal(err)
		}
	}

	check := func(dirs []string, cluster int, want string) {
		t.Helper()
		got, err := choose(t.Context(), dirs, cluster)
		if err != nil || got.dir != want {
			t.Errorf("choose(%q, %d) = %q, %v; want %q", dirs, cluster, got.dir, err, want)
		}
	}
	check([]string{v15, wrapper, old}, 0, v15)
	check([]string{"", "/nowhere", old, v15, v18}, 0, v18)
	check([]string{v18, v15}, 15, v15)
	check([]string{links}, 0, v15)

	refuse := func(dirs []string, cluster int, parts ...string) {
		t.Helper()
		got, err := choose(t.Context(), dirs, cluster)
		if err == nil {
			t.Fatalf("choose(%q, %d) = %q; want an error", dirs, cluster, got.dir)
		}
		for _, part := range parts {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("choose(%q, %d): error = %q; want it to say %q", dirs, cluster, err, part)
			}
		}
	}
	refuse([]string{wrapper}, 0,
		"apt-get install postgresql", "dnf install postgresql-server", "brew install postgresql@17", "DATABASE_URL")
	refuse([]string{old}, 0, "PostgreSQL 13", "new enough", "DATABASE_URL")
	refuse([]string{v18}, 15, "made by PostgreSQL 15", "18 is installed")
	if _, err := choose(t.Context(), nil, 0); !errors.Is(err, ErrNoBinaries) {
		t.Errorf("choose without folders = %v; want ErrNoBinaries", err)
	}
}
