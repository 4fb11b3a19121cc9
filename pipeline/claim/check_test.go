package claim

import (
	"strings"
	"testing"

	"sluice.example/sluice/internal/pgtest"
)

func TestCheckFailsWhereAClaimWould(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	q := newQueue(t, pool)
	if err := q.Check(t.Context()); err != nil {
		t.Errorf("Check = %v, want nil", err)
	}
	exec(t, pool, `alter table outbox rename to elsewhere`)
	if err := q.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "42P01") {
		t.Errorf("Check without an outbox = %v, want 42P01", err)
	}
}
