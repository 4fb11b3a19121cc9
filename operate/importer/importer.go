// Package importer sends a file of events to a running pipeline, over HTTP, as any client would.
//
// Memory stays constant however long the input is. A file is resumable: how far it was acknowledged stands beside it,
// and every event has an id, its own or one derived from the input, so sending a part twice stores nothing twice.
package importer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/sourcegraph/conc/pool"

	"sluice.example/sluice/internal/cli"
	"sluice.example/sluice/internal/duration"
	"sluice.example/sluice/pipeline/rules"
)

// Options say what to send where.
type Options struct {
	// File is newline-delimited JSON, plain or as gzip; "-" is standard input, which can't be resumed.
	File string
	// Endpoint is the URL of POST /v1/events, WriteKey the key of its tenant, empty for none.
	Endpoint, WriteKey string
	// Batch is the most events in a request, Requests how many requests are in flight.
	Batch, Requests int
	// RetryFor is how long to go on when the pipeline is full or away.
	RetryFor time.Duration
	// WithRules has event rules look at events however old they are; otherwise they pass by what is older than their
	// max_age.
	WithRules bool
	// Restart begins at the first line, whatever was acknowledged before.
	Restart bool
	// Rejected is the file for rejected events. Empty: FILE.rejected.ndjson, and none for standard input.
	Rejected string
	// ProgressEvery is the time between two lines of progress, where there is no terminal.
	ProgressEvery time.Duration
}

// Result is what a run did, and where the input stands after it.
type Result struct {
	// Complete is true where the whole input had been acknowledged before, so that nothing was sent.
	Complete bool `json:"complete_before"`
	// Lines, Stored, Duplicate and Rejected count what this run got answers for.
	Lines     int64 `json:"lines"`
	Stored    int64 `json:"stored"`
	Duplicate int64 `json:"duplicate"`
	Rejected  int64 `json:"rejected"`
	// Old counts events that happened more than RuleAge before they were sent.
	Old int64 `json:"old"`
	// AllRejected counts the runs before as well. They stand in RejectedFile, which is empty where none is kept.
	AllRejected  int64         `json:"all_rejected"`
	RejectedFile string        `json:"rejected_file,omitempty"`
	WithRules    bool          `json:"with_rules"`
	Took         time.Duration `json:"took_ns"`
}

// RuleAge is the age past which event rules pass an event by, unless they say otherwise: the default of their max_age.
const RuleAge = rules.DefaultMaxAge

// Print writes a line for people, and another one where rules passed events by.
func (r *Result) Print(w io.Writer) error {
	_, err := fmt.Fprintf(w, "import: %d lines in %s: %d stored, %d duplicate, %d rejected\n", r.Lines,
		r.Took.Round(time.Millisecond), r.Stored, r.Duplicate, r.Rejected)
	if err != nil || r.Old == 0 {
		return err
	}
	if r.WithRules {
		_, err = fmt.Fprintf(w, "import: %d events are older than %s, and event rules looked at them (--with-rules)\n",
			r.Old, duration.Format(RuleAge))
	} else {
		_, err = fmt.Fprintf(w, "import: %d events are older than %s: event rules passed them by, unless their max_age is "+
			"longer; --with-rules is for those who mean rules to look\n", r.Old, duration.Format(RuleAge))
	}
	return err
}

