package body

import "bytes"

// keyNames are the names under which bodies hold a write key.
var keyNames = [][]byte{[]byte(`"writeKey"`), []byte(`"api_key"`), []byte(`"token"`), []byte(`"$token"`)}

// FindKey returns what looks like a write key in the first part of a body, nil where nothing does. It decides only how
// much more is read; whose the events are is found out when the body is decoded.
func FindKey(text []byte) []byte {
	for _, name := range keyNames {
		_, rest, ok := bytes.Cut(text, name)
		if !ok {
			continue
		}
		rest, ok = bytes.CutPrefix(bytes.TrimLeft(rest, " \t\r\n"), []byte(":"))
		if !ok {
			continue
		}
		if rest, ok = bytes.CutPrefix(bytes.TrimLeft(rest, " \t\r\n"), []byte(`"`)); !ok {
			continue
		}
		if key, _, ok := bytes.Cut(rest[:min(len(rest), maxKey)], []byte(`"`)); ok {
			return key
		}
	}
	return nil
}

// maxKey bounds a write key in a body, as ingest does.
const maxKey = 8 << 10
