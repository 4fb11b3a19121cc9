package main

import (
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/inbox"
	"sluice.example/sluice/internal/localpg"
	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/internal/receiver"
)

// PostgreSQL is killed five times while events come in and messages go out. Every acknowledged event is stored once,
// and every message reaches the receiver's own books once.
func TestPostgresKilledUnderLoad(t *testing.T) {
	t.Parallel()
	verifier, err := inbox.NewStandardWebhooks(testSecret)
	if err != nil {
		t.Fatal(err)
	}
	sink := startReceiver(t, func(o *receiver.Options) { o.Verifiers = []inbox.Verifier{verifier} })
	dir := publicDir(t) + "/data"
	node := startNode(t, "", append(writeRules(t, sink.URL, "[50ms]"), "--data-dir", dir)...)
	at := time.Now()
	acknowledged := map[string]bool{}
	var mu sync.Mutex
	var stop atomic.Bool
	var clients sync.WaitGroup
	defer clients.Wait()
	defer stop.Store(true)
	for i := range 4 {
		clients.Go(func() {
			c := client(t)
			for n := 0; !stop.Load(); n++ {
				ids, events := map[string]bool{}, []string(nil)
				for e := range 5 {
					id := fmt.Sprintf("c%d-%d-%d", i, n, e)
					ids[id] = true
					events = append(events, testEvent(id, at))
				}
				for !stop.Load() { // as a client would: until it is taken
					if r := postEvents(c, node.Events(), events...); r.err == nil && r.status == 200 {
						if r.Stored+r.Duplicate != int64(len(events)) {
							t.Errorf("%+v; want all stored, now or by the try before", r.answer)
						}
						mu.Lock()
						maps.Copy(acknowledged, ids)
						mu.Unlock()
						break
					}
					time.Sleep(10 * time.Millisecond) // sooner than Retry-After says
				}
			}
		})
	}
	taken := func() int { mu.Lock(); defer mu.Unlock(); return len(acknowledged) }
	accepted := func() int64 {
		var stats receiver.Stats
		getJSON(t, sink.URL+"/stats", &stats)
		return stats.Accepted
	}
	for i := range 5 {
		events, messages := taken(), accepted()
		pgtest.Eventually(t, fmt.Sprintf("before kill %d events are taken and messages sent", i+1), func() bool {
			return taken() >= events+100 && accepted() >= messages+50
		})
		killPostgres(t, dir)
	}
	events := taken()
	pgtest.Eventually(t, "events are taken after the last kill", func() bool { return taken() >= events+100 })
	stop.Store(true)
	clients.Wait()

	// The last events that were taken may have been committed just before the last kill.
	pgtest.Eventually(t, "PostgreSQL is back", func() bool {
		conn, err := pgx.Connect(t.Context(), node.Database)
		return err == nil && conn.Close(t.Context()) == nil
	})
	conn := connect(t, node.Database)
	pgtest.Eventually(t, "everything decided is delivered", func() bool {
		return query1(t, conn, `select count(*) from outbox where status in ('pending', 'failed')`) == 0
	})
	found := stored(t, conn)
	checkOnce(t, acknowledged, found)
	if n := query1(t, conn, `select count(*) from outbox where status = 'sent'`); n != int64(len(found)) ||
		accepted() != n {
		t.Errorf("%d events stored, %d messages sent, %d different ones at the receiver; want the same of each", len(found),
			n, accepted())
	}
}

// killPostgres kills the private server of a data directory, which its program then starts again.
func killPostgres(t *testing.T, dir string) {
	t.Helper()
	var server localpg.Running
	pgtest.Eventually(t, "the private PostgreSQL runs", func() bool {
		var err error
		server, err = localpg.Find(dir)
		return err == nil && server.Alive()
	})
	if err := syscall.Kill(server.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}
