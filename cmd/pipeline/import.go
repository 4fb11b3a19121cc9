package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"sluice.example/sluice/internal/cli"
	"sluice.example/sluice/operate/importer"
)

const importAbout = `Sends newline-delimited JSON, one event a line, to a running pipeline. It may be compressed with
gzip. Memory stays constant however long the input is.

FILE is resumable: how far it was acknowledged is kept beside it, in FILE.import, and the same command goes on
from there. "-" reads standard input, which can't be resumed. An event without event_id gets one derived from
the head of the input, the line's number and its text, so repeating an import, in whole or in part, stores
nothing twice. Events that the pipeline rejects go to FILE.rejected.ndjson, with line and reason, and the exit
status is 3.`

func importCommand(ctx context.Context, args []string, env cli.Env) error {
	o := importer.Options{}
	fs := cli.NewFlags(env, "import", importAbout, "pipeline import events.ndjson --to http://127.0.0.1:8080\n"+
		"pipeline import day.ndjson.gz")
	to := fs.String("to", "http://127.0.0.1:8080", "`URL` of the pipeline")
	fs.StringVar(&o.WriteKey, "write-key", env.Variable("SLUICE_WRITE_KEY"),
		"`key` of the tenant; better set in the environment as SLUICE_WRITE_KEY")
	fs.IntVar(&o.Batch, "batch", 500, "`events` in a request")
	fs.IntVar(&o.Requests, "requests", 4, "`requests` in flight")
	cli.Duration(fs, &o.RetryFor, "retry-for", 10*time.Minute, "how `long` to go on when the pipeline is full or away")
	fs.BoolVar(&o.WithRules, "with-rules", false, "have event rules look at events however old they are; otherwise they "+
		"pass by what is older than their max_age")
	fs.BoolVar(&o.Restart, "restart", false, "begin at the first line, whatever was acknowledged before")
	fs.StringVar(&o.Rejected, "rejected", "", "`file` for rejected events (default FILE.rejected.ndjson; none for "+
		"standard input)")
	cli.Duration(fs, &o.ProgressEvery, "progress-every", 5*time.Second,
		"how `long` between two lines of progress without a terminal")
	fs.Lookup("write-key").DefValue = ""
	rest, err := cli.Parse(fs, args, 1)
	if err != nil {
		return err
	}
	if len(rest) != 1 {
		return cli.Usage(errors.New("give one FILE, or - for standard input"))
	}
	target, err := url.Parse(*to)
	switch {
	case err != nil || target.Host == "" || target.Scheme != "http" && target.Scheme != "https":
		return cli.Usagef("--to: %q is not an http or https URL", *to)
	case o.Batch < 1 || o.Batch > 10_000:
		return cli.Usagef("--batch: %d; has to be 1 to 10,000", o.Batch)
	case o.Requests < 1 || o.Requests > 256:
		return cli.Usagef("--requests: %d; has to be 1 to 256", o.Requests)
	case o.ProgressEvery <= 0:
		return cli.Usagef("--progress-every: %s; has to be positive", o.ProgressEvery)
	}
	o.Endpoint, o.File = target.JoinPath("/v1/events").String(), rest[0]
	result, err := importer.Run(ctx, o, env)
	if result == nil {
		return err
	}
	if result.Complete {
		fmt.Fprintf(env.Stdout, "import: %s was imported completely before; --restart sends it again\n", o.File)
	} else if printErr := result.Print(env.Stdout); printErr != nil {
		err = errors.Join(err, printErr)
	}
	if err != nil || result.AllRejected == 0 {
		return err
	}
	where := ""
	if result.RejectedFile != "" {
		where = "; see " + result.RejectedFile
	}
	return cli.ExitError{Err: fmt.Errorf("%d events were rejected%s", result.AllRejected, where), Status: 3}
}
