package pipeline

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"time"
)

// UUID is an RFC 9562 UUID. Its zero value is the nil UUID. pgx reads and writes it as PostgreSQL's uuid.
type UUID [16]byte

// ParseUUID reads the canonical form, 36 characters with hyphens, in either case.
func ParseUUID(s string) (UUID, bool) {
	var u UUID
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return UUID{}, false
	}
	j := 0
	for i := 0; i < 36; {
		if s[i] == '-' {
			i++
			continue
		}
		hi, lo := hexDigit[s[i]], hexDigit[s[i+1]]
		if hi|lo > 0x0f {
			return UUID{}, false
		}
		u[j] = hi<<4 | lo
		j++
		i += 2
	}
	return u, true
}

// hexDigit maps a hexadecimal digit to its value and everything else to 0xff.
var hexDigit = func() (t [256]byte) {
	for i := range t {
		t[i] = 0xff
	}
	for i := range 10 {
		t['0'+i] = byte(i)
	}
	for i := range 6 {
		t['a'+i], t['A'+i] = byte(10+i), byte(10+i)
	}
	return t
}()

// NewUUIDv7 makes a UUID of version 7 for the given time: 48 bits of Unix milliseconds, then random bits.
func NewUUIDv7(t time.Time) UUID {
	var u UUID
	rand.Read(u[6:]) // never fails, see crypto/rand
	ms := uint64(t.UnixMilli())
	binary.BigEndian.PutUint16(u[0:], uint16(ms>>32))
	binary.BigEndian.PutUint32(u[2:], uint32(ms))
	u[6] = u[6]&0x0f | 0x70
	u[8] = u[8]&0x3f | 0x80
	return u
}

// NewUUIDv4 makes a random UUID, for tokens that mean nothing.
func NewUUIDv4() UUID {
	var u [16]byte
	rand.Read(u[:])
	return UUIDv4(u)
}

// UUIDv4 makes a UUID of version 4 out of random bytes, for callers that read the bytes of many at once.
func UUIDv4(random [16]byte) UUID {
	u := UUID(random)
	u[6] = u[6]&0x0f | 0x40
	u[8] = u[8]&0x3f | 0x80
	return u
}

// HashUUID makes a UUID of version 8 out of any string: the first 122 free bits of its SHA-256. Equal strings make
// equal UUIDs on every node.
func HashUUID(s string) UUID {
	sum := sha256.Sum256([]byte(s))
	u := UUID(sum[:16])
	u[6] = u[6]&0x0f | 0x80
	u[8] = u[8]&0x3f | 0x80
	return u
}

// Time returns the time inside a UUID of version 7, to the millisecond, in UTC.
func (u UUID) Time() (time.Time, bool) {
	if u[6]>>4 != 7 || u[8]>>6 != 2 {
		return time.Time{}, false
	}
	ms := int64(binary.BigEndian.Uint16(u[0:]))<<32 | int64(binary.BigEndian.Uint32(u[2:]))
	return time.UnixMilli(ms).UTC(), true
}

// String returns the canonical form in lower case.
func (u UUID) String() string {
	var b [36]byte
	hex.Encode(b[0:8], u[0:4])
	b[8] = '-'
	hex.Encode(b[9:13], u[4:6])
	b[13] = '-'
	hex.Encode(b[14:18], u[6:8])
	b[18] = '-'
	hex.Encode(b[19:23], u[8:10])
	b[23] = '-'
	hex.Encode(b[24:36], u[10:16])
	return string(b[:])
}

// MarshalText returns the canonical form, so that JSON has it as a string.
func (u UUID) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// UnmarshalText reads the canonical form.
func (u *UUID) UnmarshalText(text []byte) error {
	parsed, ok := ParseUUID(string(text))
	if !ok {
		return errors.New("not a UUID")
	}
	*u = parsed
	return nil
}
