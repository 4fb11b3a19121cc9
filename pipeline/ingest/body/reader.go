// Package body reads the bodies of requests: it decompresses them, within bounds for each and for all.
//
// Memory is counted as it is filled, not as Content-Length promises, so that slow clients hold no more than they have
// sent.
package body

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"
)

// Config bounds bodies, in bytes, under the names of the settings that an operator may set.
type Config struct {
	MaxBodyBytes    int // of one, as it comes over the wire
	MaxDecodedBytes int // of one, after decompression
	MaxReadingBytes int // of all that are being read and decoded
	ReadTimeout     time.Duration
}

// Metrics are told what is read.
type Metrics struct {
	Wire    prometheus.Counter // bytes as they came
	Reading prometheus.Gauge   // bytes in use
}

// Reader reads and decompresses bodies into memory that is counted against a bound. It is safe for concurrent use.
type Reader struct {
	cfg     Config
	metrics Metrics
	inUse   atomic.Int64

	unknown    Share
	tenants    sync.Map     // int32 -> *Share
	tenantMost atomic.Int64 // of one tenant
	arrivals   arrivals

	bodies sync.Pool // *Body
	gzips  sync.Pool // *gzip.Reader
	// They decode whole bodies, at most one a core at a time, so that the windows of many slow clients do not add up.
	// Those whose tenant is not known have one of their own, with a smaller bound.
	zstd, zstdUnknown *zstd.Decoder
}

// NewReader returns a reader whose bounds are checked already.
func NewReader(cfg Config, m Metrics) (*Reader, error) {
	r := &Reader{cfg: cfg, metrics: m, arrivals: arrivals{bodies: map[*Body]bool{}, freed: make(chan struct{}, 1)}}
	r.unknown.most = new(atomic.Int64)
	r.unknown.most.Store(int64(min(max(cfg.MaxReadingBytes/10, ZstdBytes+4*unknownBytes), cfg.MaxReadingBytes)))
	r.Several(false)
	var err error
	if r.zstd, err = decoder(cfg.MaxDecodedBytes, 0); err != nil {
		return nil, err
	}
	r.zstdUnknown, err = decoder(min(unknownBytes, cfg.MaxDecodedBytes), 1)
	return r, err
}

// Body is one request's text, and the memory it is counted for.
type Body struct {
	Text []byte
	raw  []byte // compressed
	wire counted
	hold Hold
	of   atomic.Pointer[Share] // hold's, for others to see
	// find returns the share of the tenant whose key stands in a first part of the body, or nil. It is nil once the
	// tenant is known.
	find func(part []byte) *Share

	// How fast the body comes, from its second piece on.
	entered bool
	conn    net.Conn
	came    atomic.Int64
	last    atomic.Int64 // when something came, in nanoseconds since 1970
	mark    time.Time    // when a span of slowAfter began, how much had come by then, and the rate of the span before
	marked  int64
	rate    float64
	ended   atomic.Bool // by arrivals
}

var (
	errTooLarge = errors.New("too large")
	errExpands  = errors.New("too large once decompressed")
	errFull     = errors.New("too many bodies at once")
	errUnknown  = errors.New("no write key in the first part")
)

// Failure is a body that was not read, and the answer to it.
type Failure struct {
	Status int
	Kind   string // of the problem
	Detail string
	Offset int // into the body as it came; -1: none
}

// Release returns the memory for use by other requests. It does nothing if b is nil.
func (r *Reader) Release(b *Body) {
	if b == nil {
		return
	}
	r.ReturnAll(&b.hold)
	// Large ones are rare, and what lies in the pool is not counted. A guess: requests of 100 events and more fit.
	const keep = 128 << 10
	if cap(b.Text) > keep {
		b.Text = nil
	}
	if cap(b.raw) > keep {
		b.raw = nil
	}
	b.Text, b.raw, b.wire = b.Text[:0], b.raw[:0], counted{}
	b.hold, b.find, b.conn = Hold{}, nil, nil
	b.of.Store(nil)
	b.came.Store(0)
	b.ended.Store(false)
	r.bodies.Put(b)
}

// Read reads a request's body, which is counted to a share. Where the tenant is not known yet, find returns the share
// of the one whose key stands in a first part of the body, or nil; else find is nil. After a failure there is nothing
// to release.
func (r *Reader) Read(ctx *fasthttp.RequestCtx, of *Share, find func(part []byte) *Share) (*Body, *Failure) {
	var encoding byte
	switch e := lower(ctx.Request.Header.ContentEncoding()); string(e) {
	case "", "identity":
	case "gzip", "x-gzip":
		encoding = 'g'
	case "zstd":
		encoding = 'z'
	default:
		return nil, UnknownEncoding(e)
	}
	length := ctx.Request.Header.ContentLength()
	if length > r.cfg.MaxBodyBytes {
		return nil, r.TooLong(length)
	}
	b, _ := r.bodies.Get().(*Body)
	if b == nil {
		b = &Body{}
	}
	b.hold.share, b.find = of, find
	b.of.Store(of)
	if f := r.fill(ctx, b, encoding, length); f != nil {
		r.Release(b)
		return nil, f
	}
	return b, nil
}

