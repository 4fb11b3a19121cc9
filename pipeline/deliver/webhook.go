package deliver

import (
	"crypto/tls"
	"errors"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/valyala/fasthttp"
	"go.yaml.in/yaml/v3"

	"sluice.example/sluice/internal/jsontext"
	"sluice.example/sluice/pipeline"
)

// webhookConfig is what the file says about a webhook.
type webhookConfig struct {
	url          *url.URL
	headers      [][2]string
	signer       signer
	quoteKey     bool
	tls          *tls.Config
	allowPrivate bool
}

func (p *parser) webhook(m *mapping, d *Destination) {
	w := &d.web
	w.url = p.address(m, "http", "https")
	p.http(m, d)
	secrets := p.secrets(m, "secret")
	d.secrets = append(d.secrets, secrets...)
	w.signer = p.signer(m, secrets)
	switch form, ok := m.str("idempotency_key"); {
	case !ok || form == "plain":
	case form == "quoted":
		w.quoteKey = true
	default:
		p.add(m.get("idempotency_key"), "%s: idempotency_key must be plain, or quoted (a structured field, as the IETF draft has it)", m.what)
	}
	d.open = func(g guard) sink { return newWebhook(d, g) }
}

// http reads what all sinks that speak HTTP have in common.
func (p *parser) http(m *mapping, d *Destination) {
	d.web.allowPrivate = m.boolean("allow_private")
	headers, secrets := p.headers(m)
	d.web.headers = append(d.web.headers, headers...)
	d.secrets = append(d.secrets, secrets...)
	d.web.tls = p.tls(m)
}

// ours are the headers that neither the file nor a message may set.
var ours = map[string]bool{
	"host": true, "content-length": true, "content-type": true, "transfer-encoding": true, "connection": true, "te": true, "trailer": true, "upgrade": true,
	"keep-alive": true, "expect": true, "idempotency-key": true, "x-signature": true, "webhook-id": true, "webhook-timestamp": true, "webhook-signature": true,
	"x-hub-signature-256": true, "x-github-event": true, "x-github-delivery": true, "stripe-signature": true, "user-agent": true,
}

// headers reads headers (name: value) and headers_env (name: variable that holds the value, which is then a secret).
func (p *parser) headers(m *mapping) (headers [][2]string, secrets []string) {
	each := func(key string, use func(n *yaml.Node, name, value string)) {
		n := m.get(key)
		if n == nil {
			return
		}
		if n.Kind != yaml.MappingNode {
			p.add(n, "%s: %s must be a mapping of names to values", m.what, key)
			return
		}
		for i := 0; i+1 < len(n.Content); i += 2 {
			name, value := n.Content[i], n.Content[i+1]
			switch {
			case !validHeader(name.Value):
				p.add(name, "%s: %s: %q is no name of a header", m.what, key, name.Value)
			case ours[strings.ToLower(name.Value)]:
				p.add(name, "%s: %s: %s is set by this program", m.what, key, name.Value)
			case value.Kind != yaml.ScalarNode:
				p.add(value, "%s: %s: %s must be a string", m.what, key, name.Value)
			default:
				use(value, name.Value, value.Value)
			}
		}
	}
	add := func(n *yaml.Node, name, value string) {
		if strings.ContainsAny(value, "\r\n\x00") {
			p.add(n, "%s: header %s: its value has a line break inside", m.what, name)
			return
		}
		headers = append(headers, [2]string{name, value})
	}
	each("headers", add)
	each("headers_env", func(n *yaml.Node, name, variable string) {
		value, ok := p.lookupEnv(variable)
		if value = strings.TrimSpace(value); !ok || value == "" {
			p.add(n, "%s: the environment has no %s", m.what, variable)
			return
		}
		secrets = append(secrets, value)
		add(n, name, value)
	})
	return headers, secrets
}

// validHeader says whether s is a token of RFC 9110, as names of headers are.
func validHeader(s string) bool {
	for _, c := range []byte(s) {
		if c <= ' ' || c >= 0x7f || strings.IndexByte(`()<>@,;:\"/[]?={}`, c) >= 0 {
			return false
		}
	}
	return s != ""
}

// maxAnswer is how much of an answer is read, in bytes. A longer one costs its connection. A guess: answers to webhooks
// are a few bytes, and only the start of one goes into last_error.
const maxAnswer = 64 << 10

// poster sends POSTs to one address. Connections are kept; redirects are not followed.
type poster struct {
	client  *fasthttp.HostClient
	dialer  *dialer
	uri     fasthttp.URI
	headers [][2]string
	// requests are ready but for the message.
	requests sync.Pool
}

