package outbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Two statements, since names may change places. Rows that stay are not written.
const (
	forgetTenantsSQL = `
delete from outbox_tenants
where (tenant_id, tenant) not in (select unnest($1::integer[]), unnest($2::text[]))`
	nameTenantsSQL = `
insert into outbox_tenants (tenant_id, tenant) select unnest($1::integer[]), unnest($2::text[])
on conflict do nothing`
)

// SyncTenants stores in the database which tenants messages can be enqueued for: their ids, by name. The pipeline calls
// it at every start, as SyncTopics; an application need not.
func SyncTenants(ctx context.Context, pool *pgxpool.Pool, tenants map[string]int32) error {
	if len(tenants) == 0 {
		return errors.New("outbox: sync tenants: there are none: a pipeline has at least one")
	}
	names := slices.Sorted(maps.Keys(tenants))
	ids := make([]int32, len(names))
	for i, name := range names {
		ids[i] = tenants[name]
	}
	err := pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{BeginQuery: syncBeginSQL}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, syncLockSQL); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, forgetTenantsSQL, ids, names); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, nameTenantsSQL, ids, names)
		return err
	})
	if err != nil {
		return fmt.Errorf("outbox: sync %d tenants: %w", len(tenants), err)
	}
	return nil
}
