package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"sluice.example/sluice/internal/wait"
)

// importSender posts batches. Safe for concurrent use.
type importSender struct {
	endpoint string
	writeKey string
	retryFor time.Duration
	client   *http.Client
	// notice tells the person at the terminal why nothing moves.
	notice func(text string)
}

// answer is what POST /v1/events says, of a success and of an error.
type answer struct {
	Stored, Duplicate, Rejected int64
	Events                      []struct {
		Index         int
		Result        string
		Field, Reason string
	}
	Detail string
	Title  string
}

// send posts the batch until it is answered for good, and fills in what became of it. A request that is refused as a
// whole is halved, so that one event that the door can't read costs its neighbours nothing.
func (s *importSender) send(ctx context.Context, b *importBatch) error {
	if len(b.events) == 0 {
		return nil
	}
	status, a, err := s.post(ctx, b.body())
	switch {
	case err != nil:
		return err
	case status == 200 || status == 422 && len(a.Events) > 0:
		b.stored, b.duplicate = a.Stored, a.Duplicate
		for _, e := range a.Events {
			if e.Result == "rejected" && e.Index >= 0 && e.Index < len(b.events) {
				b.rejected = append(b.rejected, rejectedLine{Line: b.lines[e.Index], Field: e.Field, Reason: e.Reason, Event: b.events[e.Index]})
			}
		}
		return nil
	case (status == 400 || status == 413 || status == 422) && len(b.events) > 1:
		half := len(b.events) / 2
		for _, part := range []importBatch{{events: b.events[:half], lines: b.lines[:half]}, {events: b.events[half:], lines: b.lines[half:]}} {
			if err := s.send(ctx, &part); err != nil {
				return err
			}
			b.stored, b.duplicate, b.rejected = b.stored+part.stored, b.duplicate+part.duplicate, append(b.rejected, part.rejected...)
		}
		return nil
	case status == 400 || status == 413 || status == 422:
		b.rejected = append(b.rejected, rejectedLine{Line: b.lines[0], Reason: a.reason(status), Event: b.events[0]})
		return nil
	}
	return fmt.Errorf("%s answered %d: %s", s.endpoint, status, a.reason(status))
}

func (a *answer) reason(status int) string {
	for _, text := range []string{a.Detail, a.Title, http.StatusText(status)} {
		if text != "" {
			return text
		}
	}
	return "no reason given"
}

// post repeats while the pipeline is full, away or failing, as often as Retry-After says or with growing pauses.
func (s *importSender) post(ctx context.Context, body []byte) (status int, a *answer, err error) {
	deadline := time.Now().Add(s.retryFor)
	for attempt := 0; ; attempt++ {
		status, retryAfter, a, err := s.try(ctx, body)
		if ctx.Err() != nil {
			return 0, nil, ctx.Err()
		}
		if err == nil && status != http.StatusTooManyRequests && status < 500 && status != http.StatusRequestTimeout {
			return status, a, nil
		}
		why := ""
		if err != nil {
			why = err.Error()
		} else {
			why = fmt.Sprintf("%s answered %d: %s", s.endpoint, status, a.reason(status))
		}
		// Half to all of 0.2, 0.4 ... 30 s, so that several senders don't come back together.
		pause := min(30*time.Second, 200*time.Millisecond<<min(attempt, 10))
		pause = pause/2 + rand.N(pause/2+1)
		if retryAfter > 0 {
			pause = retryAfter + rand.N(retryAfter/10+1)
		}
		if time.Now().Add(pause).After(deadline) {
			return 0, nil, fmt.Errorf("gave up after %s: %s", s.retryFor, why)
		}
		s.notice(fmt.Sprintf("trying again in %s: %s", pause.Round(10*time.Millisecond), why))
		if !wait.For(ctx, pause) {
			return 0, nil, ctx.Err()
		}
	}
}

func (s *importSender) try(ctx context.Context, body []byte) (status int, retryAfter time.Duration, a *answer, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.endpoint, bytes.NewReader(body))
	if err != nil {
		return 0, 0, nil, err
	}
	req.Header.Set("Content-Type", "application/x-ndjson")
	if s.writeKey != "" {
		req.Header.Set("Authorization", "Bearer "+s.writeKey)
	}
	res, err := s.client.Do(req)
	if err != nil {
		return 0, 0, nil, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, 64<<20))
	if err != nil {
		return 0, 0, nil, err
	}
	a = &answer{}
	if err := json.Unmarshal(text, a); err != nil {
		if res.StatusCode == 200 {
			return 0, 0, nil, errors.New("the answer is no JSON; is this a pipeline?")
		}
		*a = answer{}
	}
	if seconds, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil && seconds > 0 {
		retryAfter = time.Duration(seconds) * time.Second
	}
	return res.StatusCode, retryAfter, a, nil
}
