package ingest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"sluice.example/sluice/internal/wait"
	"sluice.example/sluice/pipeline"
	"sluice.example/sluice/pipeline/ingest/body"
)

const (
	// streamBytes is how much of a stream is read ahead while the events before it are written. Together with the chunk
	// that is being written, as long or as long as the longest line, and its events it is what a stream holds in memory.
	// It is counted as it comes.
	streamBytes = 256 << 10
	// pieceBytes is what is read at once. A stream holds it from its beginning on.
	pieceBytes = 32 << 10
)

// stream answers POST /v1/stream: NDJSON of any length, with a line of verdicts for each chunk as soon as that is
// committed. A chunk is what came in while the one before was written, so a slow client gets each event's verdict at
// once and a fast one gets large batches. While the pipeline is full, the stream is not read on; it is not refused.
//
// One goroutine reads; fasthttp's own calls Read, in which the rest is done, and Close at the end.
type stream struct {
	s      *Server
	tenant int32
	conn   net.Conn

	// The reader's side. Each of the two channels holds one nudge.
	mu      sync.Mutex
	buf     []byte
	err     error // why no more will come; io.EOF is the end
	filled  chan struct{}
	emptied chan struct{}
	gone    context.Context // ends with Close
	leave   context.CancelFunc
	linger  time.Time // set before gone ends: until when the rest is read and dropped
	reading sync.WaitGroup
	undo    func() bool // of the hook on the drain

	memory body.Hold // under mu

	// The side of Read.
	chunk    []byte
	offset   int  // of the chunk's first byte in the stream
	skipping bool // the rest of a line that is too long
	total    tally
	out      []byte
	sent     int
	ended    bool
	key      []byte
	trace    *pipeline.Trace
	admitted atomic.Pointer[callers] // under which the key was looked up last
	untaken  bool                    // the last events were not handed to the buffer
}

// tally counts verdicts.
type tally struct{ events, stored, duplicate, rejected int }

// stream opens the answer; everything else happens while it is written.
func (s *Server) stream(ctx exchange) {
	header := &ctx.Request.Header
	who, ok := s.authenticate(ctx)
	if !ok {
		return
	}
	if lines, ok := mediaType(header.ContentType()); !ok || !lines {
		ctx.Response.Header.Set("Accept", "application/x-ndjson")
		problem(ctx, 415, "unsupported-media-type",
			fmt.Sprintf("Content-Type %q is not that of a stream, application/x-ndjson", cut(header.ContentType())), -1)
		return
	}
	st := &stream{
		s:       s,
		tenant:  who.tenant,
		key:     bytes.Clone(who.key),
		memory:  body.NewHold(s.bodies.Tenant(who.tenant)),
		conn:    ctx.Conn(),
		filled:  make(chan struct{}, 1),
		emptied: make(chan struct{}, 1),
	}
	if s.cfg.TraceContext {
		st.trace = requestTrace(header)
	}
	var from io.Reader = bytes.NewReader(nil)
	if stream := body.Stream(ctx.RequestCtx); stream != nil {
		from = stream
	}
	from, open, failed := st.source(string(bytes.ToLower(header.ContentEncoding())), from, header.ContentLength())
	if failed != nil {
		s.fail(ctx, failed)
		return
	}
	st.gone, st.leave = context.WithCancel(context.Background())
	st.undo = context.AfterFunc(s.drain, func() { st.conn.SetReadDeadline(time.Now()) })
	st.reading.Go(func() { st.read(from, open) })
	ctx.Response.Header.SetContentType("application/x-ndjson")
	ctx.Response.ImmediateHeaderFlush = true
	ctx.Response.SetBodyStream(st, -1)
}

// opener begins to decompress, which can't be done without reading. done returns what it took.
type opener func(from io.Reader) (text io.Reader, done func(), err error)

