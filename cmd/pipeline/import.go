package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/sourcegraph/conc/pool"

	"sluice.example/sluice/internal/cli"
)

type importOptions struct {
	to        string
	writeKey  string
	batch     int
	requests  int
	retryFor  time.Duration
	restart   bool
	rejected  string
	showEvery time.Duration
}

const importAbout = `Sends newline-delimited JSON, one event a line, to a running pipeline. Memory stays constant however long the input is.

FILE is resumable: how far it was acknowledged is kept beside it, in FILE.import, and the same command goes on from
there. "-" reads standard input, which can't be resumed. An event without event_id gets one derived from the head of
the input, the line's number and its text, so repeating an import, in whole or in part, stores nothing twice.
Events that the pipeline refuses go to FILE.rejected.ndjson, with line and reason, and the exit status is 3.`

func importCommand(ctx context.Context, args []string, env cli.Env) error {
	var o importOptions
	fs := cli.NewFlags(env, "import", importAbout, "pipeline import events.ndjson --to http://127.0.0.1:8080\ngunzip -c day.ndjson.gz | pipeline import -")
	fs.StringVar(&o.to, "to", "http://127.0.0.1:8080", "`URL` of the pipeline")
	fs.StringVar(&o.writeKey, "write-key", env.Variable("SLUICE_WRITE_KEY"), "`key` of the tenant; better set in the environment as SLUICE_WRITE_KEY")
	fs.IntVar(&o.batch, "batch", 500, "`events` in a request")
	fs.IntVar(&o.requests, "requests", 4, "`requests` in flight")
	fs.DurationVar(&o.retryFor, "retry-for", 10*time.Minute, "how `long` to go on when the pipeline is full or away")
	fs.BoolVar(&o.restart, "restart", false, "begin at the first line, whatever was acknowledged before")
	fs.StringVar(&o.rejected, "rejected", "", "`file` for refused events (default FILE.rejected.ndjson; none for standard input)")
	fs.DurationVar(&o.showEvery, "progress-every", 5*time.Second, "how `long` between two lines of progress without a terminal")
	fs.Lookup("write-key").DefValue = ""
	rest, err := cli.Parse(fs, args, 1)
	if err != nil {
		return err
	}
	if len(rest) != 1 {
		return cli.Usage(errors.New("give one FILE, or - for standard input"))
	}
	target, err := url.Parse(o.to)
	switch {
	case err != nil || target.Host == "" || target.Scheme != "http" && target.Scheme != "https":
		return cli.Usagef("--to: %q is no http or https URL", o.to)
	case o.batch < 1 || o.batch > 10_000:
		return cli.Usagef("--batch: %d; has to be 1 to 10,000", o.batch)
	case o.requests < 1 || o.requests > 256:
		return cli.Usagef("--requests: %d; has to be 1 to 256", o.requests)
	case o.showEvery <= 0:
		return cli.Usagef("--progress-every: %s; has to be positive", o.showEvery)
	}
	return runImport(ctx, o, target.JoinPath("/v1/events").String(), rest[0], env)
}

// runImport joins the three parts: one reader cuts the input into batches, o.requests senders post them, and the
// ledger puts what came back in the input's order, so that the checkpoint always names an acknowledged prefix.
func runImport(ctx context.Context, o importOptions, endpoint, name string, env cli.Env) (err error) {
	source := env.Stdin
	ledger := &importLedger{rejectedFile: o.rejected}
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return err
		}
		defer file.Close()
		if ledger, err = openLedger(file, name, o); err != nil {
			return err
		}
		source = file
	}
	reader, err := newLineReader(source, ledger, o.batch)
	if err != nil {
		return err
	}
	if ledger.complete() {
		fmt.Fprintf(env.Stdout, "import: %s was imported completely before; --restart sends it again\n", name)
		return ledger.outcome()
	}
	if ledger.point.Offset > 0 {
		fmt.Fprintf(env.Stdout, "import: going on after line %d\n", ledger.point.Line)
	}
	if err := ledger.openRejected(); err != nil {
		return err
	}
	progress := newProgress(env, ledger.size, ledger.point.Offset, o.showEvery)
	sender := &importSender{
		endpoint: endpoint,
		writeKey: o.writeKey,
		retryFor: o.retryFor,
		client:   &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: o.requests, IdleConnTimeout: time.Minute}, Timeout: time.Minute},
		notice:   progress.notice,
	}
	start := time.Now()
	before := ledger.point

	batches := make(chan *importBatch)
	// The window bounds what is read but not yet part of the acknowledged prefix, one slow request included.
	window := make(chan struct{}, 4*o.requests)
	stages := pool.New().WithContext(ctx).WithCancelOnError().WithFirstError()
	stages.Go(func(ctx context.Context) error {
		defer close(batches)
		for number := 0; ; number++ {
			select {
			case window <- struct{}{}:
			case <-ctx.Done():
				return ctx.Err()
			}
			b, err := reader.next()
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
	})
	for range o.requests {
		stages.Go(func(ctx context.Context) error {
			for b := range batches {
				if err := sender.send(ctx, b); err != nil {
					return err
				}
				advanced, err := ledger.done(b)
				if err != nil {
					return err
				}
				for range advanced {
					<-window
				}
				progress.show(ledger.snapshot())
			}
			return nil
		})
	}
	err = stages.Wait()
	if saveErr := ledger.close(err == nil); saveErr != nil {
		err = errors.Join(err, saveErr)
	}
	progress.finish()
	p := ledger.point
	fmt.Fprintf(env.Stdout, "import: %d lines in %s: %d stored, %d duplicate, %d rejected\n", p.Line-before.Line,
		time.Since(start).Round(time.Millisecond), p.Stored-before.Stored, p.Duplicate-before.Duplicate, p.Rejected-before.Rejected)
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = errors.New("interrupted")
	}
	if err != nil {
		if name == "-" {
			return fmt.Errorf("stopped after line %d: %w", p.Line, err)
		}
		return fmt.Errorf("stopped after line %d; the same command goes on from there: %w", p.Line, err)
	}
	return ledger.outcome()
}

// importBatch is some consecutive lines and, after send, what became of them.
type importBatch struct {
	number int
	// events are what is posted, one JSON object each; lines are their numbers in the input.
	events [][]byte
	lines  []int64
	// end is where the input stands after the batch, and lastLine its number.
	end      int64
	lastLine int64

	stored, duplicate int64
	rejected          []rejectedLine
}

// rejectedLine is a line of FILE.rejected.ndjson.
type rejectedLine struct {
	Line   int64           `json:"line"`
	Field  string          `json:"field,omitempty"`
	Reason string          `json:"reason"`
	Event  json.RawMessage `json:"event,omitempty"`
	// Text is what stood there if it is no JSON, cut to 1 KiB.
	Text string `json:"text,omitempty"`
}

func (b *importBatch) body() []byte {
	return append(bytes.Join(b.events, []byte("\n")), '\n')
}

func rejectedText(line []byte) string {
	return strings.ToValidUTF8(string(line[:min(len(line), 1024)]), "\uFFFD")
}
