package ingest

import (
	"bytes"
	"encoding/base64"
)

// credentials returns the write key of a request: from its Authorization header, as a bearer token or as the user name
// of Basic, or from X-Write-Key. It is nil where there is none.
func credentials(authorization, writeKey []byte) []byte {
	scheme, rest, _ := bytes.Cut(authorization, []byte(" "))
	rest = bytes.TrimSpace(rest)
	switch {
	case bytes.EqualFold(scheme, []byte("Bearer")):
		return rest
	case bytes.EqualFold(scheme, []byte("Basic")):
		user := make([]byte, base64.StdEncoding.DecodedLen(len(rest)))
		n, err := base64.StdEncoding.Decode(user, rest)
		if err != nil {
			return nil
		}
		user, _, _ = bytes.Cut(user[:n], []byte(":"))
		return user
	case len(authorization) == 0:
		return writeKey
	}
	return nil
}
