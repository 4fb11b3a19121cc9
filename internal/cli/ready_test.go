package cli

import (
	"errors"
	"io/fs"
	"path/filepath"
	"testing"
)

func TestReady(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ready")
	if _, err := ReadReady(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("before it is written: %v", err)
	}
	want := Ready{URL: "http://127.0.0.1:1", Admin: "http://127.0.0.1:2", Database: "postgres://db/x", Pid: 7}
	if err := want.Write(path); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadReady(path); err != nil || got != want {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	for range 2 { // one that is gone is no fault
		if err := RemoveReady(path); err != nil {
			t.Error(err)
		}
	}
	if _, err := ReadReady(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after it is removed: %v", err)
	}
	if err := errors.Join(Ready{}.Write(""), RemoveReady("")); err != nil {
		t.Errorf("without a path: %v", err)
	}
}

func TestStripPassword(t *testing.T) {
	for in, want := range map[string]string{
		"postgres://app:hunter2@db:5432/x?sslmode=require":          "postgres://app@db:5432/x?sslmode=require",
		"postgres://app@db/x?password=hunter2":                      "postgres://app@db/x",
		"postgres://app@db/x?password=hunter2&sslmode=require":      "postgres://app@db/x?sslmode=require",
		"postgres://app@db/x?connect_timeout=5&sslpassword=hunter2": "postgres://app@db/x?connect_timeout=5",
		"host=db user=app password=hunter2 dbname=x":                "host=db user=app dbname=x",
		"password = 'hunter2 \\' hunter2' dbname=x":                 "dbname=x",
		"postgres:///sluice?host=%2Ftmp&user=sluice":                "postgres:///sluice?host=%2Ftmp&user=sluice",
		"postgres://app@db/passwords":                               "postgres://app@db/passwords",
	} {
		if got := StripPassword(in); got != want {
			t.Errorf("StripPassword(%q) = %q, want %q", in, got, want)
		}
	}
}
