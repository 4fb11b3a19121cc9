package ingest

import (
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/internal/tenants"
)

const streamHeader = "POST /v1/stream HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-ndjson\r\n"

// TestIdleStreamsRefuseNobody: streams of one tenant hold what has come of them, and together no more than a half.
func TestIdleStreamsRefuseNobody(t *testing.T) {
	d := open(t, &memory{}, twoTenants(t), smallReading)
	open := func(more string) {
		d.raw(streamHeader + "X-Write-Key: KEY_A\r\nContent-Encoding: zstd\r\nTransfer-Encoding: chunked\r\n\r\n" + more)
	}
	for range 33 {
		open("")
	}
	if got := d.inUse(t, 32*pieceBytes); got > 33*pieceBytes {
		t.Errorf("33 streams of which nothing came hold %d bytes; want 32 KiB each", got)
	}
	for range 33 {
		open("1\r\n\x28\r\n")
	}
	if got := d.inUse(t, 8<<20); got > 20<<20 {
		t.Errorf("the streams of one tenant hold %d bytes of 40 MiB; want at most half", got)
	}
	if r := d.post(strings.Repeat(" ", 3<<20)+`{"event_name":"x"}`, "X-Write-Key", "KEY_B"); r.status != 200 {
		t.Errorf("another tenant: %d %s; want 200", r.status, r.body)
	}
}

// limited has one tenant, which may send 10 events a second.
func limited(t *testing.T, change func(*Config)) *door {
	t.Helper()
	set, err := tenants.Parse("tenants.yaml", fmt.Sprintf(
		"tenants:\n  - {id: 1, name: a, keys: [\"sha256:%x\"], limits: {events-per-second: 10}}\n",
		sha256.Sum256([]byte("KEY_A"))))
	if err != nil {
		t.Fatal(err)
	}
	return open(t, &memory{}, set, change)
}

// TestStreamsEndWithTheirClients: those that wait for their tenant's limits see that their clients are gone.
func TestStreamsEndWithTheirClients(t *testing.T) {
	d := limited(t, func(c *Config) { c.IdleTimeout = 10 * time.Minute })
	var clients []net.Conn
	for range 20 {
		c, _ := d.raw(streamHeader + "X-Write-Key: KEY_A\r\nTransfer-Encoding: chunked\r\n\r\n5f5e100\r\n")
		clients = append(clients, c)
	}
	d.inUse(t, 20*pieceBytes-1)
	// The first events put the tenant into debt for minutes.
	text := strings.Repeat(`{"event_name":"x","properties":{"a":"`+strings.Repeat("a", 1000)+`"}}`+"\n", 2000)
	for _, c := range clients {
		go io.WriteString(c, text)
	}
	d.inUse(t, 20*(pieceBytes+streamBytes))
	for _, c := range clients {
		c.Close()
	}
	d.noMemoryHeld(t)
	pgtest.Eventually(t, "no stream is left", func() bool { return d.server.inFlight.Load() == 0 },
		func() any { return d.server.inFlight.Load() })
}

// TestStreamWaitsForLimitsNoLongerThanIdle: it ends with the index to send again from, and its events count as refused.
func TestStreamWaitsForLimitsNoLongerThanIdle(t *testing.T) {
	d := limited(t, func(c *Config) { c.IdleTimeout = 500 * time.Millisecond })
	k := d.stream(t, "X-Write-Key", "KEY_A")
	k.send(strings.Repeat("{\"event_name\":\"x\"}\n", 1000))
	if l := k.read(); l.Status != 0 || l.Stored == 0 {
		t.Fatalf("%+v; want the first events stored", l)
	}
	k.send("{\"event_name\":\"x\"}\n")
	for {
		l := k.read()
		if l.Status == 0 {
			continue
		}
		if l.Status != 429 || l.Index == 0 || !strings.Contains(l.Detail, "limits in the tenants file") {
			t.Errorf("last line %+v; want 429, and an index after the first events", l)
		}
		break
	}
	k.body.Close()
	d.noMemoryHeld(t)
	if got := testutil.ToFloat64(d.metrics.refused.WithLabelValues("1", refusedFull)); got == 0 {
		t.Error("the events that were not taken are in no counter")
	}
}
