package main

import (
	"context"
	"strings"

	"sluice.example/sluice/internal/cli"
	"sluice.example/sluice/operate/books"
)

const booksAbout = `Asks a running pipeline for its books: what it counted since it started beside what the database
holds, per tenant, and the differences, of which each means that something is wrong. Where other processes have written
to the database as well, the two sides are not compared. It reads all events once. Exit status 1 where there is a
difference.`

func booksCommand(ctx context.Context, args []string, env cli.Env) error {
	fs := cli.NewFlags(env, "books", booksAbout, "pipeline books --admin http://127.0.0.1:9090")
	admin := fs.String("admin", "http://127.0.0.1:9090", "`address` of the pipeline's admin.listen")
	since := fs.String("since", "", "count in the database from this `mark` on, which an earlier answer holds; empty: "+
		"since the process started")
	asJSON := fs.Bool("json", false, "print the answer as JSON")
	if _, err := cli.Parse(fs, args, 0); err != nil {
		return err
	}
	if !strings.Contains(*admin, "://") {
		*admin = "http://" + *admin
	}
	answer, err := books.Fetch(ctx, *admin, *since)
	if err != nil {
		return err
	}
	if err := cli.Print(env.Stdout, *asJSON, answer); err != nil {
		return err
	}
	return answer.Err()
}
