package ingest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/valyala/fasthttp"
)

// reader reads and decompresses bodies into memory that is counted against a bound. Memory is counted as it is filled,
// not as Content-Length promises, so that slow clients hold no more than they have sent.
type reader struct {
	cfg     *Config
	metrics *Metrics
	inUse   atomic.Int64

	bodies sync.Pool // *body
	gzips  sync.Pool // *gzip.Reader
	// zstd decodes whole bodies, at most one a core at a time, so that the windows of many slow clients do not add up.
	zstd *zstd.Decoder
}

func newReader(cfg *Config, m *Metrics) (*reader, error) {
	z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxMemory(uint64(cfg.MaxDecodedBytes)),
		zstd.WithDecoderMaxWindow(8<<20), zstd.WithDecoderLowmem(true))
	if err != nil {
		return nil, fmt.Errorf("ingest: zstd: %w", err)
	}
	return &reader{cfg: cfg, metrics: m, zstd: z}, nil
}

// body is one request's text, and the memory it is counted for.
type body struct {
	text     []byte
	raw      []byte // compressed
	wire     counted
	reserved int
}

var (
	errTooLarge = errors.New("too large")
	errExpands  = errors.New("too large once decompressed")
	errFull     = errors.New("too many bodies at once")
)

// failure is a body that was not read, and the answer to it.
type failure struct {
	status int
	kind   string
	detail string
	offset int // -1: none
}

// release returns the memory for use by other requests. It does nothing if b is nil.
func (r *reader) release(b *body) {
	if b == nil {
		return
	}
	r.unreserve(b)
	// Large ones are rare, and what lies in the pool is not counted. A guess: requests of 100 events and more fit.
	const keep = 128 << 10
	if cap(b.text) > keep {
		b.text = nil
	}
	if cap(b.raw) > keep {
		b.raw = nil
	}
	b.text, b.raw, b.wire = b.text[:0], b.raw[:0], counted{}
	r.bodies.Put(b)
}

// read reads a request's body. After a failure there is nothing to release.
func (r *reader) read(ctx *fasthttp.RequestCtx) (*body, *failure) {
	var encoding byte
	switch e := lower(ctx.Request.Header.ContentEncoding()); string(e) {
	case "", "identity":
	case "gzip", "x-gzip":
		encoding = 'g'
	case "zstd":
		encoding = 'z'
	default:
		return nil, unknownEncoding(e)
	}
	length := ctx.Request.Header.ContentLength()
	if length > r.cfg.MaxBodyBytes {
		return nil, r.tooLarge(fmt.Sprintf("the body is %d bytes", length), r.cfg.MaxBodyBytes, "max-body-bytes")
	}
	b, _ := r.bodies.Get().(*body)
	if b == nil {
		b = &body{}
	}
	if f := r.fill(ctx, b, encoding, length); f != nil {
		r.release(b)
		return nil, f
	}
	return b, nil
}

func (r *reader) fill(ctx *fasthttp.RequestCtx, b *body, encoding byte, length int) *failure {
	stream := ctx.RequestBodyStream()
	if stream == nil {
		stream = bytes.NewReader(ctx.Request.Body())
	}
	b.wire = counted{r: stream}
	wire := &b.wire
	err := r.decompress(b, encoding, wire, length)
	r.metrics.wire.Add(float64(wire.n))
	var netErr net.Error
	switch {
	case err == nil && (length < 0 || wire.n >= length):
		return nil
	case errors.Is(err, errFull):
		return noRoom()
	case errors.Is(err, errTooLarge) && (encoding != 'g' || wire.n > r.cfg.MaxBodyBytes):
		return r.tooLarge("the body is larger", r.cfg.MaxBodyBytes, "max-body-bytes")
	case errors.Is(err, errTooLarge), errors.Is(err, errExpands):
		return r.tooLarge("the decompressed body is larger", r.cfg.MaxDecodedBytes, "max-decoded-bytes")
	case errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &netErr) && netErr.Timeout():
		return &failure{408, "timeout",
			fmt.Sprintf("the body did not come within %s (ingest.read-timeout)", r.cfg.ReadTimeout), -1}
	case length >= 0 && wire.n < length && (err == nil || wire.ended):
		return &failure{400, "incomplete",
			fmt.Sprintf("the body ended after %d of the %d bytes that Content-Length announced", wire.n, length), wire.n}
	case err != nil && wire.err != nil:
		return &failure{400, "incomplete", "the body broke off: " + wire.err.Error(), wire.n}
	case err != nil:
		return &failure{400, "malformed-encoding", "the body could not be decompressed: " + err.Error(), -1}
	}
	return nil
}

