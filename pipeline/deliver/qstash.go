package deliver

import (
	"encoding/hex"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/valyala/fasthttp"
	"go.yaml.in/yaml/v3"

	"sluice.example/sluice/pipeline"
	"sluice.example/sluice/pipeline/deliver/envelope"
)

// qstash reads a destination that publishes to Upstash QStash, which then calls the real receiver.
func (r *reader) qstash() {
	d, q := r.d, qstash{}
	if !r.Has("url") && !r.Has("url_env") {
		r.Default("url", &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: "https://qstash.upstash.io",
			Line: r.Node().Line, Column: r.Node().Column})
	}
	d.web.endpoint = r.address("https", "http")
	r.http()
	tokens := r.secrets("token")
	d.secrets = append(d.secrets, tokens...)
	if len(tokens) != 1 {
		r.Fault("token_env", "needs one token_env or token_file")
	} else {
		q.token = tokens[0]
	}
	to := r.String("to")
	if name := r.String("to_env"); name != "" && to == "" {
		to, _ = r.env("to_env", name)
	}
	// It is a URL that QStash calls, or the name of a group of them; it goes into the path as it is.
	if to == "" || strings.ContainsAny(to, " \t\r\n\"<>#") {
		r.Fault("to", "needs to or to_env: the receiver's full URL, or the name of a URL group")
	}
	path := "/v2/publish/"
	if queue := r.String("queue"); queue != "" {
		path = "/v2/enqueue/" + url.PathEscape(queue) + "/"
	}
	if d.web.endpoint != nil {
		q.target = strings.TrimRight(d.web.endpoint.target, "/") + path + escapeTarget(to)
	}
	q.set("Upstash-Method", "POST")
	if r.Has("retries") {
		q.set("Upstash-Retries", strconv.Itoa(r.Int("retries", 0, 0, 1000)))
	}
	for _, s := range qstashHeaders {
		if value := r.String(s.setting); value != "" {
			if value != cleanHeader(value) {
				r.Fault(s.setting, "has a line break inside")
			}
			q.set(s.header, value)
		}
	}
	// The file's headers are the receiver's, not those of QStash.
	for i := range d.web.headers {
		d.web.headers[i][0] = "Upstash-Forward-" + d.web.headers[i][0]
	}
	secrets := r.secrets("secret")
	d.secrets = append(d.secrets, secrets...)
	if len(secrets) > 0 {
		q.plain = newMAC([]byte(secrets[0]))
	}
	r.envelope(envelope.Outbox)
	d.open = func(g guard) sink {
		opened := q
		opened.poster = newPoster(d, g, q.target)
		return &opened
	}
}

// qstashHeaders are the settings that QStash takes as headers.
var qstashHeaders = []struct{ setting, header string }{
	{"retry_delay", "Upstash-Retry-Delay"},
	{"delay", "Upstash-Delay"},
	{"callback", "Upstash-Callback"},
	{"failure_callback", "Upstash-Failure-Callback"},
	{"label", "Upstash-Label"},
	{"flow_control_key", "Upstash-Flow-Control-Key"},
	{"flow_control", "Upstash-Flow-Control-Value"},
	{"receiver_timeout", "Upstash-Timeout"},
}

// qstash publishes. What the receiver gets is an envelope and Idempotency-Key, and X-Signature where there is a
// secret (QStash adds a signature of its own); a time is not signed, since QStash may deliver hours later.
type qstash struct {
	*poster
	target  string
	token   string
	headers [][2]string
	plain   *mac
}

func (q *qstash) set(name, value string) { q.headers = append(q.headers, [2]string{name, value}) }

func (q *qstash) send(lease *pipeline.Lease, now, deadline time.Time) answer {
	body := q.envelope.Append(nil, &lease.Message, q.tenants)
	a := q.post(lease, body, deadline, func(req *fasthttp.Request) {
		req.Header.Set("Authorization", "Bearer "+q.token)
		for _, h := range q.headers {
			req.Header.Set(h[0], h[1])
		}
		req.Header.Set("Upstash-Deduplication-Id", dedupID(lease))
		forward := func(name, value string) { req.Header.Set("Upstash-Forward-"+name, value) }
		setOwn(forward, lease.Headers)
		q.setEnvelope(req, "Upstash-Forward-", lease)
		forward("Idempotency-Key", lease.IdempotencyKey.String())
		if q.plain != nil {
			forward("X-Signature", string(q.plain.append(nil, hex.AppendEncode, body)))
		}
	}, func(resp *fasthttp.Response, a *answer) {
		a.hold = qstashHold(a.status, func(name string) string { return string(resp.Header.Peek(name)) }, now)
	})
	return a
}

// configHold is how long a destination is left alone that refuses the token, or does not know the queue: only an
// operator can help, and the messages are not at fault.
const configHold = time.Minute

// qstashHold returns how long to hold, for answers that are not about the message; 0 for others. 429 comes in two
// kinds, for bursts and for the day's quota, each with the time of its end.
func qstashHold(status int, header func(string) string, now time.Time) time.Duration {
	switch status {
	case 401, 403, 404:
		return configHold
	case 429:
		for _, name := range []string{"Burst-RateLimit-Reset", "RateLimit-Reset", "Retry-After"} {
			n, err := strconv.ParseFloat(header(name), 64)
			if err != nil || n < 0 {
				continue
			}
			wait := time.Duration(min(n, 1e9) * float64(time.Second))
			switch { // seconds from now, or a Unix time in seconds or milliseconds
			case n > 1e12:
				wait = time.UnixMilli(int64(min(n, 1e15))).Sub(now)
			case n > 1e9:
				wait = time.Unix(int64(n), 0).Sub(now)
			}
			return min(max(wait, time.Second), 24*time.Hour)
		}
		return configHold
	}
	return 0
}
