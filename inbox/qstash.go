package inbox

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// QStash verifies Upstash-Signature, a JWT that names the receiver's address and the hash of the body.
type QStash struct {
	// Tolerance is how far the sender's clock may be off. Default 5 seconds (a guess; the tokens live 5 minutes).
	Tolerance time.Duration
	// Now is the clock. Default time.Now.
	Now func() time.Time

	keys    [2][]byte
	address string
}

// NewQStash takes both signing keys as the console shows them (sig_...), and the address that messages are published
// to, exactly as it is given there: behind a proxy it is not what the request shows. The error joins all faults.
func NewQStash(currentKey, nextKey, address string) (*QStash, error) {
	v := &QStash{Tolerance: 5 * time.Second, Now: time.Now, address: strings.TrimSpace(address)}
	var faults []error
	for i, key := range []string{currentKey, nextKey} {
		key = strings.TrimSpace(key)
		if key == "" || strings.ContainsAny(key, "\r\n") {
			faults = append(faults, fmt.Errorf("inbox: the %s signing key is empty or has a line break inside",
				[2]string{"current", "next"}[i]))
		}
		v.keys[i] = []byte(key)
	}
	if u, err := url.Parse(v.address); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		faults = append(faults, errors.New("inbox: the address of the receiver has to be a full http or https URL"))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return v, nil
}

// Verify implements Verifier.
func (v *QStash) Verify(header http.Header, body []byte) error {
	token, err := one(header, "Upstash-Signature")
	if err != nil {
		return err
	}
	part := strings.Split(token, ".")
	if len(part) != 3 {
		return unverified("Upstash-Signature is not a JWT: %d parts instead of 3", len(part))
	}
	// The algorithm is ours, never the token's choice; its header is read to give a better reason.
	var head struct{ Alg string }
	if err := decodeJSON(part[0], &head); err != nil {
		return unverified("Upstash-Signature: the header of the JWT is not readable")
	}
	if head.Alg != "HS256" {
		return unverified("Upstash-Signature: the algorithm of the JWT has to be HS256")
	}
	signature, err := decode(base64.RawURLEncoding, part[2])
	if err != nil {
		return unverified("Upstash-Signature: the signature of the JWT is not base64url")
	}
	if !v.signed([]byte(part[0]+"."+part[1]), signature) {
		return unverified("Upstash-Signature fits neither the current nor the next signing key")
	}
	return v.checkClaims(part[1], body)
}

func (v *QStash) signed(content, signature []byte) bool {
	for _, key := range v.keys {
		mac := hmac.New(sha256.New, key)
		mac.Write(content)
		if hmac.Equal(mac.Sum(nil), signature) {
			return true
		}
	}
	return false
}

// checkClaims reads what a holder of the key has signed, so its values may be shown.
func (v *QStash) checkClaims(encoded string, body []byte) error {
	var claim struct {
		Iss, Sub, Body string
		Exp, Nbf       *float64
	}
	if err := decodeJSON(encoded, &claim); err != nil {
		return unverified("Upstash-Signature: the claims of the JWT are not readable")
	}
	now, tolerance := float64(v.Now().UnixNano())/1e9, v.Tolerance.Seconds()
	sum := sha256.Sum256(body)
	hash, err := decode(base64.RawURLEncoding, claim.Body)
	switch {
	case claim.Iss != "Upstash":
		return unverified("Upstash-Signature: iss is %q instead of Upstash", claim.Iss)
	case claim.Sub != v.address:
		return unverified("Upstash-Signature: sub is %q, this receiver is configured as %q", claim.Sub, v.address)
	case claim.Exp == nil:
		return unverified("Upstash-Signature: exp is missing")
	case now >= *claim.Exp+tolerance:
		return unverified("Upstash-Signature ended %.0f s ago, the tolerance is %.0f s", math.Ceil(now-*claim.Exp), tolerance)
	case claim.Nbf != nil && now < *claim.Nbf-tolerance:
		return unverified("Upstash-Signature begins in %.0f s, the tolerance is %.0f s", math.Ceil(*claim.Nbf-now), tolerance)
	case err != nil || !hmac.Equal(hash, sum[:]):
		return unverified("Upstash-Signature: the hash of the body does not fit; it has to be the raw body")
	}
	return nil
}

func decodeJSON(encoded string, into any) error {
	text, err := decode(base64.RawURLEncoding, encoded)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}
