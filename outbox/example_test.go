package outbox_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"sluice.example/sluice/outbox"
)

// An order and the promise to tell others of it are committed together.
func ExampleEnqueue() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		panic(err)
	}
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `insert into orders (id, cents) values ('17', 4900)`); err != nil {
			return err
		}
		receipts, err := outbox.Enqueue(ctx, tx, outbox.Message{
			AggregateType:  "order",
			AggregateID:    "17",
			EventType:      "order.placed",
			Payload:        json.RawMessage(`{"order_id":"17","cents":4900}`),
			Topic:          "orders",
			IdempotencyKey: "order.placed:17",
		})
		if err == nil && receipts[0].Duplicate {
			fmt.Println("this order was announced before")
		}
		return err
	})
	if err != nil {
		panic(err) // neither the order nor the message is there
	}
}
