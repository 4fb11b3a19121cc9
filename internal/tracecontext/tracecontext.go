// Package tracecontext reads the headers traceparent and tracestate of W3C Trace Context, level 1. What it returns
// follows the grammar, so it is printable ASCII and short: it can go into a header or into JSON as it is.
//
// Everything here is pure and safe for concurrent use.
package tracecontext

import (
	"strings"
)

// MostState is how long a tracestate may be, in bytes: what every vendor has to pass on. A longer one is dropped.
const MostState = 512

// length is that of version 00: 2 + 1 + 32 + 1 + 16 + 1 + 2 bytes.
const length = 55

// Parent returns a traceparent as it is passed on, and whether its trace is sampled; ok reports whether it follows the
// grammar. What a later version adds is not passed on: such a parent becomes one of version 00.
func Parent(header string) (parent string, sampled, ok bool) {
	if len(header) < length || header[2] != '-' || header[35] != '-' || header[52] != '-' {
		return "", false, false
	}
	version, trace, span, flags := header[:2], header[3:35], header[36:52], header[53:55]
	if !hexadecimal(version) || !hexadecimal(trace) || !hexadecimal(span) || !hexadecimal(flags) {
		return "", false, false
	}
	if version == "ff" || zero(trace) || zero(span) {
		return "", false, false
	}
	sampled = nibble(flags[1])&1 == 1
	if version == "00" {
		return header, sampled, len(header) == length
	}
	if len(header) > length && header[length] != '-' {
		return "", false, false
	}
	parent = "00" + header[2:53] + "00"
	if sampled {
		parent = "00" + header[2:53] + "01"
	}
	return parent, sampled, true
}

// TraceID returns the id of the trace in a traceparent, "" where that does not follow the grammar.
func TraceID(parent string) string {
	if _, _, ok := Parent(parent); !ok {
		return ""
	}
	return parent[3:35]
}

// State returns a tracestate as it is passed on: without blanks around its members, and "" where it does not follow the
// grammar or is too long. Several headers of that name are one, joined by commas.
func State(header string) string {
	if len(header) > MostState {
		return ""
	}
	var members, keys []string
	for member := range strings.SplitSeq(header, ",") {
		if member = strings.Trim(member, " \t"); member == "" {
			continue
		}
		key, value, ok := strings.Cut(member, "=")
		if !ok || !stateKey(key) || !stateValue(value) {
			return ""
		}
		for _, k := range keys {
			if k == key {
				return ""
			}
		}
		keys, members = append(keys, key), append(members, member)
	}
	if len(members) > 32 {
		return ""
	}
	return strings.Join(members, ",")
}

// stateKey reports whether s is a key of level 1: a name, or a tenant and a name.
func stateKey(s string) bool {
	tenant, system, several := strings.Cut(s, "@")
	if !several {
		return len(s) >= 1 && len(s) <= 256 && lower(s[0]) && keyBytes(s)
	}
	return len(tenant) >= 1 && len(tenant) <= 241 && (lower(tenant[0]) || digit(tenant[0])) && keyBytes(tenant) &&
		len(system) >= 1 && len(system) <= 14 && lower(system[0]) && keyBytes(system)
}

func keyBytes(s string) bool {
	for _, c := range []byte(s) {
		if !lower(c) && !digit(c) && c != '_' && c != '-' && c != '*' && c != '/' {
			return false
		}
	}
	return true
}

// stateValue reports whether s is a value: printable ASCII without comma and equals sign, and no blank at the end.
func stateValue(s string) bool {
	for _, c := range []byte(s) {
		if c < ' ' || c > '~' || c == ',' || c == '=' {
			return false
		}
	}
	return len(s) >= 1 && len(s) <= 256 && s[len(s)-1] != ' '
}

func lower(c byte) bool { return c >= 'a' && c <= 'z' }

func digit(c byte) bool { return c >= '0' && c <= '9' }

// hexadecimal reports whether s has only digits and lower-case letters up to f; others are not allowed.
func hexadecimal(s string) bool {
	for _, c := range []byte(s) {
		if !digit(c) && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

func zero(s string) bool { return strings.Trim(s, "0") == "" }

func nibble(c byte) byte {
	if digit(c) {
		return c - '0'
	}
	return c - 'a' + 10
}
