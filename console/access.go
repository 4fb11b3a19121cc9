package console

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"
	"unicode"

	"go.yaml.in/yaml/v3"
	"golang.org/x/crypto/bcrypt"

	"sluice.example/sluice/internal/yamlfile"
)

// access is who may log in by name, and which tokens programs have, as the users file says:
//
//	users:
//	  - {name: ann, role: operator, password: "$2a$12$..."}
//	tokens:
//	  - {name: deploy, role: viewer, hash: "sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"}
//
// Passwords are kept as bcrypt hashes, tokens as the SHA-256 of their text.
type access struct {
	users  map[string]user
	tokens map[[sha256.Size]byte]Identity
	// hashing bounds how many passwords are compared at a time; one takes a quarter of a second of a processor.
	hashing chan struct{}
	failed  failures
}

type user struct {
	role     Role
	password []byte
}

// nobody's password is compared where a name is not known, so that an answer's time tells no names. It is no user's.
var nobodysPassword = sync.OnceValue(func() []byte {
	hash, err := bcrypt.GenerateFromPassword(secret(), passwordCost)
	if err != nil {
		panic(err) // the length is right
	}
	return hash
})

// passwordCost makes a hash take about a quarter of a second; a guess that suits logins by hand.
const passwordCost = 12

// HashPassword returns what the users file has of a password.
func HashPassword(password string) (string, error) {
	if len(password) < 8 || len(password) > 72 {
		return "", errors.New("a password has 8 to 72 bytes")
	}
	hash, err := bcrypt.GenerateFromPassword([]byte(password), passwordCost)
	return string(hash), err
}

// loadAccess reads a users file; the empty name is of one without users.
func loadAccess(name string) (*access, error) {
	a := &access{users: map[string]user{}, tokens: map[[sha256.Size]byte]Identity{}, hashing: make(chan struct{}, 2)}
	if name == "" {
		return a, nil
	}
	f := yamlfile.Read(name)
	top := f.Top("users", "tokens")
	entries := func(key, field string, add func(*yamlfile.Section, Identity) bool) {
		if !top.Has(key) {
			return
		}
		for i, item := range f.Items(top.Get(key), key, "a list of "+key) {
			s := f.Section(item, fmt.Sprintf("%s[%d]", key, i), "name", "role", field)
			if yamlfile.Resolve(s.Node()).Kind != yaml.MappingNode {
				continue // which Section reports
			}
			who := Identity{}
			if s.Require("name", "it is what the audit calls them") {
				who.Name = s.String("name")
			}
			if s.Require("role", "viewer or operator") {
				who.Role, _ = roleOf(s.OneOf("role", Viewer.String(), Operator.String()))
			}
			if len(who.Name) > 100 || strings.ContainsFunc(who.Name, unicode.IsControl) {
				s.Fault("name", "expected at most 100 bytes, none of them a control character")
			}
			if s.Require(field, "without it nobody could log in by it") && !add(s, who) {
				// The text is not shown: it may be the secret itself.
				s.Fault(field, "expected a hash; docs/console.md says how to make one")
			}
		}
	}
	entries("users", "password", func(s *yamlfile.Section, who Identity) bool {
		if _, taken := a.users[who.Name]; taken {
			s.Fault("name", "a user %q is in this file already", who.Name)
		}
		hash := []byte(s.String("password"))
		a.users[who.Name] = user{who.Role, hash}
		_, err := bcrypt.Cost(hash)
		return err == nil
	})
	entries("tokens", "hash", func(s *yamlfile.Section, who Identity) bool {
		text, ok := strings.CutPrefix(s.String("hash"), "sha256:")
		raw, err := hex.DecodeString(text)
		if !ok || err != nil || len(raw) != sha256.Size {
			return false
		}
		a.tokens[[sha256.Size]byte(raw)] = who
		return true
	})
	if f.Err() == nil && len(a.users)+len(a.tokens) == 0 {
		f.Fault(f.Root(), "", "neither users nor tokens; leave the setting empty to log in by links alone")
	}
	if err := f.Err(); err != nil {
		return nil, fmt.Errorf("console.users: %w", err)
	}
	return a, nil
}

// bearer returns whose token a request has. Looking up its hash takes the same time for every wrong token.
func (a *access) bearer(r *http.Request) (who Identity, sent, ok bool) {
	kind, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(kind, "Bearer") || len(a.tokens) == 0 {
		return who, false, false
	}
	who, ok = a.tokens[sha256.Sum256([]byte(strings.TrimSpace(token)))]
	return who, true, ok
}

// password returns who has a name and a password.
func (a *access) password(ctx context.Context, name, password string) (Identity, error) {
	select {
	case a.hashing <- struct{}{}:
		defer func() { <-a.hashing }()
	case <-ctx.Done():
		return Identity{}, ctx.Err()
	}
	u, known := a.users[name]
	if !known {
		u.password = nobodysPassword()
	}
	if err := bcrypt.CompareHashAndPassword(u.password, []byte(password)); err != nil || !known {
		return Identity{}, problem{http.StatusForbidden, "wrong_password", "the name or the password is wrong", ""}
	}
	return Identity{name, u.role}, nil
}

// failures counts logins that failed in this minute, by address, in bounded memory.
type failures struct {
	mu    sync.Mutex
	since time.Time
	from  map[netip.Prefix]int
}

const (
	// mostFailures is how many logins may fail in a minute from one address.
	mostFailures = 5
	// mostAddresses bounds the memory for them; all further ones count as one.
	mostAddresses = 1000
)

// try refuses an address from which too many logins failed, and counts this one as failed until succeeded is called.
func (f *failures) try(address string, now time.Time) (succeeded func(), err error) {
	from := network(address)
	f.mu.Lock()
	defer f.mu.Unlock()
	if now.Sub(f.since) >= time.Minute || f.from == nil {
		f.since, f.from = now, map[netip.Prefix]int{}
	}
	if _, known := f.from[from]; !known && len(f.from) >= mostAddresses {
		from = netip.Prefix{}
	}
	if f.from[from] >= mostFailures {
		return nil, problem{http.StatusTooManyRequests, "too_many_logins", "too many logins failed from this address",
			"try again in a minute"}
	}
	f.from[from]++
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.from[from] > 0 {
			f.from[from]--
		}
	}, nil
}

// network is what a login counts for: an IPv4 address, or the /64 of an IPv6 address.
func network(address string) netip.Prefix {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return netip.Prefix{}
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return netip.Prefix{}
	}
	bits := 64
	if ip = ip.Unmap(); ip.Is4() {
		bits = 32
	}
	prefix, _ := ip.WithZone("").Prefix(bits) // the numbers are right
	return prefix
}
