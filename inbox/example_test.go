package inbox_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"sluice.example/sluice/inbox"
)

// A receiver: signature, duplicate check and work in one transaction.
func Example() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		panic(err)
	}
	if _, err := pool.Exec(ctx, inbox.Schema); err != nil {
		panic(err)
	}
	verifier, err := inbox.NewStandardWebhooks(os.Getenv("WEBHOOK_SECRET"))
	if err != nil {
		panic(err)
	}
	work := func(r *http.Request, tx pgx.Tx) error {
		order, err := io.ReadAll(r.Body)
		if err != nil {
			return err
		}
		_, err = tx.Exec(r.Context(), `insert into invoices (order_data) values ($1)`, order)
		return err
	}
	handler := inbox.Middleware(verifier, 64<<10, inbox.Handler(pool, "billing", slog.Default(), work))
	panic(http.ListenAndServe("127.0.0.1:8090", handler))
}

// ConsumeOnce by itself, for messages that come another way than by HTTP.
func ExampleConsumeOnce() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		panic(err)
	}
	duplicate, err := inbox.ConsumeOnce(ctx, pool, "billing", "order-17-placed", func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `insert into invoices (order_id, cents) values ('17', 4900)`)
		return err
	})
	switch {
	case err != nil:
		fmt.Println("leave it in the queue:", err)
	case duplicate:
		fmt.Println("done before: acknowledge it")
	default:
		fmt.Println("done now: acknowledge it")
	}
}