// Run imports until the end of the input, or until ctx ends. Progress goes to env.Stderr. The result also stands beside
// an error that came after something was sent.
func Run(ctx context.Context, o Options, env cli.Env) (*Result, error) {
	im := &run{o: o, source: env.Stdin, ledger: &ledger{rejectedFile: o.Rejected}}
	if o.File != "-" {
		file, err := os.Open(o.File)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		if im.ledger, err = openLedger(file, o); err != nil {
			return nil, err
		}
		im.source = file
	}
	var err error
	if im.reader, err = newLineReader(im.source, im.ledger, o.Batch); err != nil {
		return nil, err
	}
	if im.ledger.complete() {
		return im.result(im.ledger.point, time.Now()), nil
	}
	if at := im.ledger.point; at.Offset > 0 {
		fmt.Fprintf(env.Stdout, "import: going on after line %d\n", at.Line)
	}
	if err := im.ledger.openRejected(); err != nil {
		return nil, err
	}
	size := im.ledger.size
	if im.ledger.gzip {
		size = 0 // of the text: unknown
	}
	im.progress = newProgress(env, size, im.ledger.point.Offset, o.ProgressEvery)
	im.sender = &Sender{
		Endpoint: o.Endpoint,
		WriteKey: o.WriteKey,
		RetryFor: o.RetryFor,
		AnyAge:   o.WithRules,
		Client: &http.Client{
			Transport: &http.Transport{MaxIdleConnsPerHost: o.Requests, IdleConnTimeout: time.Minute},
			Timeout:   time.Minute,
		},
		Notice: im.progress.notice,
	}
	start, before := time.Now(), im.ledger.point
	err = im.send(ctx)
	im.progress.finish()
	return im.result(before, start), im.describe(ctx, err)
}

// run joins the three parts: one reader cuts the input into batches, senders post them, and the ledger puts what came
// back in the input's order, so that the checkpoint always names an acknowledged prefix.
type run struct {
	o        Options
	source   io.Reader
	reader   *lineReader
	ledger   *ledger
	sender   *Sender
	progress *progress
	// old counts the events older than RuleAge among those that were answered.
	old atomic.Int64
}

func (im *run) send(ctx context.Context) error {
	batches := make(chan *Batch)
	// The window bounds what is read but not yet part of the acknowledged prefix, one slow request included.
	window := make(chan struct{}, 4*im.o.Requests)
	stages := pool.New().WithContext(ctx).WithCancelOnError().WithFirstError()
	stages.Go(func(ctx context.Context) error {
		defer close(batches)
		return im.read(ctx, batches, window)
	})
	for range im.o.Requests {
		stages.Go(func(ctx context.Context) error { return im.post(ctx, batches, window) })
	}
	err := stages.Wait()
	return errors.Join(err, im.ledger.close(err == nil, im.reader))
}

// read cuts the input into batches as the window allows.
func (im *run) read(ctx context.Context, batches chan<- *Batch, window chan<- struct{}) error {
	for number := 0; ; number++ {
		select {
		case window <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		b, err := im.reader.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		b.number = number
		select {
		case batches <- b:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// post sends batches and enters what came back.
func (im *run) post(ctx context.Context, batches <-chan *Batch, window <-chan struct{}) error {
	for b := range batches {
		if err := im.sender.Send(ctx, b); err != nil {
			return err
		}
		im.old.Add(b.old)
		advanced, err := im.ledger.done(b)
		if err != nil {
			return err
		}
		for range advanced {
			<-window
		}
		im.progress.show(im.ledger.snapshot())
	}
	return nil
}

func (im *run) result(before checkpoint, start time.Time) *Result {
	p := im.ledger.point
	return &Result{
		Complete:     im.ledger.complete() && im.sender == nil,
		Lines:        p.Line - before.Line,
		Stored:       p.Stored - before.Stored,
		Duplicate:    p.Duplicate - before.Duplicate,
		Rejected:     p.Rejected - before.Rejected,
		Old:          im.old.Load(),
		WithRules:    im.o.WithRules,
		AllRejected:  p.Rejected,
		RejectedFile: im.ledger.rejectedFile,
		Took:         time.Since(start),
	}
}

// describe adds to an error where the import stopped, and how it goes on.
func (im *run) describe(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = errors.New("interrupted")
	}
	if im.o.File == "-" {
		return fmt.Errorf("stopped after line %d: %w", im.ledger.point.Line, err)
	}
	return fmt.Errorf("stopped after line %d; the same command goes on from there: %w", im.ledger.point.Line, err)
}
