package deliver

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"sluice.example/sluice/pipeline"
)

const userAgent = "sluice/1 (+https://www.standardwebhooks.com)"

// dedupID is the same for every attempt, so that a publish whose answer was lost is not doubled, and another one after
// an operator's retry, which the broker must not swallow. Hexadecimal: some regions of QStash refuse a colon.
func dedupID(lease *pipeline.Lease) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/%d", lease.IdempotencyKey, lease.Redrives))
	return hex.EncodeToString(sum[:])
}

// ours are the headers that neither the file nor a message may set.
var ours = map[string]bool{
	"host": true, "content-length": true, "content-type": true, "transfer-encoding": true, "connection": true,
	"te": true, "trailer": true, "upgrade": true, "keep-alive": true, "expect": true, "user-agent": true,
	"idempotency-key": true, "x-signature": true, "webhook-id": true, "webhook-timestamp": true,
	"webhook-signature": true, "x-hub-signature-256": true, "x-github-event": true, "x-github-delivery": true,
	"stripe-signature": true,
}

// setOwn calls set for the application's own headers of a message, except those that are not its to set.
func setOwn(set func(name, value string), headers map[string]string) {
	for name, value := range headers {
		if validHeader(name) && !ours[strings.ToLower(name)] {
			set(name, cleanHeader(value))
		}
	}
}

// validHeader reports whether s is a token of RFC 9110, as names of headers are.
func validHeader(s string) bool {
	for _, c := range []byte(s) {
		if c <= ' ' || c >= 0x7f || strings.IndexByte(`()<>@,;:\"/[]?={}`, c) >= 0 {
			return false
		}
	}
	return s != ""
}

// cleanHeader keeps a message from adding lines to the request.
func cleanHeader(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\t' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
}
