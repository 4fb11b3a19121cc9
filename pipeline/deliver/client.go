package deliver

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/valyala/fasthttp"
)

// client sends requests to one server, over connections that it keeps. It is HTTP/1.1 over fasthttp's Request and
// Response; the connections are its own, since an answer has to belong to the request before it: a connection on which
// anything arrives that no request asked for is closed, and so is one that is not in a known state.
//
// Safe for concurrent use. It opens as many connections as there are calls of do at the same time.
type client struct {
	dialer *dialer
	addr   string
	tls    *tls.Config // nil: no TLS

	mu     sync.Mutex
	idle   []*serverConn // the one used last is at the end
	reaper *time.Timer   // runs while something is idle
	closed bool
	// single, until then: every request gets a connection of its own, since the server sends answers unasked.
	single time.Time
}

const (
	// maxIdle is how long a connection is kept unused.
	maxIdle = 30 * time.Second
	// maxAge is how long a connection is used. After it the name is looked up again, so that a server that moved is
	// found although the old one still answers. A guess.
	maxAge = 5 * time.Minute
	// singleFor is how long connections are not kept after a server sent an answer that no request asked for. A guess.
	singleFor = 10 * time.Minute
	// maxHeaders is how much of an answer's status line and headers is read, in bytes. CDNs and frameworks in debug
	// mode send some ten KiB. The status of a longer one counts; its connection is closed.
	maxHeaders = 65 << 10
	// maxInterim is the most interim answers (1xx) before the final one.
	maxInterim = 10
	// readBuffer is what a connection reads by, unless headers are longer.
	readBuffer = 4 << 10
)

// serverConn is a connection to a server. One goroutine at a time uses it.
type serverConn struct {
	net.Conn          // TLS where it is used
	raw      net.Conn // below TLS
	socket   *socket
	br       *bufio.Reader
	born     time.Time
	used     time.Time
}

var writers = sync.Pool{New: func() any { return bufio.NewWriterSize(nil, 4<<10) }}

var (
	errUnsolicited = errors.New("the receiver sent something that no request asked for")
	errStatus      = errors.New("the receiver's answer is not HTTP/1.x with a status from 100 to 599")
	errInterim     = errors.New("the receiver sent interim answers and no final one")
)

// do sends a request and reads its answer, all of which ends at the deadline. A request that fails on a connection that
// was kept, before any answer, is sent once more on a new one: the server had closed the old one.
func (c *client) do(req *fasthttp.Request, resp *fasthttp.Response, deadline time.Time) (status int, err error) {
	if conn := c.kept(); conn != nil {
		status, stale, err := c.exchange(conn, req, resp, deadline)
		if !stale {
			return status, err
		}
	}
	conn, err := c.connect(deadline)
	if err != nil {
		return 0, err
	}
	status, _, err = c.exchange(conn, req, resp, deadline)
	return status, err
}

// kept returns a connection that can be used again; nil: there is none.
func (c *client) kept() *serverConn {
	for {
		c.mu.Lock()
		n := len(c.idle)
		if n == 0 {
			c.mu.Unlock()
			return nil
		}
		conn := c.idle[n-1]
		c.idle[n-1] = nil
		c.idle = c.idle[:n-1]
		c.mu.Unlock()
		now := time.Now()
		if now.Sub(conn.used) < maxIdle && now.Sub(conn.born) < maxAge {
			err := conn.quiet()
			if err == nil {
				return conn
			}
			c.distrust(err)
		}
		conn.Close()
	}
}

// keep takes a connection back after an answer that left it in a known state.
func (c *client) keep(conn *serverConn) {
	now := time.Now()
	conn.used = now
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || now.Before(c.single) {
		conn.Close()
		return
	}
	c.idle = append(c.idle, conn)
	if c.reaper == nil {
		c.reaper = time.AfterFunc(maxIdle, c.reap)
	}
}

