package jsontext

import "unicode/utf8"

// AppendString appends s as a JSON string. Bytes that are not UTF-8 become U+FFFD. Control characters and DEL are
// escaped, so that the text can go to a terminal; nothing else is that need not be.
func AppendString(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	plain := 0 // s[plain:i] is still to be copied
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if c >= ' ' && c != '"' && c != '\\' && c != 0x7f {
				i++
				continue
			}
			b = append(b, s[plain:i]...)
			switch c {
			case '"', '\\':
				b = append(b, '\\', c)
			case '\n':
				b = append(b, '\\', 'n')
			case '\r':
				b = append(b, '\\', 'r')
			case '\t':
				b = append(b, '\\', 't')
			default:
				b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
			}
			i++
			plain = i
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && n == 1 {
			b = append(b, s[plain:i]...)
			b = utf8.AppendRune(b, r)
			plain = i + 1
		}
		i += n
	}
	b = append(b, s[plain:]...)
	return append(b, '"')
}

// Unescape replaces an escaped string, given without its quotes, by its value in place, and returns how long that is.
// The string has passed Scanner.String without a flaw.
func Unescape(b []byte) int {
	w := 0
	for r := 0; r < len(b); {
		c := b[r]
		if c != '\\' {
			b[w] = c
			w, r = w+1, r+1
			continue
		}
		c = b[r+1]
		r += 2
		switch c {
		case 'b':
			c = '\b'
		case 'f':
			c = '\f'
		case 'n':
			c = '\n'
		case 'r':
			c = '\r'
		case 't':
			c = '\t'
		case 'u':
			u := hex4(b, r)
			r += 4
			if u >= 0xd800 && u < 0xdc00 {
				u = (u-0xd800)<<10 + (hex4(b, r+2) - 0xdc00) + 0x10000
				r += 6
			}
			w += utf8.EncodeRune(b[w:], u)
			continue
		}
		b[w] = c
		w++
	}
	return w
}

// hex4 returns the value of the four hexadecimal digits at i, or -1.
func hex4(b []byte, i int) rune {
	if i+4 > len(b) {
		return -1
	}
	var r rune
	for _, c := range b[i : i+4] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return -1
		}
		r = r<<4 | rune(c)
	}
	return r
}
