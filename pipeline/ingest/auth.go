package ingest

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
)

// Auth knows the tenants and their write keys. Its zero value has one tenant, 1 ("default"), and asks for no key. It
// is immutable, so it may be used from several goroutines.
type Auth struct {
	tenants map[string]int32
	// By the first bytes of the key's hash, which narrow a look-up down to one key; the rest is compared in constant
	// time.
	keys   map[uint64][]writeKey
	limits map[int32]limits
}

type writeKey struct {
	hash   [sha256.Size]byte
	tenant int32
}

// Tenants returns the id of each tenant by its name. The map is the caller's.
func (a Auth) Tenants() map[string]int32 {
	if a.tenants == nil {
		return map[string]int32{"default": 1}
	}
	m := make(map[string]int32, len(a.tenants))
	for name, id := range a.tenants {
		m[name] = id
	}
	return m
}

// tenant returns the tenant of a write key.
func (a Auth) tenant(key []byte) (int32, bool) {
	if a.tenants == nil {
		return 1, true
	}
	if len(key) == 0 {
		return 0, false
	}
	hash := sha256.Sum256(key)
	for _, k := range a.keys[binary.LittleEndian.Uint64(hash[:])] {
		if subtle.ConstantTimeCompare(k.hash[:], hash[:]) == 1 {
			return k.tenant, true
		}
	}
	return 0, false
}

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
