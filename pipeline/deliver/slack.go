package deliver

import (
	"encoding/json"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/valyala/fasthttp"

	"sluice.example/sluice/internal/jsontext"
	"sluice.example/sluice/pipeline"
)

// slack reads a destination that is a Slack incoming webhook. Its address is the secret.
func (r *reader) slack() {
	d := r.d
	if r.Has("url") {
		r.Fault("url", "the address of a Slack webhook is a secret: use url_env")
	}
	d.web.endpoint = r.address("https", "http")
	r.http()
	if d.web.endpoint != nil {
		path, _, _ := strings.Cut(d.web.endpoint.target, "?")
		for _, secret := range []string{d.web.endpoint.target, path} {
			if secret != "/" {
				d.secrets = append(d.secrets, secret)
			}
		}
	}
	d.open = func(g guard) sink { return slack{newPoster(d, g, d.web.endpoint.target)} }
}

// slack sends a payload that is a Slack message (an object with text, blocks or attachments) as it is, and any other
// one as text.
type slack struct{ *poster }

func (s slack) send(lease *pipeline.Lease, _, deadline time.Time) answer {
	return s.post(lease, slackBody(lease), deadline, func(*fasthttp.Request) {}, nil)
}

func slackBody(lease *pipeline.Lease) []byte {
	var message map[string]json.RawMessage
	if json.Unmarshal(lease.Payload, &message) == nil {
		for _, key := range []string{"text", "blocks", "attachments"} {
			if _, ok := message[key]; ok {
				return lease.Payload
			}
		}
	}
	// Slack cuts a text after 40,000 characters; a message that is read is much shorter.
	const most = 3000
	data := string(lease.Payload)
	if len(data) > most {
		cut := most
		for !utf8.RuneStart(data[cut]) {
			cut--
		}
		data = data[:cut] + "..."
	}
	body := []byte(`{"text":`)
	body = jsontext.AppendString(body, "*"+lease.Type+"*\n```"+data+"```")
	return append(body, '}')
}
