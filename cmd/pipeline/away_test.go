package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"sluice.example/sluice/internal/pgtest"
)

// TestOutageIsAnsweredAtOnce: once the database is known to be away, a request costs its client no wait, it is told
// when to come back, and nothing is blamed that is not the cause. The first that comes after the end is stored.
func TestOutageIsAnsweredAtOnce(t *testing.T) {
	t.Parallel()
	proxy := pgtest.NewProxy(t, pgtest.URL(t))
	node := startNode(t, proxy.URL())
	c := client(t)
	post := func() (status int, retryAfter int, body string) {
		res, err := c.Post(node.Events(), "application/json", bytes.NewReader([]byte(testEvent("a", time.Now()))))
		if err != nil {
			return 0, 0, err.Error()
		}
		defer res.Body.Close()
		text, _ := io.ReadAll(res.Body)
		_, _ = fmt.Sscan(res.Header.Get("Retry-After"), &retryAfter)
		return res.StatusCode, retryAfter, string(text)
	}
	if status, _, body := post(); status != 200 {
		t.Fatalf("%d %s; want 200", status, body)
	}
	proxy.SetDown(true)
	proxy.Cut()
	first := make(chan string, 1)
	go func() { // the one that tries, and waits
		begin := time.Now()
		status, after, body := post()
		if took := time.Since(begin); status != 503 || after < 5 || took > 20*time.Second {
			first <- fmt.Sprintf("%d after %s, Retry-After %d: %s; want 503 after 8 s", status, took, after, body)
			return
		}
		first <- ""
	}()
	pgtest.Eventually(t, "a request is refused at once", func() bool {
		status, after, body := post()
		return status == 503 && after >= 5 && strings.Contains(body, "nothing was taken")
	})
	if wrong := <-first; wrong != "" {
		t.Error(wrong)
	}
	go post() // a load that goes on
	pgtest.Eventually(t, "the outage is what limits", func() bool {
		go post()
		m := metricsOf(t, node)
		return m.Sum("sluice_buffer_limited_by", "by=outage") == 1 && m.Sum("sluice_buffer_limited_by", "by=cpu") == 0
	})
	res, err := http.NewRequest("POST", node.Events(), strings.NewReader(testEvent("b", time.Now())))
	if err != nil {
		t.Fatal(err)
	}
	res.Header.Set("Prefer", "respond-async")
	if answer, err := c.Do(res); err != nil || answer.StatusCode != 202 {
		t.Errorf("an event that waits in memory: %v, %v; want 202", answer, err)
	}
	proxy.SetDown(false)
	pgtest.Eventually(t, "events are stored again", func() bool { status, _, _ := post(); return status == 200 })
}
