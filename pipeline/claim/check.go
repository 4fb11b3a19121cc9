package claim

import (
	"context"
	"fmt"
)

// checkSQL does nothing, and fails where a claim would: on a read-only database, or without the privilege.
const checkSQL = `update outbox set locked_until = null where false`

// Check reports why messages cannot be claimed now. It is for readiness.
func (q *Queue) Check(ctx context.Context) error {
	if _, err := q.pool.Exec(ctx, checkSQL); err != nil {
		return fmt.Errorf("messages cannot be claimed: %w", err)
	}
	return nil
}
