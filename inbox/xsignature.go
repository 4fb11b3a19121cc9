package inbox

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// XSignature verifies X-Signature: the HMAC-SHA256 of the raw body in hexadecimal, either case. No time is signed, so
// a message that someone recorded always verifies; ConsumeOnce makes the repeat harmless.
type XSignature struct{ secrets [][]byte }

// NewXSignature takes the secrets, of which any may fit. The key is the secret's own bytes, without white space around
// it. The error joins what is wrong with each.
func NewXSignature(secrets ...string) (*XSignature, error) {
	v := &XSignature{}
	var faults []error
	if len(secrets) == 0 {
		faults = append(faults, errors.New("inbox: no secret given: at least one is needed"))
	}
	for i, s := range secrets {
		switch s = strings.TrimSpace(s); {
		case s == "":
			faults = append(faults, fmt.Errorf("inbox: secret %d of %d: is empty", i+1, len(secrets)))
		case strings.ContainsAny(s, "\r\n"):
			faults = append(faults, fmt.Errorf("inbox: secret %d of %d: has a line break inside: give one secret at a time",
				i+1, len(secrets)))
		}
		v.secrets = append(v.secrets, []byte(s))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return v, nil
}

// Verify implements Verifier.
func (v *XSignature) Verify(header http.Header, body []byte) error {
	value, err := one(header, "X-Signature")
	if err != nil {
		return err
	}
	signature, err := hex.DecodeString(value)
	if err != nil || len(signature) != sha256.Size {
		return unverified("X-Signature is not %d hexadecimal digits", 2*sha256.Size)
	}
	for _, secret := range v.secrets {
		mac := hmac.New(sha256.New, secret)
		mac.Write(body)
		if hmac.Equal(mac.Sum(nil), signature) {
			return nil
		}
	}
	return unverified("X-Signature does not fit: another secret, or the body was changed on the way")
}
