package body

import (
	"crypto/tls"
	"errors"
	"io"
	"net"

	"github.com/valyala/fasthttp"
)

// ErrFraming ends a chunked body that is more framing than content.
var ErrFraming = errors.New("more than 4 KiB of the body are extensions of its chunks")

const (
	// framingBytes is how much of a chunked body may be framing, beside framingRatio for each byte of content: a chunk of
	// one byte is six on the wire.
	framingBytes = 4 << 10
	framingRatio = 8
	// tlsBytes is what TLS may have read ahead: two records.
	tlsBytes = 40 << 10
)

// Listen makes the framing of chunked bodies count, on the connections that it accepts. The HTTP library reads chunk
// extensions inside of one Read, however long they are.
func Listen(ln net.Listener) net.Listener { return listener{ln} }

type listener struct{ net.Listener }

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c}, nil
}

// conn counts what comes while a chunked body is read. One goroutine reads at a time.
type conn struct {
	net.Conn
	armed bool
	left  int // of framing
}

func (c *conn) NetConn() net.Conn { return c.Conn }

// Read is called once all that came before is used up, so what is left is exact.
func (c *conn) Read(p []byte) (int, error) {
	if c.armed && c.left < 0 {
		return 0, ErrFraming
	}
	n, err := c.Conn.Read(p)
	if c.armed {
		c.left -= n
	}
	return n, err
}

// Stream returns the body of a request as it comes, without its chunks; nil where there is none.
func Stream(ctx *fasthttp.RequestCtx) io.Reader {
	stream := ctx.RequestBodyStream()
	if stream == nil || ctx.Request.Header.ContentLength() >= 0 {
		return stream
	}
	under, slack := ctx.Conn(), framingBytes
	if t, ok := under.(*tls.Conn); ok {
		under, slack = t.NetConn(), framingBytes+tlsBytes
	}
	c, ok := under.(*conn)
	if !ok {
		return stream
	}
	if !c.armed {
		c.armed, c.left = true, slack
	}
	return &chunks{stream, c}
}

// chunks tells the connection what of a body was content.
type chunks struct {
	from io.Reader
	conn *conn
}

func (c *chunks) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	c.conn.left += n + framingRatio*n
	if err == io.EOF {
		c.conn.armed = false
	}
	return n, err
}
