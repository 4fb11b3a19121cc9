package logins_test

import (
	"bytes"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/operate/logins"
)

// TestLink: a link logs in once, whoever races for it, in its time, and its secret is not in the database.
func TestLink(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	secret, err := logins.Link(t.Context(), db, "ann", "viewer", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	var row string
	if err := db.QueryRow(t.Context(), "select console_links::text from console_links").Scan(&row); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(row, secret) {
		t.Errorf("the table has the secret: %s", row)
	}
	var won atomic.Int32
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			name, role, err := logins.Spend(t.Context(), db, secret)
			switch {
			case err == nil && name == "ann" && role == "viewer":
				won.Add(1)
			case !errors.Is(err, logins.ErrNoLink):
				t.Errorf("%q, %q, %v", name, role, err)
			}
		})
	}
	group.Wait()
	if won.Load() != 1 {
		t.Errorf("%d logins by one link", won.Load())
	}

	old, err := logins.Link(t.Context(), db, "ann", "operator", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(t.Context(), "update console_links set expires_at = now()"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := logins.Spend(t.Context(), db, old); !errors.Is(err, logins.ErrNoLink) {
		t.Errorf("a link whose time is over: %v", err)
	}
	if _, _, err := logins.Spend(t.Context(), db, ""); !errors.Is(err, logins.ErrNoLink) {
		t.Errorf("no link: %v", err)
	}
}

// TestEndAll: the key is another one, and links that were not used are none.
func TestEndAll(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	before, err := logins.Key(t.Context(), db)
	if err != nil || len(before) != 32 {
		t.Fatalf("the migration made the key %x: %v", before, err)
	}
	secret, err := logins.Link(t.Context(), db, "ann", "operator", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if err := logins.EndAll(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	after, err := logins.Key(t.Context(), db)
	if err != nil || len(after) != 32 || bytes.Equal(before, after) {
		t.Errorf("the key is %x, and was %x: %v", after, before, err)
	}
	if _, _, err := logins.Spend(t.Context(), db, secret); !errors.Is(err, logins.ErrNoLink) {
		t.Errorf("a link from before: %v", err)
	}
}
