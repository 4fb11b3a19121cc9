// Package inbox is for receivers: is this message genuine, and was it worked on before?
//
// A Verifier checks the signature over the raw body; Middleware puts one in front of an http.Handler. Nothing is
// handed on before the signature holds, comparisons take constant time, and errors name what is wrong without a secret.
//
// ConsumeOnce commits the work on a message together with the message's id, in the receiver's own PostgreSQL, so that
// a repeat (and every sender that delivers at least once repeats) changes nothing. Handler is both as net/http has it.
package inbox

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
)

// A Verifier decides whether a request comes from whom it claims to. body is the raw body, exactly as it came over the
// wire; it is borrowed until return. Every error is an ErrUnverified whose text names what is wrong. The Verifiers
// of this package are safe for concurrent use as long as nobody changes their fields.
type Verifier interface {
	Verify(header http.Header, body []byte) error
}

// ErrUnverified is what every error of a Verifier wraps. Compare with errors.Is.
var ErrUnverified = errors.New("not verified")

func unverified(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrUnverified, fmt.Sprintf(format, args...))
}

// Middleware reads the body, up to maxBody bytes, has v check it, and hands next a request whose body can be read
// again from the start. Otherwise it answers by itself: 413 for a longer body, 400 for one that broke off, 401 with
// the reason for one that is not verified.
func Middleware(v Verifier, maxBody int64, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
			http.Error(w, fmt.Sprintf("body is longer than %d bytes", maxBody), http.StatusRequestEntityTooLarge)
			return
		}
		if err != nil {
			http.Error(w, "body broke off", http.StatusBadRequest)
			return
		}
		if err := v.Verify(r.Header, body); err != nil {
			http.Error(w, err.Error(), http.StatusUnauthorized)
			return
		}
		r = r.WithContext(r.Context()) // a copy: the caller's request stays as it was
		r.Body = io.NopCloser(bytes.NewReader(body))
		r.ContentLength = int64(len(body))
		next.ServeHTTP(w, r)
	})
}

// one returns the only value of a header. A header sent twice is an error, since whoever reads it next may take the
// other value.
func one(header http.Header, name string) (string, error) {
	switch values := header.Values(name); {
	case len(values) == 0 || values[0] == "":
		return "", unverified("header %s is missing", name)
	case len(values) > 1:
		return "", unverified("header %s came %d times", name, len(values))
	default:
		return values[0], nil
	}
}
