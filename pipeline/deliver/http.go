package deliver

import (
	"strings"
	"sync"
	"time"

	"github.com/valyala/fasthttp"
	"go.yaml.in/yaml/v3"

	"sluice.example/sluice/internal/yamlfile"
	"sluice.example/sluice/pipeline"
	"sluice.example/sluice/pipeline/deliver/envelope"
)

// http reads what all sinks that speak HTTP have in common.
func (r *reader) http() {
	w := &r.d.web
	w.allowPrivate = r.Bool("allow_private", false)
	w.tls = r.tls()
	r.eachHeader("headers", func(n *yaml.Node, name, value string) { r.addHeader("headers", n, name, value) })
	r.eachHeader("headers_env", func(n *yaml.Node, name, variable string) {
		value, ok := r.lookupEnv(variable)
		if value = strings.TrimSpace(value); !ok || value == "" {
			r.File().Fault(n, r.At("headers_env"), "the environment has no %s", variable)
			return
		}
		r.d.secrets = append(r.d.secrets, value)
		r.addHeader("headers_env", n, name, value)
	})
}

// eachHeader goes over the names and values of headers (name: value) or headers_env (name: the variable that holds the
// value, which is then a secret).
func (r *reader) eachHeader(key string, use func(n *yaml.Node, name, value string)) {
	n := r.Get(key)
	if n == nil {
		return
	}
	for name, value := range r.File().Pairs(n, r.At(key)) {
		switch {
		case !validHeader(name.Value):
			r.File().Fault(name, r.At(key), "%q is not the name of a header", name.Value)
		case ours[strings.ToLower(name.Value)]:
			r.File().Fault(name, r.At(key), "%s is set by this program", name.Value)
		case value.Kind != yaml.ScalarNode:
			r.File().Fault(value, r.At(key), "%s: expected a string, got %s", name.Value, yamlfile.Describe(value))
		default:
			use(value, name.Value, value.Value)
		}
	}
}

func (r *reader) addHeader(key string, n *yaml.Node, name, value string) {
	if strings.ContainsAny(value, "\r\n\x00") {
		r.File().Fault(n, r.At(key), "%s: the value has a line break inside", name)
		return
	}
	r.d.web.headers = append(r.d.web.headers, [2]string{name, value})
}

// maxAnswer is how much of an answer is read, in bytes. A longer one costs its connection. A guess: answers to webhooks
// are a few bytes, and only the start of one goes into last_error.
const maxAnswer = 64 << 10

// poster sends POSTs to one address. Redirects are not followed.
type poster struct {
	client   *client
	headers  [][2]string
	secrets  []string
	envelope envelope.Kind
	tenants  envelope.Tenants
	// requests lack nothing but the message.
	requests sync.Pool
}

// newPoster makes a poster to the destination's server, for a target: path and query, sent byte for byte.
func newPoster(d *Destination, g guard, target string) *poster {
	e := d.web.endpoint
	p := &poster{headers: d.web.headers, secrets: d.secrets, envelope: d.envelope, tenants: d.tenants}
	p.client = &client{dialer: newDialer(g, d.web.allowPrivate), addr: e.addr}
	if e.tls {
		p.client.tls = d.web.tls.Clone()
		p.client.tls.ServerName = e.serverName
	}
	p.requests.New = func() any {
		req := &fasthttp.Request{}
		req.Header.SetMethod(fasthttp.MethodPost)
		req.Header.SetHost(e.host)
		req.Header.SetRequestURI(target)
		req.Header.SetContentType(d.envelope.ContentType())
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

// setEnvelope sets the headers that belong to the body, with a prefix to their names.
func (p *poster) setEnvelope(req *fasthttp.Request, prefix string, lease *pipeline.Lease) {
	p.envelope.Headers(func(name, value string) {
		if value == "" { // the request may have been another message's
			req.Header.Del(prefix + name)
			return
		}
		req.Header.Set(prefix+name, cleanHeader(value))
	}, &lease.Message, p.tenants)
}

// post makes one attempt, which ends at the deadline at the latest. fill sets further headers: always the same names,
// except for the message's own. look, which may be nil, sees the answer.
func (p *poster) post(lease *pipeline.Lease, body []byte, deadline time.Time, fill func(*fasthttp.Request),
	look func(*fasthttp.Response, *answer)) answer {
	req, resp := p.requests.Get().(*fasthttp.Request), fasthttp.AcquireResponse()
	defer fasthttp.ReleaseResponse(resp)
	fill(req)
	if len(lease.Headers) > 0 {
		p.setHeaders(req) // the file's have the last word
	}
	req.SetBodyRaw(body)
	status, err := p.client.do(req, resp, deadline)
	if len(lease.Headers) == 0 { // another message must not carry this one's own
		req.SetBodyRaw(nil)
		p.requests.Put(req)
	}
	if err != nil {
		return answer{err: err}
	}
	a := answer{status: status}
	if status < 200 || status > 299 {
		a.body = excerpt(resp.Body(), p.secrets)
		a.retryAfter = string(resp.Header.Peek("Retry-After"))
		if status < 400 {
			a.location = excerpt(resp.Header.Peek("Location"), p.secrets)
		}
	}
	if look != nil {
		look(resp, &a)
	}
	return a
}

func (p *poster) abort() { p.client.dialer.closeAll() }

func (p *poster) close() { p.client.close() }

// excerpt is the start of an answer as one line of text. The whole answer is rid of the secrets first: a secret that
// the cut goes through would leave its head.
func excerpt(b []byte, secrets []string) string {
	const most = 200
	b = []byte(hide(string(b), secrets))
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