// reap closes connections that nobody used for long.
func (c *client) reap() {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for n < len(c.idle) && time.Since(c.idle[n].used) >= maxIdle {
		c.idle[n].Close()
		n++
	}
	c.idle = append(c.idle[:0], c.idle[n:]...)
	c.reaper = nil
	if len(c.idle) > 0 && !c.closed {
		c.reaper = time.AfterFunc(maxIdle, c.reap)
	}
}

// close closes the connections that nobody uses, and keeps none from now on.
func (c *client) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, conn := range c.idle {
		conn.Close()
	}
	c.idle = nil
	if c.reaper != nil {
		c.reaper.Stop()
	}
}

// distrust notes a server that sent an answer unasked: it may do so again, and in the middle of another exchange that
// can't be told from the answer to it.
func (c *client) distrust(err error) {
	if !errors.Is(err, errUnsolicited) {
		return
	}
	c.mu.Lock()
	c.single = time.Now().Add(singleFor)
	c.mu.Unlock()
}

func (c *client) connect(deadline time.Time) (*serverConn, error) {
	raw, err := c.dialer.dial(c.addr, deadline)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	sock, err := newSocket(raw)
	if err != nil {
		raw.Close()
		return nil, err
	}
	conn := &serverConn{Conn: raw, raw: raw, socket: sock, born: now}
	if c.tls != nil {
		secure := tls.Client(raw, c.tls)
		ctx, cancel := context.WithDeadline(context.Background(), deadline)
		defer cancel()
		if err := secure.HandshakeContext(ctx); err != nil {
			raw.Close()
			return nil, fmt.Errorf("TLS: %w", err)
		}
		conn.Conn = secure
	}
	conn.br = bufio.NewReaderSize(conn.Conn, readBuffer)
	if err := conn.quiet(); err != nil {
		c.distrust(err)
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// exchange writes a request and reads its answer. It keeps the connection or closes it. stale reports that the server
// closed the connection before it could answer.
func (c *client) exchange(conn *serverConn, req *fasthttp.Request, resp *fasthttp.Response, deadline time.Time,
) (status int, stale bool, err error) {
	if err := conn.SetDeadline(deadline); err != nil {
		conn.Close()
		return 0, true, err
	}
	bw := writers.Get().(*bufio.Writer)
	bw.Reset(conn.Conn)
	writeErr := req.Write(bw)
	if writeErr == nil {
		writeErr = bw.Flush()
	}
	bw.Reset(nil)
	writers.Put(bw)
	if isTimeout(writeErr) {
		conn.Close()
		return 0, false, writeErr
	}
	// A server may refuse a request before it has read all of it.
	status, whole, err := conn.answer(resp)
	if err != nil && status == 0 {
		conn.Close()
		gone := writeErr != nil || errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)
		if writeErr != nil {
			err = writeErr
		}
		return 0, gone && !isTimeout(err), err
	}
	if err == nil && conn.br.Buffered() > 0 {
		c.distrust(errUnsolicited)
		whole = false
	}
	if err != nil || writeErr != nil || !whole || resp.ConnectionClose() {
		conn.Close()
	} else {
		c.keep(conn)
	}
	return status, false, err
}

// answer reads an answer. whole reports that it was read to its end; the status counts without that. With an error, the
// status is 0 where none was read.
func (s *serverConn) answer(resp *fasthttp.Response) (status int, whole bool, err error) {
	for interim := 0; ; interim++ {
		if status, err = s.status(); err != nil {
			return 0, false, err
		}
		if err := resp.Header.Read(s.br); err != nil {
			if !isSmall(err) {
				return status, false, fmt.Errorf("after HTTP %d: %w", status, err)
			}
			if err := s.readLongHeaders(resp); isSmall(err) && status >= 200 {
				resp.Reset() // what it says beside its status is not known
				return status, false, nil
			} else if err != nil {
				return status, false, fmt.Errorf("after HTTP %d: %w", status, err)
			}
		}
		if status >= 200 || status == http.StatusSwitchingProtocols {
			break
		}
		if interim == maxInterim {
			return 0, false, errInterim
		}
	}
	if status == http.StatusSwitchingProtocols || status == http.StatusNoContent || status == http.StatusNotModified {
		return status, status != http.StatusSwitchingProtocols, nil
	}
	err = resp.ReadBody(s.br, maxAnswer)
	if err == nil && resp.Header.ContentLength() == -1 {
		err = resp.Header.ReadTrailer(s.br)
	}
	switch {
	case errors.Is(err, fasthttp.ErrBodyTooLarge): // it was still given
		return status, false, nil
	case err != nil:
		return status, false, fmt.Errorf("after HTTP %d: %w", status, err)
	}
	return status, true, nil
}

// readLongHeaders reads headers that the reader has no room for, with a larger one.
func (s *serverConn) readLongHeaders(resp *fasthttp.Response) error {
	if s.br.Size() < maxHeaders {
		begun, _ := s.br.Peek(s.br.Buffered())
		rest := io.MultiReader(bytes.NewReader(bytes.Clone(begun)), s.Conn)
		s.br = bufio.NewReaderSize(rest, maxHeaders)
	}
	return resp.Header.Read(s.br)
}

func isSmall(err error) bool {
	var small *fasthttp.ErrSmallBuffer
	return errors.As(err, &small)
}

// status waits for a status line and reads the status from it, without consuming it.
func (s *serverConn) status() (int, error) {
	const form = "HTTP/1.1 200"
	line, err := s.br.Peek(len(form))
	if err != nil {
		if len(line) > 0 && errors.Is(err, io.EOF) {
			return 0, errStatus
		}
		return 0, err
	}
	status, err := strconv.ParseUint(string(line[len(form)-3:]), 10, 16)
	if !bytes.HasPrefix(line, []byte("HTTP/1.")) || line[len(form)-4] != ' ' || err != nil || status < 100 ||
		status > 599 {
		return 0, errStatus
	}
	return int(status), nil
}

// quiet returns an error where something arrived on a connection that waits for the next request, or it was closed.
func (s *serverConn) quiet() error {
	if s.Conn != s.raw {
		// What TLS has read already; a deadline in the past keeps it from waiting for more.
		if err := s.readsNothing(time.Unix(1, 0)); err != nil {
			return err
		}
	}
	pending, err := s.socket.pending()
	switch {
	case err != nil:
		return err
	case !pending:
		return nil
	case s.Conn == s.raw:
		return errUnsolicited
	}
	// Records of TLS itself, such as session tickets, are nothing to worry about.
	return s.readsNothing(time.Now().Add(2 * time.Millisecond))
}

func (s *serverConn) readsNothing(deadline time.Time) error {
	if err := s.SetReadDeadline(deadline); err != nil {
		return err
	}
	n, err := s.Read(make([]byte, 1))
	switch {
	case n > 0:
		return errUnsolicited
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil
	}
	return err
}

// socket looks at a connection without reading from it. What one look needs is made once.
type socket struct {
	raw  syscall.RawConn
	look func(fd uintptr)
	n    int
	err  error
}

func newSocket(c syscall.Conn) (*socket, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	s := &socket{raw: raw}
	b := make([]byte, 1)
	s.look = func(fd uintptr) {
		s.n, _, s.err = syscall.Recvfrom(int(fd), b, syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	}
	return s, nil
}

// pending reports whether bytes wait to be read, and returns io.EOF where the other side closed the connection.
func (s *socket) pending() (bool, error) {
	err := s.raw.Control(s.look) // unlike Read it minds no deadline
	switch {
	case err != nil:
		return false, err
	case errors.Is(s.err, syscall.EAGAIN) || errors.Is(s.err, syscall.EINTR):
		return false, nil
	case s.err != nil:
		return false, s.err
	case s.n == 0:
		return false, io.EOF
	}
	return true, nil
}

func isTimeout(err error) bool {
	if err == nil {
		return false
	}
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout() || errors.Is(err, fasthttp.ErrTimeout)
}