// source counts the stream's memory and finds out how it is compressed.
func (st *stream) source(encoding string, from io.Reader, length int) (io.Reader, opener, *body.Failure) {
	r := st.s.bodies
	plain := func(from io.Reader) (io.Reader, func(), error) { return from, func() {}, nil }
	open := plain
	switch encoding {
	case "", "identity":
	case "gzip", "x-gzip":
		open = func(from io.Reader) (io.Reader, func(), error) {
			from, err := st.begun(from, body.GzipBytes)
			if err != nil {
				return nil, func() {}, err
			}
			z := r.Gzip()
			return z, func() { r.PutGzip(z) }, z.Reset(from)
		}
	case "zstd":
		open = func(from io.Reader) (io.Reader, func(), error) {
			from, err := st.begun(from, body.ZstdBytes)
			if err != nil {
				return nil, func() {}, err
			}
			z, err := body.ZstdStream(from)
			if err != nil {
				return nil, func() {}, err
			}
			return z, z.Close, nil
		}
	default:
		return nil, nil, body.UnknownEncoding([]byte(encoding))
	}
	if !r.Reserve(&st.memory, pieceBytes) {
		return nil, nil, body.NoRoom()
	}
	return &patient{st, from, length}, open, nil
}

// begun waits for the first byte of a stream, and then for the memory to decompress it.
func (st *stream) begun(from io.Reader, need int) (io.Reader, error) {
	first := bufio.NewReaderSize(from, 4<<10)
	if _, err := first.Peek(1); err != nil {
		return nil, err
	}
	return first, st.hold(need)
}

// patient allows the client ingest.idle-timeout for each piece.
type patient struct {
	st   *stream
	from io.Reader
	left int // of Content-Length; negative without one
}

func (p *patient) Read(b []byte) (int, error) {
	// Close and the drain set deadlines of their own. One of them that came before this one is seen after it.
	p.st.conn.SetReadDeadline(time.Now().Add(p.st.s.cfg.IdleTimeout))
	if p.st.gone.Err() != nil {
		p.st.conn.SetReadDeadline(p.st.linger)
	} else if p.st.s.drain.Err() != nil {
		return 0, pipeline.ErrClosed
	}
	n, err := p.from.Read(b)
	p.st.s.metrics.wire.Add(float64(n))
	if p.left >= 0 {
		if p.left -= n; err == io.EOF && p.left > 0 {
			err = io.ErrUnexpectedEOF
		}
	}
	return n, err
}

// read fills buf until the stream ends.
func (st *stream) read(wire io.Reader, open func(io.Reader) (io.Reader, func(), error)) {
	from, done, err := open(wire)
	defer done()
	piece := make([]byte, pieceBytes)
	for {
		var n int
		if err == nil {
			n, err = from.Read(piece)
		}
		if st.gone.Err() == nil {
			if full := st.keep(piece[:n]); full != nil && (err == nil || err == io.EOF) {
				err = full
			}
		}
		st.mu.Lock()
		st.err = err
		full := len(st.buf) >= streamBytes
		st.mu.Unlock()
		wait.Nudge(st.filled)
		if err != nil {
			return
		}
		for full && st.gone.Err() == nil {
			select {
			case <-st.emptied:
			case <-st.gone.Done():
			}
			st.mu.Lock()
			full = len(st.buf) >= streamBytes
			st.mu.Unlock()
		}
	}
}

// more appends what has come in to chunk, and waits for some where there is none. The error is that of the end.
func (st *stream) more() error {
	for begin := time.Now(); ; {
		if err := st.revoked(); err != nil {
			return err
		}
		n, err := st.takeOver()
		if err == errNoRoom {
			if err := st.pause(100*time.Millisecond, begin, errNoRoom); err != nil {
				return err
			}
			continue
		}
		if n > 0 {
			wait.Nudge(st.emptied)
			return nil
		}
		if err != nil {
			return err
		}
		select {
		case <-st.filled: // the reader always ends with a nudge
		case <-st.admitted.Load().replaced:
		}
	}
}

// Read returns the next line of the answer.
func (st *stream) Read(p []byte) (n int, err error) {
	if st.sent == len(st.out) {
		if st.ended {
			return 0, io.EOF
		}
		st.out, st.sent = st.out[:0], 0
		st.next()
		st.conn.SetWriteDeadline(time.Now().Add(writeTimeout))
	}
	n = copy(p, st.out[st.sent:])
	st.sent += n
	return n, nil
}