// decompress fills the body's text.
func (r *reader) decompress(b *body, encoding byte, wire *counted, length int) (err error) {
	switch encoding {
	case 0:
		b.text, err = r.readAll(b, b.text, wire, r.cfg.MaxBodyBytes, length)
	case 'g':
		b.text, err = r.gunzip(b, wire)
	case 'z':
		b.raw, err = r.readAll(b, b.raw, wire, r.cfg.MaxBodyBytes, length)
		if err != nil || length >= 0 && wire.n != length {
			return err
		}
		b.text, err = r.zstd.DecodeAll(b.raw, b.text)
		if errors.Is(err, zstd.ErrDecoderSizeExceeded) || errors.Is(err, zstd.ErrWindowSizeExceeded) {
			return errExpands
		}
		if err == nil && !r.reserve(b, cap(b.text)) {
			err = errFull
		}
	}
	return err
}

func lower(b []byte) []byte {
	if len(b) == 0 {
		return nil
	}
	return bytes.ToLower(bytes.TrimSpace(b))
}

// inflate decompresses a body that turned out to be gzip.
func (r *reader) inflate(b *body) *failure {
	compressed := b.text
	wire := &counted{r: bytes.NewReader(compressed)}
	b.text = b.raw
	text, err := r.gunzip(b, wire)
	b.text, b.raw = text, compressed
	if err == nil {
		return nil
	}
	switch {
	case errors.Is(err, errFull):
		return noRoom()
	case errors.Is(err, errTooLarge):
		return r.tooLarge("the decompressed body is larger", r.cfg.MaxDecodedBytes, "max-decoded-bytes")
	}
	return &failure{400, "malformed-encoding", "the body could not be decompressed: " + err.Error(), -1}
}

func unknownEncoding(e []byte) *failure {
	return &failure{415, "unsupported-encoding",
		fmt.Sprintf("Content-Encoding %q is not known; gzip, zstd and none are", cut(e)), -1}
}

// noRoom is the failure of a body for which there is no memory now.
func noRoom() *failure {
	return &failure{429, "overloaded",
		"the bodies of requests fill the memory that is set aside for them (ingest.max-reading-bytes)", -1}
}

func (r *reader) tooLarge(what string, most int, key string) *failure {
	return &failure{413, "too-large", fmt.Sprintf("%s; %d bytes are allowed (ingest.%s)", what, most, key), -1}
}

// gunzip decompresses as the body comes in, so that neither form is held whole beyond the bounds.
func (r *reader) gunzip(b *body, wire *counted) ([]byte, error) {
	wire.most = r.cfg.MaxBodyBytes
	if !r.reserve(b, 64<<10) { // the decompressor's own window and tables
		return b.text, errFull
	}
	z := r.gzip()
	defer r.gzips.Put(z)
	if err := z.Reset(wire); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return b.text, err
	}
	return r.readAll(b, b.text, z, r.cfg.MaxDecodedBytes, -1)
}

// gzip returns a decompressor, to be put back into gzips.
func (r *reader) gzip() *gzip.Reader {
	z, _ := r.gzips.Get().(*gzip.Reader)
	if z == nil {
		z = new(gzip.Reader)
	}
	return z
}

// readAll appends all of from to dst, at most the given number of bytes. length is what is expected, -1 if unknown.
func (r *reader) readAll(b *body, dst []byte, from io.Reader, most, length int) ([]byte, error) {
	if !r.reserve(b, cap(dst)) {
		return dst, errFull
	}
	for {
		if len(dst) == cap(dst) {
			// Twice as much, but no more than is expected or allowed and a byte to notice the end or the excess.
			enough := most + 1
			if length >= len(dst) {
				enough = min(enough, length+1)
			}
			grown := max(2*cap(dst), 16<<10)
			if grown >= enough-1 {
				grown = max(enough, len(dst)+1)
			}
			if !r.reserve(b, grown-cap(dst)) {
				return dst, errFull
			}
			dst = append(make([]byte, 0, grown), dst...)
		}
		n, err := from.Read(dst[len(dst):min(cap(dst), most+1)])
		dst = dst[:len(dst)+n]
		if len(dst) > most {
			return dst, errTooLarge
		}
		if err == io.EOF {
			return dst, nil
		}
		if err != nil {
			return dst, err
		}
	}
}

func (r *reader) unreserve(b *body) {
	r.metrics.reading.Set(float64(r.inUse.Add(int64(-b.reserved))))
	b.reserved = 0
}

func (r *reader) reserve(b *body, n int) bool {
	if r.inUse.Add(int64(n)) > int64(r.cfg.MaxReadingBytes) {
		r.inUse.Add(int64(-n))
		return false
	}
	b.reserved += n
	r.metrics.reading.Set(float64(r.inUse.Load()))
	return true
}

// counted counts what came over the wire, and remembers how it ended.
type counted struct {
	r     io.Reader
	n     int
	most  int // 0: no bound
	ended bool
	err   error
}

func (c *counted) Read(p []byte) (int, error) {
	if c.most > 0 && len(p) > c.most+1-c.n {
		p = p[:max(c.most+1-c.n, 1)]
	}
	n, err := c.r.Read(p)
	c.n += n
	if c.most > 0 && c.n > c.most {
		return n, errTooLarge
	}
	switch err {
	case nil:
	case io.EOF:
		c.ended = true
	default:
		c.err = err
	}
	return n, err
}
