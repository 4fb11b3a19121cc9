package ingest

import (
	"errors"
	"fmt"
	"net/url"
	"time"
)

// Config is what an operator may set. Sizes are in bytes.
type Config struct {
	// MaxBodyBytes bounds a request's body as it comes over the wire. Default 8 MiB, a guess: about 18,000 events of
	// 450 bytes, more than MaxEvents.
	MaxBodyBytes int
	// MaxDecodedBytes bounds a body after decompression. Default 32 MiB, a guess: four times MaxBodyBytes.
	MaxDecodedBytes int
	// MaxReadingBytes bounds the bodies of all requests that are being read and decoded. Past it, requests are
	// refused with 429. Default 256 MiB, a guess: eight of the largest at once.
	MaxReadingBytes int
	// MaxEventBytes bounds the JSON of one event. Default 1 MiB, a guess: what PostHog and Snowplow take is 1 to 2 MB.
	MaxEventBytes int
	// MaxEvents bounds the events of one request. Default 10,000, five of the batches that the database likes best.
	MaxEvents int
	// MaxAge is how far in the past occurred_at may lie. Default 9,600 hours (400 days): a year and a month of history.
	MaxAge time.Duration
	// MaxAhead is how far in the future occurred_at may lie, for clocks that are wrong. Default 48 hours, a guess.
	MaxAhead time.Duration
	// KeepUnknownFields moves top-level fields that are not known under properties, where they give way to a property
	// of the same name. By default such an event is rejected, since a field that is silently ignored is lost data.
	KeepUnknownFields bool
	// TraceContext keeps the sampled trace that a request or a CloudEvent belongs to (W3C Trace Context), for the messages
	// that rules decide because of it. Default false: receivers may be others than those who trace.
	TraceContext bool

	// CORSOrigins are the origins of web pages that may send events from a browser, like https://shop.example.com, or *
	// for any. Default none.
	CORSOrigins []string
	// TLSCertFile and TLSKeyFile are a certificate chain and its key in PEM; with them the listener speaks TLS only.
	// They are read again when they change. Default none: plain HTTP.
	TLSCertFile, TLSKeyFile string

	// Concurrency bounds the requests that are being answered. Past it, requests are refused with 429. Default 4,096,
	// a guess: a waiting request costs about 20 KB, so this is 80 MB.
	Concurrency int
	// ReadTimeout is how long a client may take to send one request. Default 30 s.
	ReadTimeout time.Duration
	// IdleTimeout is how long a connection may stay open between two requests. Default 75 s, longer than the 60 s of
	// common load balancers, so that they close first.
	IdleTimeout time.Duration
	// AnswerTimeout is how long a request waits for the outcome of its events, and up to an eighth longer. Then the
	// answer is 503 and the outcome is open. Default 8 s: SDKs give up after 10 s.
	AnswerTimeout time.Duration
	// DrainTimeout is how long requests wait for the outcome of their events once Serve was told to stop; then they are
	// answered 503. Default 20 s; the program takes it from its own drain-timeout.
	DrainTimeout time.Duration
}

const (
	// maxDepth bounds how deeply objects and arrays may be nested inside a field. A guess: people write fewer than ten
	// levels. PostgreSQL's parser is recursive; its default stack of 2 MB is enough for some 6,000.
	maxDepth = 100
	// maxConnections bounds the open connections. Past it, a connection is answered 503 and closed. An idle one costs
	// about 20 KB, so this is 330 MB; the system's bound on open files is mostly lower.
	maxConnections = 16384
	// writeTimeout is how long a client may take to read one answer, which is rarely longer than a packet.
	writeTimeout = 30 * time.Second
)

// DefaultConfig returns the defaults, complete.
func DefaultConfig() Config {
	return Config{
		MaxBodyBytes:    8 << 20,
		MaxDecodedBytes: 32 << 20,
		MaxReadingBytes: 256 << 20,
		MaxEventBytes:   1 << 20,
		MaxEvents:       10_000,
		MaxAge:          400 * 24 * time.Hour,
		MaxAhead:        48 * time.Hour,
		Concurrency:     4096,
		ReadTimeout:     30 * time.Second,
		IdleTimeout:     75 * time.Second,
		AnswerTimeout:   8 * time.Second,
		DrainTimeout:    20 * time.Second,
	}
}

// validate returns every fault at once.
func (c Config) validate() error {
	var faults []error
	number := func(key string, got, low, high int) {
		if got < low || got > high {
			faults = append(faults, fmt.Errorf("ingest.%s is %d; set it to %d to %d", key, got, low, high))
		}
	}
	duration := func(key string, got, low time.Duration) {
		if got < low {
			faults = append(faults, fmt.Errorf("ingest.%s is %s; set it to %s or more", key, got, low))
		}
	}
	// PostgreSQL's jsonb holds at most 256 MiB, in one value and in all the values of one object.
	number("max-body-bytes", c.MaxBodyBytes, 1024, 255<<20)
	number("max-decoded-bytes", c.MaxDecodedBytes, 1024, 255<<20)
	number("max-event-bytes", c.MaxEventBytes, 256, 255<<20)
	number("max-events", c.MaxEvents, 1, 1_000_000)
	number("concurrency", c.Concurrency, 1, 1<<20)
	if c.MaxReadingBytes < c.MaxBodyBytes+c.MaxDecodedBytes {
		faults = append(faults, fmt.Errorf("ingest.max-reading-bytes is %d; one body needs up to %d: "+
			"set it to that or more, or lower ingest.max-body-bytes or ingest.max-decoded-bytes",
			c.MaxReadingBytes, c.MaxBodyBytes+c.MaxDecodedBytes))
	}
	if (c.TLSCertFile == "") != (c.TLSKeyFile == "") {
		faults = append(faults, errors.New(
			"ingest.tls-cert-file and ingest.tls-key-file: set both for TLS, or none for plain HTTP"))
	}
	for _, o := range c.CORSOrigins {
		u, err := url.Parse(o)
		if o != "*" && (err != nil || u.Scheme == "" || u.Host == "" || u.Scheme+"://"+u.Host != o) {
			faults = append(faults, fmt.Errorf(
				"ingest.cors-origins has %q; write scheme and host like https://shop.example.com, or *", o))
		}
	}
	duration("max-age", c.MaxAge, time.Minute)
	duration("max-ahead", c.MaxAhead, time.Second)
	duration("read-timeout", c.ReadTimeout, time.Millisecond)
	duration("idle-timeout", c.IdleTimeout, time.Millisecond)
	duration("answer-timeout", c.AnswerTimeout, time.Millisecond)
	return errors.Join(faults...)
}
