package cli

import (
	"encoding/json"
	"io"
)

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
