package evaluate

import (
	"context"
	"fmt"
)

// checkSQL does nothing, and fails where a sweep would: on a read-only database, or without the privilege.
const checkSQL = `update absence_timers set done_at = null where false`

// Check reports why timers cannot be decided now. It is for readiness.
func (s *Sweeper) Check(ctx context.Context) error {
	if _, err := s.db.Exec(ctx, checkSQL); err != nil {
		return fmt.Errorf("timers cannot be decided: %w", err)
	}
	return nil
}
