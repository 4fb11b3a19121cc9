package pgtest

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/sourcegraph/conc"
)

// Proxy stands between a pool and the server, to break the connections of a test at a chosen place. It is safe for
// concurrent use and ends with the test.
type Proxy struct {
	network, address string // of the server
	listener         net.Listener
	url              string

	mu    sync.Mutex
	conns map[*proxied]struct{}
	hook  func(Message) Action
	gate  chan struct{} // closed: messages may pass
	down  bool
	seen  int
	all   conc.WaitGroup
}

// Message is one message of PostgreSQL's protocol on its way through.
type Message struct {
	// FromClient: the client sent it; otherwise the server did.
	FromClient bool
	// Type is its first byte, for example 'Q' (a query, from the client) or 'C' (a command is complete, from the
	// server). It is 0 for the first message of a client, which has none.
	Type byte
	// Body is what follows type and length. It is borrowed until the hook returns.
	Body []byte
	// Conn numbers the connection, from 1.
	Conn int
}

// SQL is the text of a statement that a client sends, "" for every other message.
func (m Message) SQL() string {
	if !m.FromClient {
		return ""
	}
	switch body := string(m.Body); m.Type {
	case 'Q':
		return strings.TrimSuffix(body, "\x00")
	case 'P': // name of the prepared statement, text, types
		if parts := strings.SplitN(body, "\x00", 3); len(parts) == 3 {
			return parts[1]
		}
	}
	return ""
}

// Tag is the command that the server reports as done, for example "COMMIT" or "COPY 5"; "" for every other message.
func (m Message) Tag() string {
	if m.FromClient || m.Type != 'C' {
		return ""
	}
	return strings.TrimSuffix(string(m.Body), "\x00")
}

// Action is what to do with a message.
type Action int

const (
	// Pass forwards it.
	Pass Action = iota
	// CutBefore closes the connection to both sides; the message is lost. On a client's "commit" the transaction is
	// certainly rolled back; on the server's "COMMIT" tag it is certainly committed and the client does not learn it.
	CutBefore
	// CutAfter forwards it, then closes the connection.
	CutAfter
	// Hang forwards neither this message nor any later one of the connection, in this direction, and leaves it open.
	Hang
)

// NewProxy listens on a loopback port for the server at address, which may be a Unix socket.
func NewProxy(t testing.TB, address string) *Proxy {
	t.Helper()
	cfg, err := pgx.ParseConfig(address)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	p := &Proxy{listener: listener, conns: map[*proxied]struct{}{}, gate: make(chan struct{})}
	close(p.gate)
	if strings.HasPrefix(cfg.Host, "/") {
		p.network, p.address = "unix", fmt.Sprintf("%s/.s.PGSQL.%d", cfg.Host, cfg.Port)
	} else {
		p.network, p.address = "tcp", net.JoinHostPort(cfg.Host, fmt.Sprint(cfg.Port))
	}
	u := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword(cfg.User, cfg.Password),
		Host:     listener.Addr().String(),
		Path:     "/" + cfg.Database,
		RawQuery: "sslmode=disable", // the proxy has to read what passes
	}
	p.url = u.String()
	p.all.Go(p.accept)
	t.Cleanup(func() {
		listener.Close()
		p.Cut()
		p.all.Wait()
	})
	return p
}

// URL is what to connect to.
func (p *Proxy) URL() string { return p.url }

// OnMessage has f decide about every message from now on, in place of the one before; nil lets all pass. It is called
// from many goroutines, one call at a time for each direction of a connection.
func (p *Proxy) OnMessage(f func(Message) Action) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hook = f
}

// Once makes a hook that does action to the first message that matches, and lets all others pass. done is closed when
// that has been decided.
func Once(action Action, match func(Message) bool) (hook func(Message) Action, done <-chan struct{}) {
	var mu sync.Mutex
	hit := make(chan struct{})
	return func(m Message) Action {
		mu.Lock()
		defer mu.Unlock()
		select {
		case <-hit:
			return Pass
		default:
		}
		if !match(m) {
			return Pass
		}
		close(hit)
		return action
	}, hit
}

// Cut closes every connection that there is.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.close()
	}
}

// SetDown has every new connection closed at once, as if no server listened. Cut ends those that there are.
func (p *Proxy) SetDown(down bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = down
}

// SetBlackHole stops forwarding on all connections, in both directions, and leaves them open: what a lost network looks
// like. Turned off again, what was held back goes on its way.
func (p *Proxy) SetBlackHole(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	open := isClosed(p.gate)
	switch {
	case on && open:
		p.gate = make(chan struct{})
	case !on && !open:
		close(p.gate)
	}
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Connections counts those that were accepted so far.
func (p *Proxy) Connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen
}

// proxied is one connection through the proxy.
type proxied struct {
	number         int
	client, server net.Conn
	closed         chan struct{}
	once           sync.Once
}

func (c *proxied) close() {
	c.once.Do(func() {
		close(c.closed)
		c.client.Close()
		c.server.Close()
	})
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // closed at the end of the test
		}
		server, err := new(net.Dialer).DialContext(context.Background(), p.network, p.address)
		if err != nil {
			client.Close() // the server is away, and that is what the client sees
			continue
		}
		p.mu.Lock()
		p.seen++
		c := &proxied{number: p.seen, client: client, server: server, closed: make(chan struct{})}
		if p.down {
			c.close()
			p.mu.Unlock()
			continue
		}
		p.conns[c] = struct{}{}
		p.mu.Unlock()
		p.all.Go(func() { p.forward(c, client, server, true) })
		p.all.Go(func() { p.forward(c, server, client, false) })
	}
}

// forward moves messages one way until either side ends.
func (p *Proxy) forward(c *proxied, from io.Reader, to io.Writer, fromClient bool) {
	defer func() {
		c.close()
		p.mu.Lock()
		delete(p.conns, c)
		p.mu.Unlock()
	}()
	first := fromClient // a client's first message has no type
	for {
		head := make([]byte, 5)
		if first {
			head = head[:4]
		}
		if _, err := io.ReadFull(from, head); err != nil {
			return
		}
		m := Message{FromClient: fromClient, Conn: c.number}
		if !first {
			m.Type = head[0]
		}
		first = false
		size := binary.BigEndian.Uint32(head[len(head)-4:])
		if size < 4 {
			return
		}
		raw := append(head, make([]byte, size-4)...)
		m.Body = raw[len(head):]
		if _, err := io.ReadFull(from, m.Body); err != nil {
			return
		}
		p.mu.Lock()
		gate, hook := p.gate, p.hook
		p.mu.Unlock()
		select {
		case <-gate:
		case <-c.closed:
			return
		}
		action := Pass
		if hook != nil {
			action = hook(m)
		}
		switch action {
		case CutBefore:
			return
		case Hang:
			<-c.closed
			return
		}
		if _, err := to.Write(raw); err != nil || action == CutAfter {
			return
		}
	}
}
