package tenants

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"sluice.example/sluice/internal/yamlfile"
)

// Load reads a tenants file:
//
//	tenants:
//	  - {id: 2, name: acme, keys: ["sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"]}
//
// and, in a tenant, what it may send on average to one process:
//
//	limits: {events-per-second: 5000, bytes-per-second: 2000000}
//
// A key is kept as the SHA-256 of its text. Several keys of one tenant let it change from one to the next.
// The error has every fault of the file, with its place.
func Load(path string) (Set, error) { return read(yamlfile.Read(path)) }

// Parse is Load for a text that is at hand; name stands for the file in faults.
func Parse(name, text string) (Set, error) { return read(yamlfile.Parse(name, []byte(text))) }

func read(f *yamlfile.File) (Set, error) {
	r := reader{
		File:   f,
		set:    Set{ids: map[string]int32{}, keys: map[uint64][]writeKey{}, limits: map[int32]Limits{}},
		names:  map[int32]string{},
		hashes: map[[sha256.Size]byte]string{},
	}
	top := f.Top("tenants")
	count := 0
	if top.Has("tenants") {
		for i, item := range f.Items(top.Get("tenants"), "tenants", "a list of tenants") {
			count++
			r.tenant(f.Section(item, fmt.Sprintf("tenants[%d]", i), "id", "name", "keys", "limits"))
		}
	}
	if count == 0 && f.Err() == nil {
		f.Fault(f.Root(), "", `no tenants; write "tenants: [{id: 1, name: default, keys: [...]}]", `+
			`or leave the setting empty to let everybody in as tenant 1`)
	}
	if err := f.Err(); err != nil {
		return Set{}, fmt.Errorf("tenants: %w", err)
	}
	return r.set, nil
}

// reader reads one tenant after the other.
type reader struct {
	*yamlfile.File
	set    Set
	names  map[int32]string // which tenant has an id
	hashes map[[sha256.Size]byte]string
}

// maxName is the longest name of a tenant, in characters: enough for a UUID, and for what goes into every message.
const maxName = 64

func (r *reader) tenant(t *yamlfile.Section) {
	if yamlfile.Resolve(t.Node()).Kind != yaml.MappingNode {
		return // which Section reports
	}
	who := fmt.Sprintf("the tenant on line %d", t.Node().Line)
	name := ""
	if t.Require("name", "what logs and rules call the tenant") {
		if name = t.String("name"); utf8.RuneCountInString(name) > maxName || strings.ContainsFunc(name, unicode.IsControl) {
			t.Fault("name", "expected at most %d characters, none of them a control character", maxName)
		}
		if name != "" {
			t.Where, who = fmt.Sprintf("tenants[%s]", name), fmt.Sprintf("tenant %q", name)
		}
	}
	var id int32
	if t.Require("id", "a number of its own that never changes") {
		id = int32(t.Int("id", 0, 1, math.MaxInt32))
	}
	if other, taken := r.names[id]; taken && id != 0 {
		t.Fault("id", "%d is the id of %s", id, other)
	}
	if _, taken := r.set.ids[name]; taken && name != "" {
		t.Fault("name", "a tenant %q is in this file already", name)
	}
	r.names[id], r.set.ids[name] = who, id
	if l := t.Section("limits", "events-per-second", "bytes-per-second"); l != nil {
		limits := Limits{
			EventsPerSecond: l.Float("events-per-second", 0, 0, 1e9),
			BytesPerSecond:  l.Float("bytes-per-second", 0, 0, 1e12),
		}
		if limits.EventsPerSecond > 0 || limits.BytesPerSecond > 0 {
			r.set.limits[id] = limits
		}
	}
	if t.Require("keys", "without a key it could send nothing") {
		for _, item := range r.Items(t.Get("keys"), t.At("keys"), "a list of keys") {
			r.key(item, t.At("keys"), who, id)
		}
		if n := t.Get("keys"); n.Kind == yaml.SequenceNode && len(n.Content) == 0 {
			t.Fault("keys", "expected at least one key; without one the tenant could send nothing")
		}
	}
}

func (r *reader) key(n *yaml.Node, where, who string, tenant int32) {
	text, ok := strings.CutPrefix(n.Value, "sha256:")
	raw, err := hex.DecodeString(text)
	if !ok || err != nil || len(raw) != sha256.Size {
		// The text is not shown: it may be the key itself.
		r.Fault(n, where, `expected "sha256:" and 64 hexadecimal digits; make it with: printf %%s "$KEY" | sha256sum`)
		return
	}
	hash := [sha256.Size]byte(raw)
	if other, taken := r.hashes[hash]; taken {
		r.Fault(n, where, "this is also a key of %s", other)
		return
	}
	r.hashes[hash] = who
	at := binary.LittleEndian.Uint64(hash[:])
	r.set.keys[at] = append(r.set.keys[at], writeKey{hash, tenant})
}
