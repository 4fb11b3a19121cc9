// Package tenants knows who may send: the tenants of a file, their write keys and their limits.
//
// A key is kept as the SHA-256 of its text, here as in the file, and no fault of a file shows one.
package tenants

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"maps"
)

// Set is all tenants. The zero value has one, 1 ("default"), and asks for no key. It is immutable, so it may be used
// from several goroutines.
type Set struct {
	ids map[string]int32
	// By the first bytes of the key's hash, which narrow a look-up down to one key; the rest is compared in constant
	// time.
	keys   map[uint64][]writeKey
	limits map[int32]Limits
}

type writeKey struct {
	hash   [sha256.Size]byte
	tenant int32
}

// Limits are what a tenant may send on average, per process; 0 is no limit.
type Limits struct {
	EventsPerSecond float64
	BytesPerSecond  float64
}

// IDs returns the id of each tenant by its name. The map is the caller's.
func (s Set) IDs() map[string]int32 {
	if s.ids == nil {
		return map[string]int32{"default": 1}
	}
	return maps.Clone(s.ids)
}

// Limits returns the limits of the tenants that have some, by id. The map is the caller's.
func (s Set) Limits() map[int32]Limits { return maps.Clone(s.limits) }

// OfKey returns the tenant of a write key; ok is false where the key is nobody's. Without a tenants file any key, also
// none, is that of tenant 1.
func (s Set) OfKey(key []byte) (tenant int32, ok bool) {
	if s.ids == nil {
		return 1, true
	}
	if len(key) == 0 {
		return 0, false
	}
	hash := sha256.Sum256(key)
	for _, k := range s.keys[binary.LittleEndian.Uint64(hash[:])] {
		if subtle.ConstantTimeCompare(k.hash[:], hash[:]) == 1 {
			return k.tenant, true
		}
	}
	return 0, false
}
