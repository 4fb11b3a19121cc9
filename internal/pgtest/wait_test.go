package pgtest

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
)

// judged is a testing.TB that keeps how the test ended.
type judged struct {
	testing.TB
	text string
}

func (j *judged) Helper()           {}
func (j *judged) Fatal(args ...any) { j.text = fmt.Sprint(args...); runtime.Goexit() }
func (j *judged) Fatalf(format string, args ...any) {
	j.Fatal(fmt.Sprintf(format, args...))
}

// verdict is what a test that runs f ends with, "" when it passes.
func verdict(t *testing.T, f func(testing.TB)) string {
	j := &judged{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(j)
	}()
	<-done
	return j.text
}

func TestEventually(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		looks := 0
		text := verdict(t, func(t testing.TB) {
			Eventually(t, "ten looks", func() bool { looks++; return looks == 10 })
		})
		if text != "" || looks != 10 {
			t.Errorf("%d looks, and the test ends with %q; want 10 looks and a pass", looks, text)
		}
		text = verdict(t, func(t testing.TB) {
			Eventually(t, "a blue moon", func() bool { looks++; return false }, func() any { return "a yellow one" })
		})
		if want := "not within 2m0s: a blue moon; last seen: a yellow one"; text != want {
			t.Errorf("a condition that never holds: %q, want %q", text, want)
		}
		// One look each 5 ms: a loop without a pause would look millions of times.
		if looks < 1000 || looks > 30_000 {
			t.Errorf("%d looks within two minutes", looks)
		}
	})
}

func TestUntil(t *testing.T) {
	t.Parallel()
	db := New(t)
	if _, err := db.Exec(t.Context(), `create sequence looks`); err != nil {
		t.Fatal(err)
	}
	const sql = `select nextval('looks'), 'x'`
	if text := verdict(t, func(t testing.TB) { Until(t, db, sql, 3, "x") }); text != "" {
		t.Errorf("the test ends with %q; want a pass", text)
	}
	if text := verdict(t, func(t testing.TB) { Until(t, db, `select last_value = 3 from looks`) }); text != "" {
		t.Errorf("looks that went on after the third, or another fault: %q", text)
	}
	text := verdict(t, func(t testing.TB) { Until(t, db, `select nothing`) })
	if !strings.Contains(text, "select nothing: ") {
		t.Errorf("a query that fails ends the test with %q", text)
	}
}
