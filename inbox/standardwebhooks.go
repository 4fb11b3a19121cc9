package inbox

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// StandardWebhooks verifies webhook-id, webhook-timestamp and webhook-signature as Standard Webhooks 1.0.0 has it:
// v1 (HMAC-SHA256) and v1a (ed25519).
type StandardWebhooks struct {
	// Tolerance is how far webhook-timestamp may be from Now, either way. Default 5 minutes, as in the reference
	// libraries.
	Tolerance time.Duration
	// Now is the clock. Default time.Now.
	Now func() time.Time

	secrets [][]byte
	publics []ed25519.PublicKey
}

// minSecret is the specification's lower bound for a secret, in bytes.
const minSecret = 24

// maxSignatures bounds the work that one request can ask for. A rotation needs two; 16 is a guess with much room.
const maxSignatures = 16

// NewStandardWebhooks takes shared secrets (whsec_ and base64; the prefix may be missing, and "v1," may stand before
// it) and ed25519 public keys (whpk_ and base64). A message is good when any of its signatures fits any of them, so a
// rotation is having both the old and the new one here for a while. The error joins what is wrong with each.
func NewStandardWebhooks(secrets ...string) (*StandardWebhooks, error) {
	v := &StandardWebhooks{Tolerance: 5 * time.Minute, Now: time.Now}
	var faults []error
	if len(secrets) == 0 {
		faults = append(faults, errors.New("inbox: no secret given: at least one whsec_ or whpk_ is needed"))
	}
	for i, s := range secrets {
		if err := v.add(s); err != nil {
			faults = append(faults, fmt.Errorf("inbox: secret %d of %d: %w", i+1, len(secrets), err))
		}
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return v, nil
}

func (v *StandardWebhooks) add(s string) error {
	s = strings.TrimSpace(s) // files end in newlines, some of them in CR LF
	switch {
	case s == "":
		return errors.New("is empty")
	case strings.ContainsAny(s, "\r\n"):
		// Go's decoder would skip them, and join two secrets to one that no sender has.
		return errors.New("has a line break inside: give one secret at a time")
	}
	s = strings.TrimPrefix(s, "v1,")
	if strings.HasPrefix(s, "whsk_") {
		return errors.New("is a private key (whsk_): a receiver needs the public key (whpk_)")
	}
	encoded, public := strings.CutPrefix(s, "whpk_")
	if !public {
		encoded = strings.TrimPrefix(s, "whsec_")
	}
	key, err := decode(base64.RawStdEncoding, encoded)
	switch {
	case err != nil:
		return errors.New("is not base64 after its prefix") // the decoder's own error quotes nothing and adds nothing
	case public && len(key) != ed25519.PublicKeySize:
		return fmt.Errorf("is a public key of %d bytes: ed25519 has %d", len(key), ed25519.PublicKeySize)
	case public:
		v.publics = append(v.publics, key)
	case len(key) < minSecret:
		return fmt.Errorf("is too short: %d bytes after base64, at least %d are needed", len(key), minSecret)
	default:
		v.secrets = append(v.secrets, key)
	}
	return nil
}

// decode reads base64 with or without padding.
func decode(e *base64.Encoding, s string) ([]byte, error) {
	return e.DecodeString(strings.TrimRight(s, "="))
}

// Verify implements Verifier.
func (v *StandardWebhooks) Verify(header http.Header, body []byte) error {
	id, err := one(header, "webhook-id")
	if err != nil {
		return err
	}
	if strings.Contains(id, ".") {
		// The signed text is id.timestamp.body; with a dot in the id it could be cut in two ways.
		return unverified("webhook-id holds a dot")
	}
	timestamp, err := one(header, "webhook-timestamp")
	if err != nil {
		return err
	}
	signatures, err := one(header, "webhook-signature")
	if err != nil {
		return err
	}
	seconds, err := strconv.ParseUint(timestamp, 10, 62)
	if err != nil {
		return unverified("webhook-timestamp is not a whole number of seconds since 1970")
	}
	age := v.Now().Unix() - int64(seconds)
	if tolerance := int64(v.Tolerance / time.Second); age > tolerance || -age > tolerance {
		return unverified("webhook-timestamp is %d s from this machine's clock, the tolerance is %d s", age, tolerance)
	}
	return v.match(strings.Fields(signatures), []byte(id+"."+timestamp+"."), body)
}

func (v *StandardWebhooks) match(signatures []string, head, body []byte) error {
	if len(signatures) > maxSignatures {
		return unverified("webhook-signature holds %d signatures, at most %d are looked at", len(signatures), maxSignatures)
	}
	var macs [][]byte
	for _, secret := range v.secrets {
		mac := hmac.New(sha256.New, secret)
		mac.Write(head)
		mac.Write(body)
		macs = append(macs, mac.Sum(nil))
	}
	var content []byte
	if len(v.publics) > 0 { // ed25519 wants it in one piece
		content = append(head, body...)
	}
	usable, garbled := 0, 0
	for _, s := range signatures {
		version, encoded, _ := strings.Cut(s, ",")
		symmetric := version == "v1" && len(v.secrets) > 0
		if !symmetric && (version != "v1a" || len(v.publics) == 0) {
			continue // a version of the future, or one whose key we do not have: another entry may fit
		}
		usable++
		signature, err := decode(base64.RawStdEncoding, encoded)
		if err != nil {
			garbled++
			continue
		}
		for _, mac := range macs {
			if symmetric && hmac.Equal(mac, signature) {
				return nil
			}
		}
		for _, public := range v.publics {
			if !symmetric && ed25519.Verify(public, content, signature) {
				return nil
			}
		}
	}
	switch {
	case usable == 0:
		return unverified("webhook-signature holds no signature of a version that a secret is configured for "+
			"(v1: %d secrets, v1a: %d keys)",
			len(v.secrets), len(v.publics))
	case garbled == usable:
		return unverified("webhook-signature holds no signature in base64")
	}
	return unverified("no signature in webhook-signature fits: another secret, or the body was changed on the way")
}
