package main

import (
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"sluice.example/sluice/internal/pgtest"
)

// A node that was told to stop takes requests for drain-delay, on new connections too, and every answer ends its
// connection; /readyz answers 503 from the first moment. Then it drains, and what it acknowledged is stored.
func TestDrainDelayTakesRequestsWhileBalancersHear(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	node := startNode(t, url, "--drain-delay", "4s")
	kept := client(t) // with a connection from before the signal
	if r := postEvents(kept, node.Events(), testEvent("before", time.Now())); r.status != 200 {
		t.Fatalf("%+v", r)
	}
	signalNode(t, node, syscall.SIGTERM)
	pgtest.Eventually(t, "/readyz answers 503", func() bool {
		res, err := http.Get(node.Admin + "/readyz")
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		return res.StatusCode == 503
	})
	acknowledged := map[string]bool{"before": true}
	for i := range 20 {
		id := fmt.Sprintf("after-%d", i)
		c := kept
		if i > 0 {
			c = client(t)
		}
		res, err := c.Post(node.Events(), "application/json", strings.NewReader(testEvent(id, time.Now())))
		if err != nil {
			t.Fatalf("request %d after the signal: %v", i, err)
		}
		res.Body.Close()
		if res.StatusCode != 200 || !res.Close {
			t.Errorf("request %d after the signal: status %d, closes %v; want 200 and Connection: close", i, res.StatusCode,
				res.Close)
		}
		acknowledged[id] = true
	}
	// Load balancers that see only this port learn of it as well.
	if res, err := client(t).Get(strings.TrimSuffix(node.Events(), "/v1/events") + "/healthz"); err != nil {
		t.Error(err)
	} else if res.Body.Close(); res.StatusCode != 503 {
		t.Errorf("/healthz after the signal: %d, want 503", res.StatusCode)
	}
	if got := exit(t, node, time.Minute); got != 0 {
		t.Errorf("exit status %d, want 0", got)
	}
	found := stored(t, connect(t, url))
	checkOnce(t, acknowledged, found)
}

// A second signal does not wait for the delay.
func TestSecondSignalEndsDrainDelay(t *testing.T) {
	t.Parallel()
	node := startNode(t, pgtest.URL(t), "--drain-delay", "10m")
	signalNode(t, node, syscall.SIGTERM)
	logged(t, node, `"msg":"leaving, requests are still taken"`)
	signalUntilEnded(t, node, syscall.SIGTERM)
	if got := exit(t, node, 30*time.Second); got != 128+int(syscall.SIGTERM) {
		t.Errorf("exit status %d, want %d", got, 128+int(syscall.SIGTERM))
	}
}
