package ingest

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"
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

// Tenants gives the id of each tenant by its name. The map is the caller's.
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

// LoadAuth reads a tenants file:
//
//	tenants:
//	  - {id: 2, name: acme, keys: ["sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"]}
//
// and, in a tenant, what it may send on average to one process: limits: {events-per-second: 5000, bytes-per-second: 2000000}.
//
// A key is kept as the SHA-256 of its text. Several keys of one tenant let it change from one to the next.
// The error names every fault of the file.
func LoadAuth(path string) (Auth, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return Auth{}, fmt.Errorf("ingest: tenants: %w", err)
	}
	a, err := parseAuth(text)
	if err != nil {
		return Auth{}, fmt.Errorf("ingest: tenants: %s: %w", path, err)
	}
	return a, nil
}

func parseAuth(text []byte) (Auth, error) {
	var file struct {
		Tenants []struct {
			ID     int32    `yaml:"id"`
			Name   string   `yaml:"name"`
			Keys   []string `yaml:"keys"`
			Limits limits   `yaml:"limits"`
		} `yaml:"tenants"`
	}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)
	if err := dec.Decode(&file); err != nil && !errors.Is(err, io.EOF) {
		return Auth{}, err
	}
	a := Auth{tenants: map[string]int32{}, keys: map[uint64][]writeKey{}, limits: map[int32]limits{}}
	ids, hashes := map[int32]string{}, map[[sha256.Size]byte]string{}
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if len(file.Tenants) == 0 {
		fault(`no tenants; write "tenants: [{id: 1, name: default, keys: [...]}]", or leave the file out to let everybody in as tenant 1`)
	}
	for i, t := range file.Tenants {
		who := fmt.Sprintf("tenant %q", t.Name)
		if t.Name == "" {
			who = fmt.Sprintf("tenant number %d", i+1)
			fault("%s has no name", who)
		}
		if t.ID < 1 {
			fault("%s has the id %d; give it one of its own from 1 on, and never change it", who, t.ID)
		} else if other, taken := ids[t.ID]; taken {
			fault("%s has the id %d, and so has %s", who, t.ID, other)
		}
		ids[t.ID] = who
		if _, taken := a.tenants[t.Name]; taken && t.Name != "" {
			fault("%s appears twice", who)
		}
		a.tenants[t.Name] = t.ID
		if t.Limits.EventsPerSecond < 0 || t.Limits.BytesPerSecond < 0 {
			fault("%s has limits of %g events-per-second and %g bytes-per-second; leave one out, or set it to 0, for no limit", who, t.Limits.EventsPerSecond, t.Limits.BytesPerSecond)
		}
		if t.Limits != (limits{}) {
			a.limits[t.ID] = t.Limits
		}
		if len(t.Keys) == 0 {
			fault("%s has no keys, so it could send nothing", who)
		}
		for j, key := range t.Keys {
			text, ok := strings.CutPrefix(key, "sha256:")
			raw, err := hex.DecodeString(text)
			if !ok || err != nil || len(raw) != sha256.Size {
				// The text is not shown: it may be the key itself.
				fault(`key %d of %s is not "sha256:" and 64 hexadecimal digits; make it with: printf %%s "$KEY" | sha256sum`, j+1, who)
				continue
			}
			hash := [sha256.Size]byte(raw)
			if other, taken := hashes[hash]; taken {
				fault("key %d of %s is also a key of %s", j+1, who, other)
				continue
			}
			hashes[hash] = who
			at := binary.LittleEndian.Uint64(hash[:])
			a.keys[at] = append(a.keys[at], writeKey{hash, t.ID})
		}
	}
	return a, errors.Join(faults...)
}

// tenant gives the tenant of a write key.
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

// credentials gives the write key of a request out of its Authorization header, as a bearer token or as the user name
// of Basic, or out of X-Write-Key. It is nil where there is none.
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