// next makes one line of the answer out of the next lines of the stream.
func (st *stream) next() {
	defer func() {
		if p := recover(); p != nil {
			st.s.metrics.panics.Inc()
			st.s.log.Error("ingest: panic while answering a stream", "panic", p, "stack", string(debug.Stack()))
			st.out = st.out[:0]
			st.end(500, "bug", "the server hit a bug; its log has the details")
		}
	}()
	d := st.s.decoders.Get().(*decoder)
	defer st.s.decoders.Put(d)
	for {
		lines, rest, last, err := st.lines()
		if err != nil {
			st.fail(err)
			return
		}
		d.reset(&st.s.cfg, st.tenant, time.Now())
		d.from.shift = st.offset
		st.offset += len(st.chunk) - len(rest)
		if st.skipping {
			d.reject("", fmt.Sprintf("the line is longer than %d bytes (ingest.max-event-bytes)",
				st.s.cfg.MaxEventBytes), causeTooLong)
		} else if m := d.lines(lines); m != nil {
			panic(m.detail) // lines returns no more events than a request may hold
		}
		events := d.take()
		if d.traced {
			setTraces(events, st.trace)
		}
		st.s.metrics.decoded.Add(float64(len(lines)))
		size := len(lines)
		st.chunk = st.chunk[:copy(st.chunk, rest)]
		if d.count > 0 {
			st.s.metrics.receivedEvents(st.tenant, d.count)
			st.s.metrics.rejectedEvents(st.tenant, d.rejected)
			if !st.write(events, d, size) {
				return
			}
		}
		if last {
			st.finish()
			return
		}
		if d.count > 0 {
			return
		}
	}
}

// lines returns the whole lines that have come in, no more than a request may hold events, and what is left. last
// reports that they end the stream. For a line that is too long it returns nothing, sets skipping, and drops the rest.
func (st *stream) lines() (lines, rest []byte, last bool, err error) {
	skipped := st.skipping
	st.skipping = false
	for {
		if end := nthLine(st.chunk, st.s.cfg.MaxEvents); end > 0 {
			if skipped { // up to here it belongs to the line that was rejected already
				end = bytes.IndexByte(st.chunk, '\n') + 1
				st.offset += end
				st.chunk = st.chunk[:copy(st.chunk, st.chunk[end:])]
				skipped = false
				continue
			}
			return st.chunk[:end], st.chunk[end:], false, nil
		}
		if skipped {
			st.offset += len(st.chunk)
			st.chunk = st.chunk[:0]
		} else if len(st.chunk) > st.s.cfg.MaxEventBytes {
			st.skipping = true
			return nil, nil, false, nil
		}
		switch err := st.more(); {
		case errors.Is(err, io.EOF):
			if skipped {
				return nil, nil, true, nil
			}
			return st.chunk, nil, true, nil
		case err != nil:
			return nil, nil, false, err
		}
	}
}

// nthLine returns the index after the n-th line, or after the last whole one, or 0 if there is none.
func nthLine(b []byte, n int) int {
	last := bytes.LastIndexByte(b, '\n') + 1
	if last <= n { // fewer bytes than lines are allowed
		return last
	}
	end := 0
	for range n {
		i := bytes.IndexByte(b[end:last], '\n')
		if i < 0 {
			break
		}
		end += i + 1
	}
	return end
}

// write stores the events and appends the line of their verdicts. It returns false once the stream has ended.
func (st *stream) write(events []pipeline.Event, d *decoder, size int) bool {
	var verdicts []pipeline.Verdict
	if len(events) > 0 {
		own := size + len(events)*int(unsafe.Sizeof(pipeline.Event{}))
		err := st.hold(own)
		st.untaken = err != nil
		if err == nil {
			verdicts, err = st.add(events)
			st.unhold(own)
		}
		if err != nil {
			cause := refusedAs(err)
			if cause == "" && st.untaken {
				cause = refusedFull
			}
			if cause != "" {
				st.s.metrics.refusedEvents(st.tenant, cause, len(events))
			}
			st.fail(err)
			return false
		}
	}
	st.s.limiter(st.tenant).Spend(d.count, size)
	st.out = append(st.out, `{"index":`...)
	st.out = strconv.AppendInt(st.out, int64(st.total.events), 10)
	st.out = append(st.out, `,"count":`...)
	st.out = strconv.AppendInt(st.out, int64(d.count), 10)
	st.out = append(st.out, ',')
	var o tally
	st.out, o = appendVerdicts(st.out, d.rejected, verdicts, st.total.events, false)
	st.out = append(st.out, "}\n"...)
	st.total.events += o.events
	st.total.stored += o.stored
	st.total.duplicate += o.duplicate
	st.total.rejected += o.rejected
	return true
}