func newPoster(d *Destination, g guard) *poster {
	u := d.web.url
	p := &poster{dialer: newDialer(g, d.web.allowPrivate), headers: d.web.headers}
	addr := u.Host
	if u.Port() == "" {
		addr = net.JoinHostPort(u.Hostname(), map[string]string{"http": "80", "https": "443"}[u.Scheme])
	}
	config := d.web.tls.Clone()
	config.ServerName = u.Hostname()
	p.client = &fasthttp.HostClient{
		Addr:                     addr,
		IsTLS:                    u.Scheme == "https",
		TLSConfig:                config,
		MaxConns:                 d.concurrency,
		MaxIdleConnDuration:      30 * time.Second,
		MaxResponseBodySize:      maxAnswer,
		WriteTimeout:             d.timeout, // bounds the TLS handshake
		NoDefaultUserAgentHeader: true,
		DialTimeout:              p.dialer.dial,
		Transport:                once{},
		// One more than the first, for a connection that had gone stale; see once.
		MaxIdemponentCallAttempts: 2,
		RetryIfErr:                func(*fasthttp.Request, int, error) (resetTimeout, retry bool) { return false, true },
	}
	p.uri.Parse(nil, []byte(u.String()))
	p.requests.New = func() any {
		req := &fasthttp.Request{}
		req.SetURI(&p.uri)
		req.Header.SetMethod(fasthttp.MethodPost)
		req.Header.SetContentType("application/json")
		req.Header.SetUserAgent(userAgent)
		p.setHeaders(req)
		return req
	}
	return p
}

func (p *poster) setHeaders(req *fasthttp.Request) {
	for _, h := range p.headers {
		req.Header.Set(h[0], h[1])
	}
}

// post makes one attempt, which ends at the deadline at the latest. fill sets further headers, the same ones for every
// message but for its own; look, which may be nil, sees the answer.
func (p *poster) post(lease *pipeline.Lease, body []byte, deadline time.Time, fill func(*fasthttp.Request), look func(*fasthttp.Response, *answer)) answer {
	req, resp := p.requests.Get().(*fasthttp.Request), fasthttp.AcquireResponse()
	defer fasthttp.ReleaseResponse(resp)
	fill(req)
	if len(lease.Headers) > 0 {
		p.setHeaders(req) // the file's have the last word
	}
	req.SetBodyRaw(body)
	err := p.client.DoDeadline(req, resp, deadline)
	if len(lease.Headers) == 0 { // another message must not carry this one's own
		req.SetBodyRaw(nil)
		p.requests.Put(req)
	}
	if err != nil && !errors.Is(err, fasthttp.ErrBodyTooLarge) {
		return answer{err: err}
	}
	// An answer that is too long was still given.
	a := answer{status: resp.StatusCode()}
	if a.status < 200 || a.status > 299 {
		a.body, a.retryAfter = excerpt(resp.Body()), string(resp.Header.Peek("Retry-After"))
	}
	if look != nil {
		look(resp, &a)
	}
	return a
}

func (p *poster) abort() { p.dialer.closeAll() }

func (p *poster) close() { p.client.CloseIdleConnections() }

// webhook sends signed POSTs.
type webhook struct {
	*poster
	signer   signer
	quoteKey bool
	buffers  sync.Pool
}

// buffers are what one send works in.
type buffers struct{ body, key, signature []byte }

func newWebhook(d *Destination, g guard) *webhook {
	return &webhook{poster: newPoster(d, g), signer: d.web.signer, quoteKey: d.web.quoteKey, buffers: sync.Pool{New: func() any { return &buffers{} }}}
}

func (w *webhook) send(lease *pipeline.Lease, now, deadline time.Time) answer {
	b := w.buffers.Get().(*buffers)
	b.body = appendBody(b.body[:0], lease)
	b.key = append(append(append(b.key[:0], '"'), lease.IdempotencyKey.String()...), '"')
	quoted := b.key
	key := quoted[1 : len(quoted)-1]
	a := w.post(lease, b.body, deadline, func(req *fasthttp.Request) {
		setOwn(req.Header.Set, lease.Headers)
		if w.quoteKey {
			req.Header.SetBytesV("Idempotency-Key", quoted)
		} else {
			req.Header.SetBytesV("Idempotency-Key", key)
		}
		b.signature = w.signer.sign(b.signature, req.Header.SetBytesV, lease.Type, key, now, b.body)
	}, nil)
	if cap(b.body) <= maxKept {
		w.buffers.Put(b)
	}
	return a
}

// maxKept is the biggest body whose memory is used again, in bytes.
const maxKept = 64 << 10

const userAgent = "sluice/1 (+https://www.standardwebhooks.com)"

// appendBody appends what is sent: {"rule":<id>,"data":<payload>} for a rule's decision, {"type":<type>,"data":...} for
// an application's message.
func appendBody(b []byte, lease *pipeline.Lease) []byte {
	name := `{"type":`
	if lease.Rule {
		name = `{"rule":`
	}
	b = append(b, name...)
	b = jsontext.AppendString(b, lease.Type)
	b = append(b, `,"data":`...)
	b = append(b, lease.Payload...)
	return append(b, '}')
}

// setOwn calls set for the application's own headers of a message, except those that are not its to set.
func setOwn(set func(name, value string), headers map[string]string) {
	for name, value := range headers {
		if validHeader(name) && !ours[strings.ToLower(name)] {
			set(name, cleanHeader(value))
		}
	}
}

// cleanHeader keeps a message from adding lines to the request.
func cleanHeader(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\t' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
}

// excerpt is the start of an answer as one line of text.
func excerpt(b []byte) string {
	const most = 200
	cut := len(b) > most
	if cut {
		b = b[:most]
	}
	s := strings.TrimSpace(strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(string(b), "\uFFFD")))
	if cut {
		s += "..."
	}
	return s
}
