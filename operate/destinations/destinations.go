// Package destinations steers where messages go: pauses and resumes a destination, tries one at once whose circuit
// breaker is open, and sends it a message to see what comes back.
package destinations

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/internal/pgtx"
	"sluice.example/sluice/operate/audit"
	"sluice.example/sluice/operate/tune"
	"sluice.example/sluice/pipeline"
)

// Pause keeps every node from claiming more messages for a destination, until Resume, over restarts too.
func Pause(ctx context.Context, db pgtx.Beginner, name string, by audit.Actor) error {
	_, err := tune.Set(ctx, db, "", tune.Of(tune.Paused, name), "true", 0, by)
	return err
}

// Resume ends a Pause. One that the destinations file pauses goes on too, until "pipeline tune unset".
func Resume(ctx context.Context, db pgtx.Beginner, name string, by audit.Actor) error {
	err := tune.Unset(ctx, db, "", tune.Of(tune.Paused, name), by)
	if errors.Is(err, tune.ErrNotSet) {
		_, err = tune.Set(ctx, db, "", tune.Of(tune.Paused, name), "false", 0, by)
	}
	return err
}

// probeFor is how long nodes look at the order to probe. A guess: as many times as they read changes.
const probeFor = time.Minute

// Probe has each node try a destination now whose circuit breaker is open there.
func Probe(ctx context.Context, db pgtx.Beginner, name string, by audit.Actor) error {
	_, err := tune.Set(ctx, db, "", tune.Of(tune.Probe, name), pipeline.NewUUIDv4().String(), probeFor, by)
	return err
}

// TestType is the type of the messages of Test.
const TestType = "sluice.test"

// testSQL puts a message into the outbox as an application does, so that it is signed, guarded, limited and recorded as
// any other.
const testSQL = `
select message_id from sluice_enqueue(jsonb_build_object('destination', $1::text, 'event_type', $2::text,
        'idempotency_key', 'sluice.test:' || $3::text,
        'payload', jsonb_build_object('test', true, 'sent_by', $4::text)),
    coalesce((select tenant from outbox_tenants order by tenant_id limit 1), '1'))`

// Test sends a message of TestType to a destination, for the first of the tenants, and returns its id: its attempts
// tell what came back. It has no subject, so that it waits for no other message.
func Test(ctx context.Context, db pgtx.Beginner, name string, by audit.Actor) (id int64, err error) {
	bounds := pgtx.Bounds{Idle: pgtx.Idle, Statement: 2 * time.Second}
	err = pgtx.InTx(ctx, db, pgx.TxOptions{}, bounds, func(tx pgx.Tx) error {
		err := tx.QueryRow(ctx, testSQL, pgx.QueryExecModeCacheDescribe, name, TestType, pipeline.NewUUIDv4().String(),
			by.Name).Scan(&id)
		if err != nil {
			return err
		}
		return audit.Write(ctx, tx, by, "test", "destination "+name, nil, map[string]int64{"message_id": id})
	})
	if err != nil {
		return 0, fmt.Errorf("destination %s: %w", name, err)
	}
	return id, nil
}