func (r *Reader) fill(ctx *fasthttp.RequestCtx, b *Body, encoding byte, length int) *Failure {
	stream := Stream(ctx)
	if stream == nil {
		stream = bytes.NewReader(ctx.Request.Body())
	}
	b.wire = counted{r: stream, length: length, body: b, arrivals: &r.arrivals}
	b.conn = ctx.Conn()
	wire := &b.wire
	err := r.decompress(b, encoding, wire, length)
	r.arrivals.leave(b)
	r.metrics.Wire.Add(float64(wire.n))
	var netErr net.Error
	switch {
	case err == nil && (length < 0 || wire.n >= length):
		return nil
	case errors.Is(err, errFull):
		return NoRoom()
	case errors.Is(err, errUnknown):
		return unknownTooLarge()
	case errors.Is(err, errTooLarge) && (encoding != 'g' || wire.n > r.cfg.MaxBodyBytes):
		return r.tooLarge("the body is larger", r.cfg.MaxBodyBytes, "max-body-bytes")
	case errors.Is(err, errTooLarge), errors.Is(err, errExpands):
		return r.tooLarge("the decompressed body is larger", r.cfg.MaxDecodedBytes, "max-decoded-bytes")
	case errors.Is(err, ErrFraming):
		return &Failure{400, "malformed-http", ErrFraming.Error(), -1}
	case b.ended.Load():
		return &Failure{408, "timeout", "the body came too slowly while the memory for bodies is short " +
			"(ingest.max-reading-bytes); send it again", -1}
	case errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &netErr) && netErr.Timeout():
		return &Failure{408, "timeout",
			fmt.Sprintf("the body did not come within %s (ingest.read-timeout)", r.cfg.ReadTimeout), -1}
	case length >= 0 && wire.n < length && (err == nil || wire.ended):
		return &Failure{400, "incomplete",
			fmt.Sprintf("the body ended after %d of the %d bytes that Content-Length announced", wire.n, length), wire.n}
	case err != nil && wire.err != nil:
		return &Failure{400, "incomplete", "the body broke off: " + wire.err.Error(), wire.n}
	case err != nil:
		return &Failure{400, "malformed-encoding", "the body could not be decompressed: " + err.Error(), -1}
	}
	return nil
}

// decompress fills the body's text.
func (r *Reader) decompress(b *Body, encoding byte, wire *counted, length int) (err error) {
	switch encoding {
	case 0:
		b.Text, err = r.readAll(b, b.Text, wire, r.cfg.MaxBodyBytes, length)
	case 'g':
		b.Text, err = r.gunzip(b, wire)
	case 'z':
		find := b.find
		if find != nil { // a key can stand in the text alone, and zstd leaves some of it as it was
			b.find = func([]byte) *Share { return nil }
		}
		b.raw, err = r.readAll(b, b.raw, wire, r.cfg.MaxBodyBytes, length)
		b.find = find
		if err != nil || length >= 0 && wire.n != length {
			return err
		}
		err = r.unzstd(b)
	}
	return err
}

func lower(b []byte) []byte {
	if len(b) == 0 {
		return nil
	}
	return bytes.ToLower(bytes.TrimSpace(b))
}

// Inflate decompresses a body that turned out to be gzip.
func (r *Reader) Inflate(b *Body) *Failure {
	compressed := b.Text
	wire := &counted{r: bytes.NewReader(compressed)}
	b.Text = b.raw
	text, err := r.gunzip(b, wire)
	b.Text, b.raw = text, compressed
	if err == nil {
		return nil
	}
	switch {
	case errors.Is(err, errFull):
		return NoRoom()
	case errors.Is(err, errUnknown):
		return unknownTooLarge()
	case errors.Is(err, errTooLarge):
		return r.tooLarge("the decompressed body is larger", r.cfg.MaxDecodedBytes, "max-decoded-bytes")
	}
	return &Failure{400, "malformed-encoding", "the body could not be decompressed: " + err.Error(), -1}
}

// UnknownEncoding is the failure of a body whose Content-Encoding is not known.
func UnknownEncoding(e []byte) *Failure {
	return &Failure{415, "unsupported-encoding",
		fmt.Sprintf("Content-Encoding %.64q is not known; gzip, zstd and none are", e), -1}
}

