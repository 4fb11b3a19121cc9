package ingest

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"testing"

	"sluice.example/sluice/internal/tenants"
)

// TestDrain ends the server under 200 connections, half of them waiting for their answer and half idle.
func TestDrain(t *testing.T) {
	const n = 100
	m := &memory{hold: make(chan struct{}), inside: make(chan struct{}, n)}
	d := open(t, m, tenants.Set{}, nil)
	request := func(name string) string {
		body := `{"event_name":"` + name + `"}`
		return fmt.Sprintf("POST /v1/events HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	}
	var idle, waiting []*bufio.Reader
	for range n {
		_, r := d.raw("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		if status, _ := readReply(t, r); status != 404 {
			t.Fatalf("GET /: %d; want 404", status)
		}
		idle = append(idle, r)
	}
	for i := range n {
		_, r := d.raw(request("w" + strconv.Itoa(i)))
		waiting = append(waiting, r)
	}
	for range n {
		<-m.inside
	}
	d.stop()
	for i, r := range idle {
		if b, err := r.ReadByte(); err != io.EOF {
			t.Fatalf("idle connection %d: read %q, %v; want it closed", i, b, err)
		}
	}
	if c, err := net.Dial("tcp", d.addr); err == nil {
		c.Close()
		t.Error("a new connection was taken during the drain")
	}
	select {
	case <-d.done:
		t.Fatal("Serve returned before the requests in flight were answered")
	default:
	}
	close(m.hold)
	for i, r := range waiting {
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatalf("waiting connection %d: %v", i, err)
		}
		io.Copy(io.Discard, resp.Body)
		if resp.StatusCode != 200 || !resp.Close {
			t.Fatalf("waiting connection %d: %d, close %v; want 200 and Connection: close", i, resp.StatusCode, resp.Close)
		}
	}
	within(t, "Serve to return", d.done)
	if got := len(m.names()); got != n {
		t.Errorf("%d events stored; want %d", got, n)
	}
}

func TestRequestsDuringTheDrainAreRefused(t *testing.T) {
	m := &memory{}
	d := open(t, m, tenants.Set{}, nil)
	d.server.draining.Store(true)
	_, r := d.raw("POST /v1/events HTTP/1.1\r\nHost: x\r\nContent-Length: 18\r\n\r\n" + `{"event_name":"x"}`)
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != 503 || !resp.Close || resp.Header.Get("Retry-After") == "" || len(m.names()) > 0 {
		t.Errorf("%d, close %v, %d events; want 503, Connection: close, none", resp.StatusCode, resp.Close, len(m.names()))
	}
}

func TestServeEndsAtOnceWhenItsContextHasEnded(t *testing.T) {
	d := open(t, &memory{}, tenants.Set{}, nil)
	d.stop()
	within(t, "Serve to return", d.done)
}
