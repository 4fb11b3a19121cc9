package deliver

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"hash"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"sluice.example/sluice/internal/spell"
)

// signer sets the headers by which a receiver knows that a message is ours.
//
// standard-webhooks: webhook-id, webhook-timestamp and webhook-signature, which holds one signature of
// id.timestamp.body for each secret: "v1," and the base64 HMAC-SHA256 for a whsec_ secret (its key is what stands in
// base64 after the prefix, which may be missing), and "v1a," and the base64 ed25519 signature for a whsk_ private key.
// The others take the HMAC-SHA256 in hexadecimal, whose key is the secret's own bytes, prefix and all.
// x-signature: of the body, with the first secret. github: X-Hub-Signature-256, of the body, with the first secret.
// stripe: Stripe-Signature, of timestamp.body, one for each secret.
type signer struct {
	standard      bool
	versions      []version
	plain, github *mac
	stripe        []*mac
}

// version is one entry of webhook-signature.
type version struct {
	hmac    *mac
	ed25519 ed25519.PrivateKey
}

var signatureStyles = []string{"standard-webhooks", "x-signature", "github", "stripe", "none"}

// signer reads signatures: which styles to send; the first two where the file does not say.
func (r *reader) signer(secrets []string) (s signer) {
	styles := r.Strings("signatures")
	if len(styles) == 1 && styles[0] == "none" {
		if len(secrets) > 0 {
			r.Fault("signatures", "none, but a secret is given")
		}
		return signer{standard: true} // the id and the time, unsigned
	}
	if len(secrets) == 0 {
		if !r.Has("secret_env") && !r.Has("secret_file") {
			r.File().Fault(r.Node(), r.Where,
				"needs secret_env or secret_file to sign with; to send unsigned, set signatures: none")
		}
		return signer{}
	}
	var shared []string // a private key is not for the styles that share their key
	for _, secret := range secrets {
		if !strings.HasPrefix(secret, "whsk_") {
			shared = append(shared, secret)
		}
	}
	if styles == nil {
		styles = []string{"standard-webhooks", "x-signature"}
		if len(shared) == 0 {
			styles = styles[:1]
		}
	}
	for _, style := range styles {
		switch {
		case style == "standard-webhooks":
			s.standard = true
			for _, secret := range secrets {
				s.versions = append(s.versions, r.version(secret)...)
			}
		case !slices.Contains(signatureStyles, style) || style == "none":
			r.Fault("signatures", "unknown style of signature %q%s", style, spell.DidYouMean(style, signatureStyles))
		case len(shared) == 0:
			r.Fault("signatures", "%s needs a secret that is not a private key (whsk_)", style)
		case style == "x-signature":
			s.plain = newMAC([]byte(shared[0]))
		case style == "github":
			s.github = newMAC([]byte(shared[0]))
		case style == "stripe":
			for _, secret := range shared {
				s.stripe = append(s.stripe, newMAC([]byte(secret)))
			}
		}
	}
	return s
}

// version reads the key inside a secret, and returns none where that is wrong. No fault quotes the secret.
func (r *reader) version(secret string) []version {
	secret = strings.TrimPrefix(secret, "v1,") // as some consoles show it
	prefix := ""
	for _, known := range []string{"whsec_", "whsk_", "whpk_"} {
		if strings.HasPrefix(secret, known) {
			prefix = known
		}
	}
	at := "secret_file"
	if r.Has("secret_env") {
		at = "secret_env"
	}
	key, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(strings.TrimPrefix(secret, prefix), "="))
	switch {
	case err != nil && prefix == "":
		// Verifiers read a secret without its prefix as base64 too; taken as plain bytes, no signature would fit.
		r.Fault(at, "a secret is not base64, which Standard Webhooks needs: make one of whsec_ and the base64 of "+
			"32 random bytes, or set signatures: x-signature")
	case err != nil:
		r.Fault(at, "a secret is not base64 after %s", prefix)
	case prefix == "whpk_":
		r.Fault(at, "a secret is a public key (whpk_): to sign, the private key (whsk_) is needed")
	case prefix == "whsk_" && len(key) == ed25519.SeedSize:
		return []version{{ed25519: ed25519.NewKeyFromSeed(key)}}
	case prefix == "whsk_" && len(key) == ed25519.PrivateKeySize:
		return []version{{ed25519: key}}
	case prefix == "whsk_":
		r.Fault(at, "a private key has %d bytes after whsk_: ed25519 has %d, or %d without the public key", len(key),
			ed25519.PrivateKeySize, ed25519.SeedSize)
	case len(key) < minSecret:
		r.Fault(at, "a secret has %d bytes after whsec_: Standard Webhooks needs at least %d, for example whsec_ and "+
			"the base64 of 32 random bytes", len(key), minSecret)
	default:
		return []version{{hmac: newMAC(key)}}
	}
	return nil
}

// minSecret is the least that Standard Webhooks allows, in bytes.
const minSecret = 24

// sign calls set, which keeps nothing, for each header of a message. It works in b, and returns it grown.
func (s signer) sign(b []byte, set func(name string, value []byte), kind string, id []byte, now time.Time,
	body []byte) []byte {
	b = append(append(b[:0], id...), '.')
	b = append(strconv.AppendInt(b, now.Unix(), 10), '.')
	before, timestamp := b, b[len(id)+1:]
	if s.standard {
		set("webhook-id", id)
		set("webhook-timestamp", timestamp[:len(timestamp)-1])
	}
	if len(s.versions) > 0 {
		b = b[:len(before)]
		for i, v := range s.versions {
			if i > 0 {
				b = append(b, ' ')
			}
			if v.hmac != nil {
				b = v.hmac.append(append(b, "v1,"...), base64.StdEncoding.AppendEncode, before, body)
				continue
			}
			b = append(b, "v1a,"...)
			b = base64.StdEncoding.AppendEncode(b, ed25519.Sign(v.ed25519, slices.Concat(before, body)))
		}
		set("webhook-signature", b[len(before):])
	}
	if s.plain != nil {
		b = s.plain.append(b[:len(before)], hex.AppendEncode, body)
		set("X-Signature", b[len(before):])
	}
	if s.github != nil {
		b = s.github.append(append(b[:len(before)], "sha256="...), hex.AppendEncode, body)
		set("X-Hub-Signature-256", b[len(before):])
		set("X-GitHub-Event", []byte(kind))
		set("X-GitHub-Delivery", id)
	}
	if len(s.stripe) > 0 {
		b = append(b[:len(before)], "t="...)
		b = append(b, timestamp[:len(timestamp)-1]...)
		for _, m := range s.stripe {
			b = m.append(append(b, ",v1="...), hex.AppendEncode, timestamp, body)
		}
		set("Stripe-Signature", b[len(before):])
	}
	return b
}

// mac makes HMAC-SHA256s with one key, from several goroutines. Setting a key up costs two hash blocks, so states are
// used again.
type mac struct{ pool sync.Pool }

type macState struct {
	hash.Hash
	sum []byte
}

func newMAC(key []byte) *mac {
	return &mac{pool: sync.Pool{New: func() any { return &macState{Hash: hmac.New(sha256.New, key)} }}}
}

// append appends the encoded sum of parts.
func (m *mac) append(dst []byte, encode func(dst, src []byte) []byte, parts ...[]byte) []byte {
	s := m.pool.Get().(*macState)
	s.Reset()
	for _, p := range parts {
		s.Write(p)
	}
	s.sum = s.Sum(s.sum[:0])
	dst = encode(dst, s.sum)
	m.pool.Put(s)
	return dst
}
