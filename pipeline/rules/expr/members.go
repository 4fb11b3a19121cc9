package expr

import (
	"strings"

	"cel.dev/cel-go/common/types/ref"
	"github.com/tidwall/gjson"
)

// member is one key of a JSON object and its value as it was written. val is that value once it was read.
type member struct {
	key, raw string
	val      ref.Val
}

// appendMembers splits a valid JSON object into its members without looking into the values. It is three times as fast
// as gjson's ForEach, which reads every number. Of what is not a valid object it returns the members before the fault.
func appendMembers(dst []member, s string) []member {
	i := skipSpace(s, 0)
	if i >= len(s) || s[i] != '{' {
		return dst
	}
	i++
	for {
		if i = skipSpace(s, i); i < len(s) && s[i] == ',' {
			i = skipSpace(s, i+1)
		}
		if i >= len(s) || s[i] != '"' {
			return dst
		}
		end := stringEnd(s, i)
		if end > len(s) {
			return dst
		}
		key := s[i+1 : end-1]
		if strings.IndexByte(key, '\\') >= 0 {
			key = gjson.Parse(s[i:end]).Str
		}
		if i = skipSpace(s, end); i >= len(s) || s[i] != ':' {
			return dst
		}
		i = skipSpace(s, i+1)
		if end = valueEnd(s, i); end > len(s) || end == i {
			return dst
		}
		dst = append(dst, member{key: key, raw: s[i:end]})
		i = end
	}
}

func skipSpace(s string, i int) int {
	for i < len(s) && (s[i] == ' ' || s[i] == '\n' || s[i] == '\t' || s[i] == '\r') {
		i++
	}
	return i
}

// stringEnd is the place after the string that begins at i, or one beyond s if it does not end.
func stringEnd(s string, i int) int {
	for i++; i < len(s); i++ {
		switch s[i] {
		case '"':
			return i + 1
		case '\\':
			i++
		}
	}
	return len(s) + 1
}

// valueEnd is the place after the value that begins at i, or one beyond s if it does not end.
func valueEnd(s string, i int) int {
	if i >= len(s) {
		return len(s) + 1
	}
	switch s[i] {
	case '"':
		return stringEnd(s, i)
	case '{', '[':
		depth := 0
		for i < len(s) {
			switch s[i] {
			case '"':
				i = stringEnd(s, i)
				continue
			case '{', '[':
				depth++
			case '}', ']':
				if depth--; depth == 0 {
					return i + 1
				}
			}
			i++
		}
		return len(s) + 1
	}
	for i < len(s) {
		switch s[i] {
		case ',', '}', ']', ' ', '\n', '\t', '\r':
			return i
		}
		i++
	}
	return i
}
