package pgsession

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"sluice.example/sluice/internal/wait"
)

// Try bounds one try of a statement that a start needs, so that a silent connection is given up for another one. A
// guess.
const Try = 10 * time.Second

// UntilAnswered asks until the database answers, be it with an error that another try would not change, or until ctx
// ends. limit bounds each try; 0 does not. The log gets a line for each try that failed, and one for every 10 seconds
// that a try takes.
func UntilAnswered(ctx context.Context, log *slog.Logger, limit time.Duration, ask func(context.Context) error) error {
	pause := 250 * time.Millisecond
	for {
		err := once(ctx, log, limit, ask)
		if err == nil || !Away(err) {
			return Explain(err)
		}
		if ctx.Err() == nil {
			log.Warn("database does not answer, trying again", "next_try_in", pause.String(), "error", err)
		}
		if !wait.For(ctx, pause) {
			return fmt.Errorf("the database did not answer within database.start-timeout: %w", err)
		}
		pause = min(2*pause, 5*time.Second)
	}
}

func once(ctx context.Context, log *slog.Logger, limit time.Duration, ask func(context.Context) error) error {
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	began := time.Now()
	answered, told := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(told)
		tick := time.NewTicker(Try)
		defer tick.Stop()
		for {
			select {
			case <-answered:
				return
			case <-tick.C:
				log.Warn("the database has not answered yet: a migration runs, or the connection is silent",
					"since", time.Since(began).Round(time.Second).String())
			}
		}
	}()
	defer func() {
		close(answered)
		<-told
	}()
	return ask(ctx)
}

// Away reports whether the database may answer later: it could not be reached, was lost on the way, was silent, or says
// that it starts, stops, is read-only, is locked or has no room. Any other answer is one that waiting does not change.
func Away(err error) bool {
	var answer *pgconn.PgError
	var network net.Error
	var connect *pgconn.ConnectError
	var certificate *tls.CertificateVerificationError
	switch {
	case errors.As(err, &answer):
		return later(answer)
	case errors.As(err, &certificate):
		return false
	case errors.As(err, &connect), errors.As(err, &network), errors.Is(err, io.EOF),
		errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, context.DeadlineExceeded):
		return true
	case pgconn.SafeToRetry(err), errors.Is(err, pgconn.ErrConnClosed): // as when a lost connection is to roll back
		return true
	}
	return false
}

// later reports whether an answer of the server, or of a pooler before it, may change by itself.
func later(answer *pgconn.PgError) bool {
	switch answer.Code[:min(2, len(answer.Code))] {
	case "53": // no room: too many connections, a full disk
		return true
	case "57": // starting up, shutting down
		return strings.HasPrefix(answer.Code, "57P0")
	case "25": // a standby, for as long as the switch-over takes; a session that idled
		return answer.Code == "25006" || answer.Code == "25P03"
	case "40", "55": // another process that starts, and one that holds a lock
		return answer.Code == "40001" || answer.Code == "40P01" || answer.Code == "55P03"
	case "08":
		return !refusedParameter(answer)
	}
	return false
}

// refusedParameter reports whether a pooler refuses a parameter of the connection. PgBouncer has one code for this and
// for a server that is away, so the text has to tell them apart.
func refusedParameter(answer *pgconn.PgError) bool {
	return answer.Code == "08P01" && strings.HasPrefix(answer.Message, "unsupported startup parameter")
}

// Explain adds what to do about an answer to the connection itself.
func Explain(err error) error {
	var answer *pgconn.PgError
	if !errors.As(err, &answer) {
		return err
	}
	switch {
	case strings.HasPrefix(answer.Code, "28"):
		return fmt.Errorf("the database refuses the login: check user and password in database-url, and pg_hba.conf: %w", err)
	case answer.Code == "3D000":
		return fmt.Errorf("there is no such database: create it, or correct its name in database-url: %w", err)
	case refusedParameter(answer):
		return fmt.Errorf("a pooler refuses a parameter of database-url: take it out, or name it in the pooler's "+
			"ignore_startup_parameters and set it for the role: %w", err)
	}
	return err
}
