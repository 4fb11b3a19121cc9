package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice.example/sluice/internal/pgtest"
)

// TestHostileConnectionsInBoundedMemory: 100 connections of each kind of client that harms others, at once, keep the
// process within its three bounds and 100 MiB, and an honest client beside them is served.
func TestHostileConnectionsInBoundedMemory(t *testing.T) {
	const (
		connections = 100
		reading     = 96 << 20
		buffered    = 64 << 20
		delivered   = 16 << 20
	)
	file := filepath.Join(t.TempDir(), "tenants.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, "tenants:\n  - {id: 1, name: a, keys: [\"sha256:%x\"]}\n"+
		"  - {id: 2, name: b, keys: [\"sha256:%x\"]}\n",
		sha256.Sum256([]byte("KEY_A")), sha256.Sum256([]byte("KEY_B"))), 0o600); err != nil {
		t.Fatal(err)
	}
	node := startNode(t, pgtest.URL(t), "--tenants", file, "--ingest.max-reading-bytes", fmt.Sprint(reading),
		"--buffer.max-bytes", fmt.Sprint(buffered), "--deliver.max-bytes", fmt.Sprint(delivered))
	address := strings.TrimSuffix(strings.TrimPrefix(node.Events(), "http://"), "/v1/events")

	zip := func(text string) string {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		io.WriteString(w, text)
		w.Close()
		return b.String()
	}
	blanks := strings.Repeat(" ", 30<<20)
	post := func(path, header, body string) string {
		return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\n%sContent-Length: %d\r\n\r\n%s", path, header, len(body), body)
	}
	bomb := zip(blanks)
	objects := zip(strings.Repeat(`{"a":{}},`, 1<<20))
	form := zip("data=" + base64.StdEncoding.EncodeToString([]byte(blanks[:20<<20])))
	const coded = "Content-Encoding: gzip\r\n"
	kinds := []struct{ name, request string }{
		{"a bomb without a key", post("/v1/batch", coded, bomb)},
		{"a bomb of a form without a key", post("/e/", coded, form)},
		{"a bomb with a key", post("/v1/events", coded+"X-Write-Key: KEY_A\r\n", bomb)},
		{"a bomb of objects with a key", post("/v1/events", coded+"X-Write-Key: KEY_A\r\n",
			zip("["+strings.Repeat(`{"a":{}},`, 1<<20)+"{}]"))},
		{"a bomb of objects without a key", post("/v1/batch", coded, objects)},
		{"a body that stops", strings.Replace(post("/v1/events", "X-Write-Key: KEY_A\r\n", blanks[:1<<20]),
			"Content-Length: 1", "Content-Length: 7", 1)},
		{"a stream of zstd that stops", "POST /v1/stream HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-ndjson\r\n" +
			"X-Write-Key: KEY_A\r\nContent-Encoding: zstd\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n\x28\r\n"},
		{"a stream that stops inside of a line", "POST /v1/stream HTTP/1.1\r\nHost: x\r\n" +
			"Content-Type: application/x-ndjson\r\nX-Write-Key: KEY_A\r\nTransfer-Encoding: chunked\r\n\r\n" +
			"80000\r\n" + blanks[:512<<10]},
		{"an extension of a chunk without end", "POST /v1/events HTTP/1.1\r\nHost: x\r\nX-Write-Key: KEY_A\r\n" +
			"Transfer-Encoding: chunked\r\n\r\n1;" + strings.Repeat("x", 1<<20)},
	}
	for _, kind := range kinds {
		var all sync.WaitGroup
		for range connections {
			all.Go(func() {
				c, err := net.Dial("tcp", address)
				if err != nil {
					t.Errorf("%s: %v", kind.name, err)
					return
				}
				t.Cleanup(func() { c.Close() })
				c.SetDeadline(time.Now().Add(10 * time.Second))
				io.WriteString(c, kind.request) // the server may well hang up before its end
				if strings.HasPrefix(kind.name, "a bomb") {
					if resp, err := http.ReadResponse(bufio.NewReader(c), nil); err == nil && resp.StatusCode < 400 {
						t.Errorf("%s: %d; want a refusal", kind.name, resp.StatusCode)
					}
				}
			})
		}
		all.Wait()
		res, err := http.DefaultClient.Do(request(t, node.Events(), "KEY_B", `{"event_name":"honest"}`))
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != 200 {
			t.Errorf("an honest client beside %d of %s: %d; want 200", connections, kind.name, res.StatusCode)
		}
		peak := residentBytes(t, node.Pid, "VmHWM")
		t.Logf("%s: at most %d MiB so far", kind.name, peak>>20)
		if most := reading + buffered + delivered + 100<<20; peak > most {
			t.Fatalf("%s: the process had %d MiB; want at most %d", kind.name, peak>>20, most>>20)
		}
	}
}

func request(t *testing.T, url, key, body string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), "POST", url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-Write-Key", key)
	return r
}
