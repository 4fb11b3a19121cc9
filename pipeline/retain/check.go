package retain

import (
	"context"
	"fmt"
)

// checkSQL does nothing, and fails where a pass would: on a read-only database, or without the privilege.
const checkSQL = `delete from quarantine where false`

// Check reports why rows cannot be deleted now. It is for readiness.
func (k *Keeper) Check(ctx context.Context) error {
	if _, err := k.pool.Exec(ctx, checkSQL); err != nil {
		return fmt.Errorf("old rows cannot be deleted: %w", err)
	}
	return nil
}
