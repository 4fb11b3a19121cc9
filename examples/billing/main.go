// Command billing is a receiver of webhooks that writes one invoice for every order, however often the message comes:
// signature, duplicate check and invoice.
//
//	DATABASE_URL=... WEBHOOK_SECRET=whsec_... go run ./examples/billing
package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"sluice.example/sluice/inbox"
)

// tables would stand in the migrations of a real service.
const tables = inbox.Schema + `
create table if not exists invoices (
    order_id text   not null,
    cents    bigint not null check (cents > 0)
)`

func main() {
	if err := run(context.Background()); err != nil {
		slog.Error("billing ends", "error", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer pool.Close()
	if _, err := pool.Exec(ctx, tables); err != nil {
		return err
	}
	handler, err := billing(pool, os.Getenv("WEBHOOK_SECRET"), slog.Default())
	if err != nil {
		return err
	}
	return http.ListenAndServe("127.0.0.1:8090", handler)
}

// billing answers the webhooks. It is safe for concurrent use.
func billing(pool *pgxpool.Pool, secret string, log *slog.Logger) (http.Handler, error) {
	verifier, err := inbox.NewStandardWebhooks(secret)
	if err != nil {
		return nil, err
	}
	invoice := func(r *http.Request, tx pgx.Tx) error {
		var order struct {
			ID    string `json:"order_id"`
			Cents int64  `json:"cents"`
		}
		if err := json.NewDecoder(r.Body).Decode(&order); err != nil {
			return err
		}
		_, err := tx.Exec(r.Context(), `insert into invoices (order_id, cents) values ($1, $2)`, order.ID, order.Cents)
		return err
	}
	return inbox.Middleware(verifier, 64<<10, inbox.Handler(pool, "billing", log, invoice)), nil
}
