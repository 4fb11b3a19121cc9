package deliver

import (
	"crypto/tls"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"sluice.example/sluice/pipeline"
	"sluice.example/sluice/pipeline/deliver/envelope"
)

// webhookConfig is what a destination has to know to speak to a server.
type webhookConfig struct {
	endpoint     *endpoint // nil: it has a fault
	headers      [][2]string
	signer       signer
	quoteKey     bool
	tls          *tls.Config
	allowPrivate bool
}

// webhook reads a destination that is called by signed POSTs.
func (r *reader) webhook() {
	d := r.d
	d.web.endpoint = r.address("http", "https")
	r.http()
	secrets := r.secrets("secret")
	d.secrets = append(d.secrets, secrets...)
	d.web.signer = r.signer(secrets)
	// quoted: a structured field, as the IETF draft has it.
	d.web.quoteKey = r.OneOf("idempotency_key", "plain", "quoted") == "quoted"
	r.envelope(envelope.Plain)
	d.open = func(g guard) sink { return newWebhook(d, g) }
}

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
	return &webhook{
		poster:   newPoster(d, g, d.web.endpoint.target),
		signer:   d.web.signer,
		quoteKey: d.web.quoteKey,
		buffers:  sync.Pool{New: func() any { return &buffers{} }},
	}
}

func (w *webhook) send(lease *pipeline.Lease, now, deadline time.Time) answer {
	b := w.buffers.Get().(*buffers)
	b.body = w.envelope.Append(b.body[:0], &lease.Message, w.tenants)
	b.key = append(append(append(b.key[:0], '"'), lease.IdempotencyKey.String()...), '"')
	quoted := b.key
	key := quoted[1 : len(quoted)-1]
	a := w.post(lease, b.body, deadline, func(req *fasthttp.Request) {
		setOwn(req.Header.Set, lease.Headers)
		w.setEnvelope(req, "", lease)
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
