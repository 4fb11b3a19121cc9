package ingest

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"sluice.example/sluice/internal/tenants"
)

func TestHTTPVersions(t *testing.T) {
	d := open(t, &memory{}, tenants.Set{}, nil)
	const event = `{"event_name":"x"}`
	for version, want := range map[string]int{"HTTP/1.1": 200, "HTTP/1.0": 200, "HTTP/2.0": 505, "HTTP/9.9": 505,
		"HTTP/0.9": 505} {
		_, r := d.raw(fmt.Sprintf("POST /v1/events %s\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", version,
			len(event), event))
		if status, text := readReply(t, r); status != want {
			t.Errorf("%s: %d %s; want %d", version, status, text, want)
		}
	}
}

// TestChunkExtensionsCount: what is not content is bounded, in a body and in a stream, and small chunks are taken.
func TestChunkExtensionsCount(t *testing.T) {
	d := open(t, &memory{}, tenants.Set{}, nil)
	head := "POST /v1/events HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
	c, r := d.raw(head + "1;")
	go func() {
		for range 300 { // MiB, if nobody stops it
			if _, err := io.WriteString(c, strings.Repeat("x", 1<<20)); err != nil {
				return
			}
		}
	}()
	if status, text := readReply(t, r); status != 400 || !strings.Contains(text, "extensions") {
		t.Errorf("an extension without end: %d %s; want 400", status, text)
	}
	_, r = d.raw(head + strings.Repeat("1;"+strings.Repeat("x", 1000)+"\r\n \r\n", 100) + "0\r\n\r\n")
	if status, text := readReply(t, r); status != 400 {
		t.Errorf("100 KB of extensions of 100 chunks: %d %s; want 400", status, text)
	}
	small := strings.Repeat("1\r\n \r\n", 50_000)
	_, r = d.raw(head + small + "12;note=\"a\"\r\n{\"event_name\":\"x\"}\r\n0\r\n\r\n" + head +
		"12\r\n{\"event_name\":\"y\"}\r\n0\r\n\r\n")
	for range 2 {
		if status, text := readReply(t, r); status != 200 {
			t.Errorf("small chunks, and another request: %d %s; want 200", status, text)
		}
	}
	_, r = d.raw(strings.Replace(streamHeader, "\r\n", "\r\nTransfer-Encoding: chunked\r\n", 1) + "\r\n1;" +
		strings.Repeat("x", 100_000))
	if status, text := readReply(t, r); status != 200 || !strings.Contains(text, `"status":400`) {
		t.Errorf("a stream: %d %s; want a last line with 400", status, text)
	}
}

// TestExpectOfALongBody: a client that asks first is told at once that its body is too long, and no body is waited for.
func TestExpectOfALongBody(t *testing.T) {
	d := open(t, &memory{}, tenants.Set{}, nil)
	ask := func(path string, length int) string {
		t.Helper()
		_, r := d.raw(fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-ndjson\r\n"+
			"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n", path, length))
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		return line
	}
	for _, c := range []struct {
		path   string
		length int
		want   string
	}{
		{"/v1/events", 9 << 20, "413"}, {"/v1/events", 1 << 20, "100"}, {"/batch", 9 << 20, "413"},
		{"/v1/batch", 9 << 20, "400"},  // what makes Segment's clients give up
		{"/v1/stream", 9 << 20, "100"}, // of any length
	} {
		if got := ask(c.path, c.length); !strings.Contains(got, " "+c.want+" ") {
			t.Errorf("%s of %d bytes: %q; want %s", c.path, c.length, got, c.want)
		}
	}
}