// NoRoom is the failure of a body for which there is no memory now.
func NoRoom() *Failure {
	return &Failure{429, "overloaded",
		"the bodies of requests fill the memory that is set aside for them (ingest.max-reading-bytes)", -1}
}

// unknownTooLarge is the failure of a body that is large and does not say early whose it is.
func unknownTooLarge() *Failure {
	return &Failure{413, "too-large", fmt.Sprintf("no write key is in the first %d bytes of the body; "+
		"send it in a header (Authorization or X-Write-Key), or smaller batches", unknownBytes), -1}
}

// TooLong is the failure of a body whose Content-Length is beyond the bound.
func (r *Reader) TooLong(length int) *Failure {
	return r.tooLarge(fmt.Sprintf("the body is %d bytes", length), r.cfg.MaxBodyBytes, "max-body-bytes")
}

func (r *Reader) tooLarge(what string, most int, key string) *Failure {
	return &Failure{413, "too-large", fmt.Sprintf("%s; %d bytes are allowed (ingest.%s)", what, most, key), -1}
}

// GzipBytes is what one gzip stream takes: its decompressor's own window and tables.
const GzipBytes = 64 << 10

// gunzip decompresses as the body comes in, so that neither form is held whole beyond the bounds.
func (r *Reader) gunzip(b *Body, wire *counted) ([]byte, error) {
	wire.most = r.cfg.MaxBodyBytes
	if !r.room(b, GzipBytes) {
		return b.Text, errFull
	}
	defer r.Return(&b.hold, GzipBytes)
	z := r.Gzip()
	defer r.gzips.Put(z)
	if err := z.Reset(wire); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return b.Text, err
	}
	return r.readAll(b, b.Text, z, r.cfg.MaxDecodedBytes, -1)
}

// Gzip returns a decompressor, to be put back by PutGzip.
func (r *Reader) Gzip() *gzip.Reader {
	z, _ := r.gzips.Get().(*gzip.Reader)
	if z == nil {
		z = new(gzip.Reader)
	}
	return z
}

// PutGzip takes a decompressor back.
func (r *Reader) PutGzip(z *gzip.Reader) { r.gzips.Put(z) }

// readAll appends all of from to dst, at most the given number of bytes. length is what is expected, -1 if unknown.
func (r *Reader) readAll(b *Body, dst []byte, from io.Reader, most, length int) ([]byte, error) {
	if !r.room(b, cap(dst)) {
		return dst, errFull
	}
	for {
		if len(dst) == cap(dst) {
			if err := r.known(b, dst, most); err != nil {
				return dst, err
			}
			// Twice as much, but no more than is expected or allowed and a byte to notice the end or the excess.
			enough := most + 1
			if length >= len(dst) {
				enough = min(enough, length+1)
			}
			grown := max(2*cap(dst), 16<<10)
			if grown >= enough-1 {
				grown = max(enough, len(dst)+1)
			}
			// Both are there until the old one is copied.
			if !r.room(b, grown) {
				return dst, errFull
			}
			old := cap(dst)
			dst = append(make([]byte, 0, grown), dst...)
			r.Return(&b.hold, old)
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

// known looks for a write key in a part of a body that is about to grow, and ends one that grew too large without.
func (r *Reader) known(b *Body, part []byte, most int) error {
	if b.find == nil || len(part) == 0 {
		return nil
	}
	if to := b.find(part); to != nil {
		if !b.adopt(to) {
			return errFull
		}
		return nil
	}
	if len(part) >= min(unknownBytes, most) {
		return errUnknown
	}
	return nil
}

// Expect reserves what decoding a large body makes beside its text, until the body is released: copies of the text, and
// values of a size for each object in it, at most a number of them. It returns false where there is no room.
func (r *Reader) Expect(b *Body, copies, most, size int) bool {
	const small = 64 << 10
	if len(b.Text) <= small {
		return true
	}
	return r.room(b, copies*len(b.Text)+min(bytes.Count(b.Text, []byte("{")), most)*size)
}

// counted counts what came over the wire, and remembers how it ended.
type counted struct {
	r     io.Reader
	n     int
	most  int // 0: no bound
	ended bool
	err   error

	reads  int
	length int // what Content-Length announced; negative without one
	// arrivals is told of each piece of the body once there is a second. It is nil where the body is in memory.
	arrivals *arrivals
	body     *Body
}

func (c *counted) Read(p []byte) (int, error) {
	if c.most > 0 && len(p) > c.most+1-c.n {
		p = p[:max(c.most+1-c.n, 1)]
	}
	c.reads++
	late := c.reads > 1 && c.arrivals != nil && c.n != c.length
	if late {
		c.arrivals.note(c.body, 0)
	}
	n, err := c.r.Read(p)
	c.n += n
	if late {
		c.arrivals.note(c.body, n)
	}
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
