package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"unicode/utf8"
)

// Visible writes characters that steer a terminal as \uXXXX: controls other than line breaks and tabs, and those that
// change the direction of text. Names, keys and errors come from strangers. In JSON it changes no value.
func Visible(s string) string { return string(appendVisible(nil, []byte(s))) }

func appendVisible(b, text []byte) []byte {
	for len(text) > 0 {
		c, size := utf8.DecodeRune(text)
		if steers(c) {
			b = fmt.Appendf(b, `\u%04x`, c)
		} else {
			b = append(b, text[:size]...)
		}
		text = text[size:]
	}
	return b
}

func steers(c rune) bool {
	switch {
	case c == '\n', c == '\t':
		return false
	case c < ' ', 0x7f <= c && c <= 0x9f:
		return true
	}
	return c == 0x061c || c == 0x200e || c == 0x200f || 0x202a <= c && c <= 0x202e || 0x2066 <= c && c <= 0x2069
}

// answerWriter is the standard output of commands: what is written is Visible, and an answer that could not be written
// is remembered, since a full disk must not look like success.
type answerWriter struct {
	w    io.Writer
	rest []byte // the first bytes of a character
	err  error
}

func (a *answerWriter) Write(text []byte) (int, error) {
	all := append(a.rest, text...)
	whole := len(all)
	for i := 1; i < utf8.UTFMax && i <= len(all); i++ {
		if utf8.RuneStart(all[len(all)-i]) {
			if !utf8.FullRune(all[len(all)-i:]) {
				whole -= i
			}
			break
		}
	}
	a.rest = append([]byte(nil), all[whole:]...)
	return len(text), a.write(all[:whole])
}

func (a *answerWriter) write(text []byte) error {
	_, err := a.w.Write(appendVisible(nil, text))
	if err != nil && a.err == nil {
		a.err = fmt.Errorf("the answer could not be written: %w", err)
	}
	return err
}

// close writes what is left, and returns the first error of all writes.
func (a *answerWriter) close() error {
	if len(a.rest) > 0 {
		a.write(a.rest)
	}
	return a.err
}

// Printer is an answer of a command: data with JSON names, and a form for people.
type Printer interface{ Print(w io.Writer) error }

// Print writes an answer, as indented JSON if a program asks.
func Print(w io.Writer, asJSON bool, answer Printer) error {
	if !asJSON {
		return answer.Print(w)
	}
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	return out.Encode(answer)
}
