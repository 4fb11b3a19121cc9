package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"sluice.example/sluice/pipeline"
	"sluice.example/sluice/pipeline/claim"
	"sluice.example/sluice/pipeline/sweep"
)

// recheckedQueue looks, between claim and delivery, whether what absence rules decided still holds. What does not is
// recorded as skipped, with the reason, and never reaches the dispatcher.
type recheckedQueue struct {
	*claim.Queue
	db  *pgxpool.Pool
	log *slog.Logger
}

// releaseFor is when messages that could not be looked at are due again.
const releaseFor = time.Second

func (q recheckedQueue) Claim(ctx context.Context, wants []pipeline.Want) ([]pipeline.Lease, error) {
	leases, err := q.Queue.Claim(ctx, wants)
	if err != nil || len(leases) == 0 {
		return leases, err
	}
	skip, err := sweep.Recheck(ctx, q.db, leases)
	if err != nil {
		// Not looked at, not sent: they are claimed again in a moment.
		results := make([]pipeline.Result, len(leases))
		for i, l := range leases {
			results[i] = pipeline.Result{MessageID: l.ID, Token: l.Token, Status: pipeline.Released, RetryIn: releaseFor}
		}
		_, releaseErr := q.Finish(context.WithoutCancel(ctx), results)
		return nil, errors.Join(err, releaseErr)
	}
	if len(skip) == 0 {
		return leases, nil
	}
	var results []pipeline.Result
	kept := leases[:0]
	for _, l := range leases {
		reason := skip[l.ID]
		if reason == "" {
			kept = append(kept, l)
			continue
		}
		results = append(results, pipeline.Result{MessageID: l.ID, Token: l.Token, Status: pipeline.Skipped, Error: reason})
	}
	if _, err := q.Finish(ctx, results); err != nil {
		q.log.Warn("messages that no longer hold could not be recorded as skipped; they are looked at again when their leases have run out",
			"messages", len(results), "error", fmt.Sprint(err))
	}
	return kept, nil
}
