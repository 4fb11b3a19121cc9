package ingest

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/internal/tenants"
)

// raw speaks HTTP by hand, for requests that a client library would not send.
func (d *door) raw(text string) (net.Conn, *bufio.Reader) {
	d.t.Helper()
	c, err := net.Dial("tcp", d.addr)
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(60 * time.Second))
	if _, err := io.WriteString(c, text); err != nil {
		d.t.Fatal(err)
	}
	return c, bufio.NewReader(c)
}

func readReply(t testing.TB, r *bufio.Reader) (int, string) {
	t.Helper()
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

func TestChunkedBodyWithoutEnd(t *testing.T) {
	m := &memory{}
	d := open(t, m, tenants.Set{}, func(c *Config) { c.MaxBodyBytes = 1 << 20 })
	c, r := d.raw("POST /v1/events HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
	go func() {
		chunk := fmt.Sprintf("%x\r\n%s\r\n", 8192, strings.Repeat(" ", 8192))
		for range 1 << 17 { // 1 GiB, if nobody stops it
			if _, err := io.WriteString(c, chunk); err != nil {
				return
			}
		}
	}()
	if status, body := readReply(t, r); status != 413 {
		t.Errorf("%d %s; want 413", status, body)
	}
	if got := d.server.bodies.InUse(); got != 0 {
		t.Errorf("%d bytes of bodies are still counted; want 0", got)
	}
	_, r = d.raw("POST /v1/events HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: " +
		"chunked\r\n\r\n12\r\n{\"event_name\":\"x\"}\r\n0\r\n\r\n")
	if status, body := readReply(t, r); status != 200 {
		t.Errorf("a chunked body: %d %s; want 200", status, body)
	}
}

func TestWrongLengths(t *testing.T) {
	m := &memory{}
	d := open(t, m, tenants.Set{}, func(c *Config) { c.ReadTimeout = 300 * time.Millisecond })
	body := `{"event_name":"x","properties":{"a":"` + strings.Repeat("b", 20000) + `"}}`
	c, r := d.raw(fmt.Sprintf("POST /v1/events HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body)+10, body))
	c.(*net.TCPConn).CloseWrite()
	if status, text := readReply(t, r); status != 400 || !strings.Contains(text, "Content-Length") {
		t.Errorf("a body shorter than its length: %d %s; want 400", status, text)
	}
	_, r = d.raw(fmt.Sprintf("POST /v1/events HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body)+10, body))
	if status, text := readReply(t, r); status != 408 {
		t.Errorf("a body that does not come: %d %s; want 408", status, text)
	}
	_, r = d.raw("POST /v1/events HTTP/1.1\r\nHost: x\r\nContent-Length: 18\r\n\r\n" +
		`{"event_name":"x"}GARBAGE / HTTP/1.1` + "\r\n\r\n")
	if status, text := readReply(t, r); status != 200 {
		t.Errorf("a body longer than its length: %d %s; want 200 for what it holds", status, text)
	}
	if status, _ := readReply(t, r); status == 200 {
		t.Error("the rest of a body was taken for a request")
	}
	_, r = d.raw("POST /v1/events HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n")
	if status, _ := readReply(t, r); status != 400 {
		t.Errorf("a negative length: %d; want 400", status)
	}
	_, r = d.raw("POST /v1/events HTTP/1.1\r\nHost: x\r\n")
	if status, _ := readReply(t, r); status != 408 {
		t.Errorf("a header that does not end: %d; want 408", status)
	}
	_, r = d.raw("POST /v1/events HTTP/1.1\r\nHost: x\r\nX-Long: " + strings.Repeat("x", 20000) + "\r\n\r\n")
	if status, _ := readReply(t, r); status != 431 {
		t.Errorf("a header of 20,000 bytes: %d; want 431", status)
	}
	if len(m.names()) != 1 {
		t.Errorf("events %q; want only the one of the right request", m.names())
	}
}

// TestGzipBombInBoundedMemory sends 64 MiB of blanks in 64 KiB, eight times at once.
func TestGzipBombInBoundedMemory(t *testing.T) {
	var bomb bytes.Buffer
	w := gzip.NewWriter(&bomb)
	zeros := bytes.Repeat([]byte{' '}, 1<<20)
	for range 64 {
		w.Write(zeros)
	}
	w.Close()
	d := open(t, &memory{}, tenants.Set{}, func(c *Config) {
		c.MaxDecodedBytes, c.MaxBodyBytes, c.MaxReadingBytes = 8<<20,
			2<<20, 32<<20
	})
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if r := d.post(bomb.String(), "Content-Encoding", "gzip"); r.status != 413 && r.status != 429 {
				t.Errorf("%d %s; want 413, or 429 where memory for bodies is short", r.status, r.body)
			}
		})
	}
	wg.Wait()
	runtime.ReadMemStats(&after)
	// Everything that was made over the time, collected or not: 8 requests of at most 8 MiB, each grown by doubling.
	if got := after.TotalAlloc - before.TotalAlloc; got > 8*(2*8+4)<<20 {
		t.Errorf("%d MiB were allocated for 8 bombs of 64 MiB; want at most 160", got>>20)
	}
}

func TestMemoryForBodiesIsBounded(t *testing.T) {
	m := &memory{}
	d := open(t, m, tenants.Set{}, func(c *Config) {
		c.MaxBodyBytes, c.MaxDecodedBytes, c.MaxReadingBytes = 1<<20, 1<<19,
			1<<20+1<<19
	})
	// A client that sends all but the end of 1 MiB holds two thirds of the memory, and a second body needs as much.
	c, slow := d.raw(fmt.Sprintf("POST /v1/events HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", 1<<20) +
		strings.Repeat(" ", 1<<20-20))
	pgtest.Eventually(t, "1 MiB is counted", func() bool { return d.server.bodies.InUse() >= 1<<20 },
		func() any { return d.server.bodies.InUse() })
	if r := d.post(strings.Repeat(" ", 1<<20-18) + `{"event_name":"x"}`); r.status != 429 {
		t.Errorf("with the memory for bodies full: %d %s; want 429", r.status, r.body)
	}
	io.WriteString(c, `  {"event_name":"x"}`)
	if status, text := readReply(t, slow); status != 200 {
		t.Errorf("the slow client: %d %s; want 200", status, text)
	}
	if r := d.post(`{"event_name":"x"}`); r.status != 200 {
		t.Errorf("afterwards: %d %s; want 200", r.status, r.body)
	}
}

func TestConcurrencyIsBounded(t *testing.T) {
	m := &memory{hold: make(chan struct{}), inside: make(chan struct{}, 10)}
	d := open(t, m, tenants.Set{}, func(c *Config) { c.Concurrency = 2 })
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			if r := d.post(`{"event_name":"x"}`); r.status != 200 {
				t.Errorf("one of two: %d; want 200", r.status)
			}
		})
		<-m.inside
	}
	if r := d.post(`{"event_name":"x"}`); r.status != 429 || !strings.Contains(r.json.Detail, "ingest.concurrency") {
		t.Errorf("the third of two: %d %s; want 429", r.status, r.body)
	}
	close(m.hold)
	wg.Wait()
}
