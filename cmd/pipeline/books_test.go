package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sluice.example/sluice/internal/pgtest"
)

// The books of several nodes, and of one that was started again, show no difference where nothing is wrong: not while
// events are on their way either.
func TestBooksOfSeveralNodes(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	check := func(what, admin string, alone bool) {
		t.Helper()
		status, out, errOut := runCommand(t, nil, "books", "--admin", admin)
		if status != 0 || strings.Contains(out, "DIFFERENCE") || strings.Contains(out, "Other processes") == alone {
			t.Errorf("%s: status %d %s, compared %v\n%s", what, status, errOut, alone, out)
		}
	}
	rules := writeRules(t, "http://127.0.0.1:1", "[1h]")
	first, second := startNode(t, url, rules...), startNode(t, url, rules...)
	var clients sync.WaitGroup
	for n, node := range []string{first.Events(), second.Events()} {
		clients.Go(func() {
			c := client(t)
			for i := range 40 {
				if r := postEvents(c, node, testEvent(fmt.Sprintf("n%d-%d", n, i), time.Now())); r.status != 200 {
					t.Errorf("%+v", r)
				}
			}
		})
	}
	for range 10 { // while events come
		check("the first of two", first.Admin, false)
		check("the second of two", second.Admin, false)
	}
	clients.Wait()
	signalNode(t, first, syscall.SIGTERM)
	if got := exit(t, first, time.Minute); got != 0 {
		t.Errorf("exit status %d, want 0", got)
	}
	check("the one that is left", second.Admin, false)
	signalNode(t, second, syscall.SIGTERM)
	if got := exit(t, second, time.Minute); got != 0 {
		t.Errorf("exit status %d, want 0", got)
	}

	// Started again, alone: now the sides are compared, while events come as well.
	third := startNode(t, url, rules...)
	clients.Go(func() {
		c := client(t)
		for i := range 200 {
			if r := postEvents(c, third.Events(), testEvent(fmt.Sprintf("third-%d", i), time.Now())); r.status != 200 {
				t.Errorf("%+v", r)
			}
		}
	})
	for range 20 {
		check("started again, under load", third.Admin, true)
	}
	clients.Wait()
	pgtest.Eventually(t, "the sides are compared at rest", func() bool {
		d := booksOf(t, third).Differences
		return d.Stored != nil && *d.Stored == 0 && d.Decided != nil && *d.Decided == 0
	})
}

// TestBooksHoldUpNobody: 40 who ask for the books, while a lock keeps every one of them from its answer, leave
// readiness and deliveries their connections.
func TestBooksHoldUpNobody(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	node := startNode(t, url)
	conn := connect(t, url)
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	// The books read it, and nothing of readiness or delivery does.
	if _, err := tx.Exec(t.Context(), "lock table sluice_processes in access exclusive mode"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var asked sync.WaitGroup
	for range 40 {
		asked.Go(func() {
			req, err := http.NewRequestWithContext(ctx, "GET", node.Admin+"/v1/books", nil)
			if err != nil {
				t.Error(err)
				return
			}
			if res, err := http.DefaultClient.Do(req); err == nil {
				res.Body.Close()
			}
		})
	}
	defer asked.Wait()
	defer cancel()
	watcher := connect(t, url)
	pgtest.Until(t, watcher, "select count(*) = 1 from pg_stat_activity where datname = current_database() and "+
		"application_name = 'pipeline pages' and wait_event_type = 'Lock'")
	for range 10 {
		res, err := http.Get(node.Admin + "/readyz")
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != 200 {
			t.Fatalf("/readyz is %d while 40 ask for the books; want 200", res.StatusCode)
		}
	}
}
