package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"sluice.example/sluice/internal/cli"
)

// booksCommand asks a running pipeline for its books.
func booksCommand(ctx context.Context, args []string, env cli.Env) error {
	fs := cli.NewFlags(env, "books", `Asks a running pipeline for its books: what it counted since it started beside what the database holds, per tenant,
and the differences that have to be zero while nothing is on its way. It reads all events once. Exit status 1 where a
difference is not zero.`, "pipeline books --admin http://127.0.0.1:9090")
	admin := fs.String("admin", "http://127.0.0.1:9090", "`address` of the pipeline's admin.listen")
	since := fs.String("since", "", "count in the database from this `mark` on, which an earlier answer gave; empty: since the process started")
	asJSON := fs.Bool("json", false, "print the answer as JSON")
	if _, err := cli.Parse(fs, args, 0); err != nil {
		return err
	}
	if !strings.Contains(*admin, "://") {
		*admin = "http://" + *admin
	}
	body, err := fetchBooks(ctx, strings.TrimRight(*admin, "/")+"/v1/books?since="+url.QueryEscape(*since))
	if err != nil {
		return err
	}
	var answer booksAnswer
	if err := json.Unmarshal(body, &answer); err != nil {
		return fmt.Errorf("the answer of %s is no book: %w", *admin, err)
	}
	if *asJSON {
		_, err = env.Stdout.Write(body)
	} else {
		err = printBooks(env.Stdout, &answer)
	}
	if err != nil {
		return err
	}
	for _, t := range answer.Tenants {
		for _, name := range slices.Sorted(maps.Keys(t.Differences)) {
			if t.Differences[name] != 0 {
				return fmt.Errorf("tenant %d: %s differ by %d", t.Tenant, name, t.Differences[name])
			}
		}
	}
	return nil
}

func fetchBooks(ctx context.Context, address string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, cli.Usage(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%w; is the pipeline running, and is --admin its admin.listen?", err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", address, res.Status, strings.TrimSpace(string(body)))
	}
	return body, err
}

func printBooks(w io.Writer, a *booksAnswer) error {
	var b strings.Builder
	since, _, _ := strings.Cut(a.Since, "_")
	fmt.Fprintf(&b, "Books since %s; to go on from here: --since %s\n", since, a.Mark)
	for _, t := range a.Tenants {
		p, db := t.Process, t.Database
		fmt.Fprintf(&b, "\ntenant %d %s\n", t.Tenant, t.Name)
		fmt.Fprintf(&b, "  the process: received %d = stored %d + duplicate %d + rejected %d + refused %d + failed %d + quarantined %d + in flight %d\n",
			p["received"], p["stored"], p["duplicate"], p["rejected"], p["refused"], p["failed"], p["quarantined"], p["in_flight"])
		fmt.Fprintf(&b, "               decided %d\n", p["decided"])
		fmt.Fprintf(&b, "  the database: stored %d, of those %d under the id of another\n", db["stored"], db["twice"])
		fmt.Fprintf(&b, "               decided %d + enqueued %d = sent %d + skipped %d + dead %d + due %d + leased %d\n",
			db["decided"], db["enqueued"], db["sent"], db["skipped"], db["dead"], db["due"], db["leased"])
		for _, name := range slices.Sorted(maps.Keys(t.Differences)) {
			if d := t.Differences[name]; d != 0 {
				fmt.Fprintf(&b, "  DIFFERENCE   %s: %d\n", name, d)
			}
		}
	}
	fmt.Fprintf(&b, "\nsuppressed by rules (all tenants): %d\n", a.Suppressed)
	_, err := io.WriteString(w, b.String())
	return err
}
