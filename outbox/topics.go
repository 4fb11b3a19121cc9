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

// syncBeginSQL bounds what a process that stops in the middle holds up: every other that starts.
const syncBeginSQL = `begin isolation level read committed; set local idle_in_transaction_session_timeout = '10s';
set local statement_timeout = '30s'; set local lock_timeout = '10s'`

const syncLockSQL = `select pg_advisory_xact_lock(hashtextextended('sluice:sync_topics', 0))`

// Rows that stay are not written, so that a start with the same configuration changes nothing.
const syncSQL = `
with destination as materialized (
    select unnest($1::text[]) as destination
), topic as materialized (
    select unnest($2::text[]) as topic, unnest($3::text[]) as destination
), gone_destinations as (
    delete from outbox_destinations where destination not in (select destination from destination)
), gone_topics as (
    delete from outbox_topics where (topic, destination) not in (select topic, destination from topic)
), new_destinations as (
    insert into outbox_destinations select destination from destination on conflict do nothing
)
insert into outbox_topics select topic, destination from topic on conflict do nothing`

// SyncTopics stores in the database which destinations messages can be enqueued for, and which of them each topic
// stands for, so that a wrong name is an error of the transaction that uses it. The pipeline calls it at every start
// and at every change of its configuration; an application need not. What the configuration no longer holds is
// forgotten, so where nodes differ the last one counts. Messages that are in the outbox already keep their
// destination. The error joins every fault of the configuration.
func SyncTopics(ctx context.Context, pool *pgxpool.Pool, destinations []string, topics map[string][]string) error {
	var names, targets []string
	var faults []error
	if slices.Contains(destinations, "") {
		faults = append(faults, errors.New("outbox: destinations: a name is empty"))
	}
	for _, name := range slices.Sorted(maps.Keys(topics)) {
		if name == "" {
			faults = append(faults, errors.New("outbox: topics: a name is empty"))
		}
		if len(topics[name]) == 0 {
			faults = append(faults, fmt.Errorf("outbox: topics.%s: has no destinations: give it one, or remove it", name))
		}
		for _, d := range topics[name] {
			if !slices.Contains(destinations, d) {
				faults = append(faults, fmt.Errorf("outbox: topics.%s: destination %q is not configured: "+
					"add it to the destinations, or correct the name", name, d))
			}
			names, targets = append(names, name), append(targets, d)
		}
	}
	if err := errors.Join(faults...); err != nil {
		return err
	}
	err := pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{BeginQuery: syncBeginSQL}, func(tx pgx.Tx) error {
		// Two nodes that start at once would meet in the rows; one after the other they find nothing to do.
		if _, err := tx.Exec(ctx, syncLockSQL); err != nil {
			return err
		}
		// Never nil: null would compare as unknown, and delete nothing.
		_, err := tx.Exec(ctx, syncSQL, append([]string{}, destinations...), append([]string{}, names...),
			append([]string{}, targets...))
		return err
	})
	if err != nil {
		return fmt.Errorf("outbox: sync %d destinations and %d topics: %w", len(destinations), len(topics), err)
	}
	return nil
}
