package importer

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
	"unicode/utf8"

	"sluice.example/sluice/internal/wait"
)

// Sender posts batches, and repeats what was refused. Safe for concurrent use.
type Sender struct {
	// Endpoint is the URL of POST /v1/events, WriteKey the key of its tenant, empty for none.
	Endpoint, WriteKey string
	// RetryFor is how long to go on when the pipeline is full or away.
	RetryFor time.Duration
	// AnyAge has event rules look at events however old they are.
	AnyAge bool
	Client *http.Client
	// Notice is told why nothing moves.
	Notice func(text string)
}

// Batch is some consecutive lines and, after Send, what became of them.
type Batch struct {
	number int
	// events are what is posted, one JSON object each; lines are their numbers in the input.
	events [][]byte
	lines  []int64
	// old counts those that are older than RuleAge.
	old int64
	// end is where the input stands after the batch, and lastLine its number.
	end      int64
	lastLine int64
	// open is set where that line has no line break.
	open *openLine

	Stored, Duplicate int64
	Rejected          []RejectedLine
}

// NewBatch makes a batch of events, one JSON object each, that are the lines of an input from first on.
func NewBatch(first int64, events [][]byte) *Batch {
	b := &Batch{events: events}
	for i := range events {
		b.lines = append(b.lines, first+int64(i))
	}
	return b
}

// RejectedLine is a line of FILE.rejected.ndjson.
type RejectedLine struct {
	Line   int64           `json:"line"`
	Field  string          `json:"field,omitempty"`
	Reason string          `json:"reason"`
	Event  json.RawMessage `json:"event,omitempty"`
	// Text is what stood there if it is not JSON, and Bytes is the same, in base64, if it is not UTF-8 either. Of a line
	// that is too long it is the first KiB.
	Text  string `json:"text,omitempty"`
	Bytes []byte `json:"bytes,omitempty"`
}

// noEvent makes the rejection of a line that is not a JSON object.
func noEvent(number int64, reason string, line []byte) RejectedLine {
	if utf8.Valid(line) {
		return RejectedLine{Line: number, Reason: reason, Text: string(line)}
	}
	return RejectedLine{Line: number, Reason: reason, Bytes: bytes.Clone(line)}
}

// append writes the line. An event stands in it byte for byte, in UTF-8 or not.
func (r *RejectedLine) append(b []byte) ([]byte, error) {
	line := *r
	line.Event = nil
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	if err := e.Encode(line); err != nil {
		return nil, err
	}
	b = append(b, bytes.TrimSpace(text.Bytes())...)
	if len(r.Event) > 0 {
		b = append(append(append(b[:len(b)-1], `,"event":`...), r.Event...), '}')
	}
	return append(b, '\n'), nil
}

func (b *Batch) body() []byte {
	return append(bytes.Join(b.events, []byte("\n")), '\n')
}

// eventsAnswer is the answer of POST /v1/events, of a success and of an error.
type eventsAnswer struct {
	Stored, Duplicate, Rejected int64
	Events                      []struct {
		Index         int
		Result        string
		Field, Reason string
	}
	Detail string
	Title  string
}

// Send posts the batch until it is answered for good, and fills in what became of it. A request that is refused as a
// whole is halved, so that one event that the door can't read costs its neighbours nothing.
func (s *Sender) Send(ctx context.Context, b *Batch) error {
	if len(b.events) == 0 {
		return nil
	}
	status, a, err := s.post(ctx, b.body())
	switch {
	case err != nil:
		return err
	case status == 200 || status == 422 && len(a.Events) > 0:
		b.Stored, b.Duplicate = a.Stored, a.Duplicate
		for _, e := range a.Events {
			if e.Result == "rejected" && e.Index >= 0 && e.Index < len(b.events) {
				b.Rejected = append(b.Rejected, RejectedLine{Line: b.lines[e.Index], Field: e.Field, Reason: e.Reason,
					Event: b.events[e.Index]})
			}
		}
		return nil
	case (status == 400 || status == 413 || status == 422) && len(b.events) > 1:
		half := len(b.events) / 2
		for _, part := range []Batch{{events: b.events[:half], lines: b.lines[:half]},
			{events: b.events[half:], lines: b.lines[half:]}} {
			if err := s.Send(ctx, &part); err != nil {
				return err
			}
			b.Stored, b.Duplicate, b.Rejected = b.Stored+part.Stored, b.Duplicate+part.Duplicate,
				append(b.Rejected, part.Rejected...)
		}
		return nil
	case status == 400 || status == 413 || status == 422:
		b.Rejected = append(b.Rejected, RejectedLine{Line: b.lines[0], Reason: a.reason(status), Event: b.events[0]})
		return nil
	}
	return fmt.Errorf("%s answered %d: %s", s.Endpoint, status, a.reason(status))
}

func (a *eventsAnswer) reason(status int) string {
	for _, text := range []string{a.Detail, a.Title, http.StatusText(status)} {
		if text != "" {
			return text
		}
	}
	return "no reason given"
}

// post repeats while the pipeline is full, away or failing, as often as Retry-After says or with growing pauses.
func (s *Sender) post(ctx context.Context, body []byte) (status int, a *eventsAnswer, err error) {
	deadline := time.Now().Add(s.RetryFor)
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
			why = fmt.Sprintf("%s answered %d: %s", s.Endpoint, status, a.reason(status))
		}
		// Half to all of 0.2, 0.4 ... 30 s, so that several senders don't come back together.
		pause := min(30*time.Second, 200*time.Millisecond<<min(attempt, 10))
		pause = pause/2 + rand.N(pause/2+1)
		if retryAfter > 0 {
			pause = retryAfter + rand.N(retryAfter/10+1)
		}
		if time.Now().Add(pause).After(deadline) {
			return 0, nil, fmt.Errorf("gave up after %s: %s", s.RetryFor, why)
		}
		s.Notice(fmt.Sprintf("trying again in %s: %s", pause.Round(10*time.Millisecond), why))
		if !wait.For(ctx, pause) {
			return 0, nil, ctx.Err()
		}
	}
}

func (s *Sender) try(ctx context.Context, body []byte) (status int, retryAfter time.Duration, a *eventsAnswer,
	err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.Endpoint, bytes.NewReader(body))
	if err != nil {
		return 0, 0, nil, err
	}
	req.Header.Set("Content-Type", "application/x-ndjson")
	if s.AnyAge {
		req.Header.Set("Prefer", "any-age")
	}
	if s.WriteKey != "" {
		req.Header.Set("Authorization", "Bearer "+s.WriteKey)
	}
	res, err := s.Client.Do(req)
	if err != nil {
		return 0, 0, nil, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, 64<<20))
	if err != nil {
		return 0, 0, nil, err
	}
	a = &eventsAnswer{}
	if err := json.Unmarshal(text, a); err != nil {
		if res.StatusCode == 200 {
			return 0, 0, nil, errors.New("the answer is not JSON; is this a pipeline?")
		}
		*a = eventsAnswer{}
	}
	if seconds, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil && seconds > 0 {
		retryAfter = time.Duration(seconds) * time.Second
	}
	return res.StatusCode, retryAfter, a, nil
}
