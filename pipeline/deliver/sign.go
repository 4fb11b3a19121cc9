package deliver

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"hash"
	"strings"
	"sync"
	"time"

	"go.yaml.in/yaml/v3"
)

// signer sets the headers by which a receiver knows that a message is ours.
//
// The Standard Webhooks triple is webhook-id, webhook-timestamp and webhook-signature: "v1," and the base64
// HMAC-SHA256 of id.timestamp.body, one for each secret. Its key is what stands in base64 after whsec_, or the secret's
// own bytes where it has no such prefix. X-Signature is the hexadecimal HMAC-SHA256 of the body; its key is the first
// secret's own bytes, prefix and all.
type signer struct {
	standard []*mac
	plain    *mac
}

var signatureStyles = []string{"standard-webhooks", "x-signature", "none"}

// signer reads signatures: which styles to send; both where the file does not say.
func (p *parser) signer(m *mapping, secrets []string) signer {
	styles := m.strings("signatures")
	if styles == nil {
		styles = []string{"standard-webhooks", "x-signature"}
	}
	where := m.get("signatures")
	if where == nil {
		where = m.node
	}
	if len(styles) == 1 && styles[0] == "none" {
		if len(secrets) > 0 {
			p.add(where, "%s: signatures are none, but a secret is given", m.what)
		}
		return signer{}
	}
	if len(secrets) == 0 {
		if m.get("secret_env") == nil && m.get("secret_file") == nil {
			p.add(where, "%s: needs secret_env or secret_file to sign with; to send unsigned, set signatures: none", m.what)
		}
		return signer{}
	}
	var s signer
	for _, style := range styles {
		switch style {
		case "standard-webhooks":
			for _, secret := range secrets {
				if key := p.standardKey(m, where, secret); key != nil {
					s.standard = append(s.standard, newMAC(key))
				}
			}
		case "x-signature":
			s.plain = newMAC([]byte(secrets[0]))
		default:
			p.add(where, "%s: unknown style of signature %q%s", m.what, style, didYouMean(style, signatureStyles))
		}
	}
	return s
}

// standardKey gives the key inside a secret. No error quotes the secret.
func (p *parser) standardKey(m *mapping, where *yaml.Node, secret string) []byte {
	encoded, ok := strings.CutPrefix(strings.TrimPrefix(secret, "v1,"), "whsec_")
	if !ok {
		if len(secret) < minSecret {
			p.add(where, "%s: a secret has %d bytes: at least %d are needed, for example whsec_ and the base64 of 32 random bytes", m.what, len(secret), minSecret)
			return nil
		}
		return []byte(secret)
	}
	key, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(encoded, "="))
	switch {
	case err != nil:
		p.add(where, "%s: a secret is not base64 after whsec_", m.what)
	case len(key) < minSecret:
		p.add(where, "%s: a secret has %d bytes after whsec_: Standard Webhooks needs at least %d", m.what, len(key), minSecret)
	default:
		return key
	}
	return nil
}

// minSecret is the least that Standard Webhooks allows, in bytes.
const minSecret = 24

// sign calls set for each header.
func (s signer) sign(set func(name, value string), id string, now time.Time, body []byte) {
	timestamp := seconds(now)
	set("webhook-id", id)
	set("webhook-timestamp", timestamp)
	if len(s.standard) > 0 {
		var b strings.Builder
		for i, m := range s.standard {
			if i > 0 {
				b.WriteByte(' ')
			}
			b.WriteString("v1,")
			b.WriteString(base64.StdEncoding.EncodeToString(m.sum(id, ".", timestamp, ".", string(body))))
		}
		set("webhook-signature", b.String())
	}
	if s.plain != nil {
		set("X-Signature", hex.EncodeToString(s.plain.sum(string(body))))
	}
}

// mac makes HMAC-SHA256s with one key, from several goroutines. Setting a key up costs two hash blocks, so states are
// used again.
type mac struct{ pool sync.Pool }

func newMAC(key []byte) *mac {
	return &mac{pool: sync.Pool{New: func() any { return hmac.New(sha256.New, key) }}}
}

func (m *mac) sum(parts ...string) []byte {
	h := m.pool.Get().(hash.Hash)
	h.Reset()
	for _, p := range parts {
		h.Write([]byte(p))
	}
	sum := h.Sum(nil)
	m.pool.Put(h)
	return sum
}
