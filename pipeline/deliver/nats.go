package deliver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice.example/sluice/pipeline"
	"sluice.example/sluice/pipeline/deliver/envelope"
)

// nats reads a destination that publishes to NATS JetStream.
func (r *reader) nats() {
	d := r.d
	allowPrivate := r.Bool("allow_private", false)
	d.web.endpoint = r.address("nats", "tls")
	config := r.tls()
	subject := r.String("subject")
	if subject == "" || strings.ContainsAny(subject, " \t\r\n*>") || strings.Contains("."+subject+".", "..") {
		r.Fault("subject", "needs subject: what to publish to, without wildcards")
	}
	options := []nats.Option{
		nats.Name(userAgent),
		nats.MaxReconnects(-1),
		nats.ReconnectBufSize(-1), // without a connection a publish fails at once, and is tried again by the outbox
		nats.Timeout(d.timeout),
		nats.NoEcho(),
	}
	if tokens := r.secrets("token"); len(tokens) == 1 {
		d.secrets = append(d.secrets, tokens...)
		options = append(options, nats.Token(tokens[0]))
	} else if len(tokens) > 1 {
		r.Fault("token_env", "takes one token")
	}
	if file := r.String("credentials_file"); file != "" {
		options = append(options, nats.UserCredentials(file))
	}
	if d.web.endpoint != nil && d.web.endpoint.tls {
		options = append(options, nats.Secure(config))
	}
	r.envelope(envelope.Plain)
	d.open = func(g guard) sink {
		opened := &natsSink{
			subject: subject,
			url:     d.web.endpoint.url,
			timeout: d.timeout,
			dialer:  newDialer(g, allowPrivate),

			envelope: d.envelope,
			tenants:  d.tenants,
		}
		opened.options = append(options[:len(options):len(options)],
			nats.SetCustomDialer(natsDialer{opened.dialer, d.timeout}))
		return opened
	}
}

// natsSink publishes and waits for the stream's acknowledgement. The first message connects; the client reconnects by
// itself then. The message's id makes the stream drop a repeat within its window of duplicates.
type natsSink struct {
	subject, url string
	timeout      time.Duration
	options      []nats.Option
	dialer       *dialer
	envelope     envelope.Kind
	tenants      envelope.Tenants

	mu         sync.Mutex
	closed     bool
	conn       *nats.Conn
	stream     jetstream.JetStream
	connecting *connecting // nil: nobody is
}

// connecting is an attempt to connect, for which any number of senders wait.
type connecting struct {
	done   chan struct{} // closed when the others are set
	stream jetstream.JetStream
	err    error
}

// connect returns the stream. It waits for a connection until the deadline, however many others do.
func (n *natsSink) connect(deadline time.Time) (jetstream.JetStream, error) {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return nil, nats.ErrConnectionClosed
	}
	if n.conn != nil {
		defer n.mu.Unlock()
		return n.stream, nil
	}
	c := n.connecting
	if c == nil {
		c = &connecting{done: make(chan struct{})}
		n.connecting = c
		go n.dial(c) // it ends by the client's own timeout, or with close
	}
	n.mu.Unlock()
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case <-c.done:
		return c.stream, c.err
	case <-timer.C:
		return nil, os.ErrDeadlineExceeded
	}
}

func (n *natsSink) dial(c *connecting) {
	defer close(c.done)
	conn, err := nats.Connect(n.url, n.options...)
	if err != nil {
		c.err = fmt.Errorf("connect: %w", err)
	} else if c.stream, err = jetstream.New(conn); err != nil {
		c.err = err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.connecting = nil
	switch {
	case conn == nil:
	case n.closed || c.err != nil:
		conn.Close()
		c.err = errors.Join(c.err, nats.ErrConnectionClosed)
	default:
		n.conn, n.stream = conn, c.stream
	}
}

func (n *natsSink) send(lease *pipeline.Lease, _, deadline time.Time) answer {
	stream, err := n.connect(deadline)
	if err != nil {
		return answer{err: err}
	}
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	m := nats.NewMsg(n.subject)
	m.Data = n.envelope.Append(nil, &lease.Message, n.tenants)
	setOwn(m.Header.Set, lease.Headers)
	n.envelope.Headers(func(name, value string) {
		if value != "" {
			m.Header.Set(name, value)
		}
	}, &lease.Message, n.tenants)
	if n.envelope != envelope.Plain {
		m.Header.Set("Content-Type", n.envelope.ContentType())
	}
	m.Header.Set("Idempotency-Key", lease.IdempotencyKey.String())
	m.Header.Set(jetstream.MsgIDHeader, dedupID(lease))
	if _, err := stream.PublishMsg(ctx, m, jetstream.WithRetryAttempts(0)); err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			err = errors.New("timeout")
		}
		return answer{err: err}
	}
	return answer{status: 200}
}

func (n *natsSink) abort() { n.close() }

func (n *natsSink) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = true
	n.dialer.closeAll()
	if n.conn != nil {
		n.conn.Close()
	}
}

// natsDialer checks addresses for the client, its reconnects among them.
type natsDialer struct {
	*dialer
	timeout time.Duration
}

func (d natsDialer) Dial(_, address string) (net.Conn, error) {
	return d.dial(address, time.Now().Add(d.timeout))
}
