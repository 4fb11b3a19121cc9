package ingest

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
)

// formData returns the member "data" of a form, without its base64 where it has some. It lies in the form, which is
// overwritten: a copy would be memory that nobody counts.
func formData(form []byte) []byte {
	var data []byte
	for part := range bytes.SplitSeq(form, []byte("&")) {
		if text, ok := bytes.CutPrefix(part, []byte("data=")); ok {
			data = text
			break
		}
	}
	n := 0
	for i := 0; i < len(data); i++ {
		c := data[i]
		if c == '%' && i+2 < len(data) {
			if v, err := hex.Decode(data[i:i+1], data[i+1:i+3]); err == nil && v == 1 {
				c = data[i]
				i += 2
			}
		} else if c == '+' {
			c = ' '
		}
		data[n] = c
		n++
	}
	data = data[:n]
	if text := bytes.TrimSpace(data); len(text) == 0 || text[0] == '{' || text[0] == '[' {
		return data
	}
	n = 0
	for _, c := range data {
		switch c {
		case '\r', '\n':
			continue
		case ' ': // a "+" of base64 that was not escaped
			c = '+'
		}
		data[n] = c
		n++
	}
	data = data[:n]
	// Piece by piece: what is decoded is shorter than what it was decoded from, but the library does not promise that
	// the two may overlap.
	var piece [3 << 10]byte
	n = 0
	for rest := data; len(rest) > 0; {
		from := rest[:min(len(rest), 4<<10)]
		rest = rest[len(from):]
		m, err := base64.StdEncoding.Decode(piece[:], from)
		if err != nil {
			return data[:n]
		}
		n += copy(data[n:], piece[:m])
	}
	return data[:n]
}
