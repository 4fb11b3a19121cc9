package pgtest

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// waitLimit only ends a test that hangs: on a busy machine most waits take a hundredth of it.
	waitLimit = 2 * time.Minute
	// waitPause is between two looks, so that waiting does not take the processor from what is waited for.
	waitPause = 5 * time.Millisecond
)

// Eventually waits until ok returns true. After two minutes it fails the test with what, which names the condition,
// and with what each of saw returns by then. It calls ok from the test's goroutine and pauses between calls.
func Eventually(t testing.TB, what string, ok func() bool, saw ...func() any) {
	t.Helper()
	if !eventually(ok) {
		text := fmt.Sprintf("not within %v: %s", waitLimit, what)
		for _, f := range saw {
			text += fmt.Sprintf("; last seen: %v", f())
		}
		t.Fatal(text)
	}
}

// Until repeats the query until its first row holds the wanted values, compared as fmt prints them; without any, until
// it is one column that is true. It fails the test after two minutes, with the last row, or when the query fails.
func Until(t testing.TB, db Queryer, sql string, want ...any) {
	t.Helper()
	if len(want) == 0 {
		want = []any{true}
	}
	var got []any
	ok := func() bool {
		var err error
		if got, err = firstRow(db, sql); err != nil {
			t.Fatalf("waiting for %s: %v", sql, err)
		}
		return slices.EqualFunc(got, want, func(a, b any) bool { return fmt.Sprint(a) == fmt.Sprint(b) })
	}
	if !eventually(ok) {
		t.Fatalf("not within %v: %s = %v; last seen: %v", waitLimit, sql, want, got)
	}
}

// Queryer is a pool, a connection or a transaction of pgx.
type Queryer interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

func eventually(ok func() bool) bool {
	for end := time.Now().Add(waitLimit); !ok(); time.Sleep(waitPause) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// firstRow may run in a Cleanup, where the test's own context has ended.
func firstRow(db Queryer, sql string) ([]any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	rows, err := db.Query(ctx, sql)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	if !rows.Next() {
		return nil, rows.Err()
	}
	values, err := rows.Values()
	if err != nil {
		return nil, err
	}
	rows.Close()
	return values, rows.Err()
}