// add waits for room as long as the client stays, which TCP then makes wait, and no longer than ingest.idle-timeout. It
// waits ingest.answer-timeout for a database that is away.
func (st *stream) add(events []pipeline.Event) ([]pipeline.Verdict, error) {
	begin := time.Now()
	for giveUp := begin.Add(st.s.cfg.AnswerTimeout); ; {
		pause := st.s.limiter(st.tenant).Wait(time.Now())
		cause := errLimited
		if pause == 0 {
			answer, cancel := context.WithTimeout(st.s.waiting, st.s.cfg.AnswerTimeout)
			verdicts, err := st.s.buffer.Add(answer, events)
			cancel()
			if cause := refusedAs(err); cause != refusedFull && (cause != refusedAway || time.Now().After(giveUp)) {
				return verdicts, err
			}
			pause, cause = 100*time.Millisecond, err
		}
		if err := st.pause(pause, begin, cause); err != nil {
			st.untaken = true
			return nil, err
		}
	}
}

// finish appends the last line of a stream that was read to its end.
func (st *stream) finish() {
	st.out = append(st.out, `{"done":true,"count":`...)
	st.out = strconv.AppendInt(st.out, int64(st.total.events), 10)
	for _, n := range []struct {
		name  string
		count int
	}{{"stored", st.total.stored}, {"duplicate", st.total.duplicate}, {"rejected", st.total.rejected}} {
		st.out = append(st.out, `,"`+n.name+`":`...)
		st.out = strconv.AppendInt(st.out, int64(n.count), 10)
	}
	st.out = append(st.out, "}\n"...)
	st.ended = true
}

// fail ends the stream for a reason of the client's, the network's or the database's.
func (st *stream) fail(err error) {
	const again = "; send on from the event at index, which may be stored already"
	var netErr net.Error
	switch {
	case errors.Is(err, pipeline.ErrClosed) || st.s.drain.Err() != nil:
		st.end(503, "draining", "the server is shutting down; send on from the event at index")
	case errors.Is(err, errRevoked):
		st.end(401, "unauthorized", "the write key is no longer known"+again)
	case errors.Is(err, errLimited):
		st.end(429, "rate-limited", "this tenant sends more than its limits in the tenants file"+again)
	case errors.Is(err, errNoRoom):
		st.end(429, "overloaded", "the bodies of requests fill the memory that is set aside for them "+
			"(ingest.max-reading-bytes)"+again)
	case errors.Is(err, pipeline.ErrOverloaded):
		st.end(429, "overloaded", "more events come in than the database stores"+again)
	case errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, pipeline.ErrUnavailable): // ours
		st.end(503, "outcome-unknown", fmt.Sprintf("the outcome was not known within %s%s",
			st.s.cfg.AnswerTimeout, again))
	case errors.Is(err, pipeline.ErrFault):
		st.end(500, "cannot-store", "a fault on this server keeps events from being stored; its operator finds the reason "+
			"in the log and at /readyz"+again)
	case errors.Is(err, pipeline.ErrDiskFull):
		st.end(503, "disk-full", "the database's disk is full"+again)
	case errors.Is(err, pipeline.ErrLocked):
		st.end(503, "locked", "the database waits for a lock that somebody holds"+again)
	case errors.Is(err, pipeline.ErrUnavailable):
		st.end(503, "unavailable", "the database is away"+again)
	case errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &netErr) && netErr.Timeout():
		st.end(408, "timeout", "nothing came for "+st.s.cfg.IdleTimeout.String()+" (ingest.idle-timeout)")
	default:
		st.end(400, "incomplete", "the stream broke off: "+err.Error())
	}
}

// end appends the last line of a stream that was not read to its end: a problem, and the first event without a verdict.
func (st *stream) end(status int, kind, detail string) {
	st.out = append(st.out, '{')
	st.out = appendProblem(st.out, status, kind, detail)
	st.out = append(st.out, `,"index":`...)
	st.out = strconv.AppendInt(st.out, int64(st.total.events), 10)
	st.out = append(st.out, "}\n"...)
	st.ended = true
}

// Close ends the reader and returns the memory. What a client still sends after the last line is dropped for a second,
// since a connection that is closed on unread bytes is reset, and that line is lost.
func (st *stream) Close() error {
	st.undo()
	st.linger = time.Now().Add(time.Second)
	st.leave()
	st.conn.SetReadDeadline(st.linger)
	st.reading.Wait()
	st.mu.Lock()
	defer st.mu.Unlock()
	st.s.bodies.ReturnAll(&st.memory)
	return nil
}
