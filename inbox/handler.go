package inbox

import (
	"io"
	"log/slog"
	"net/http"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Handler answers messages by ConsumeOnce: 200 when work is done, and also when it was done before; 500 when it
// failed and nothing is left of it, so that the sender tries again; 400 when the request names no message. Failures
// go to log, not to the sender.
//
// Put a Middleware in front of it. The message is MessageID of the request; only Standard Webhooks sign that header.
// With another signature, call ConsumeOnce with an id that stands in the body.
func Handler(
	pool *pgxpool.Pool, consumer string, log *slog.Logger, work func(r *http.Request, tx pgx.Tx) error,
) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := MessageID(r.Header)
		if err := checkKey("message id", id); err != nil {
			http.Error(w, "webhook-id or Idempotency-Key is missing or too long", http.StatusBadRequest)
			return
		}
		duplicate, err := ConsumeOnce(r.Context(), pool, consumer, id, func(tx pgx.Tx) error { return work(r, tx) })
		switch {
		case err != nil:
			log.Error("message not processed", "consumer", consumer, "message_id", id, "error", err)
			http.Error(w, "not processed", http.StatusInternalServerError)
		case duplicate:
			io.WriteString(w, "duplicate\n")
		default:
			io.WriteString(w, "processed\n")
		}
	})
}

// MessageID is what stays the same when a sender repeats a message: webhook-id, else Idempotency-Key without the
// quotes that some put around it, else nothing.
func MessageID(header http.Header) string {
	if id := header.Get("webhook-id"); id != "" {
		return id
	}
	id := header.Get("Idempotency-Key")
	if len(id) >= 2 && strings.HasPrefix(id, `"`) && strings.HasSuffix(id, `"`) {
		id = id[1 : len(id)-1]
	}
	return id
}
