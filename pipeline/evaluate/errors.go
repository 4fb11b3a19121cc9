package evaluate

import (
	"fmt"
	"slices"
	"strings"

	"sluice.example/sluice/internal/spell"
)

// LoadError is one mistake in a rules file, for the person who wrote it.
type LoadError struct {
	File string
	// Line and Column count from 1; Line is 0 where the mistake is the file itself.
	Line, Column int
	// Where names the place in words, like rules[big-purchase].match; it may be empty.
	Where   string
	Message string
}

func (e LoadError) String() string {
	var b strings.Builder
	b.WriteString(e.File)
	if e.Line > 0 {
		fmt.Fprintf(&b, ":%d:%d", e.Line, e.Column)
	}
	b.WriteString(": ")
	if e.Where != "" {
		b.WriteString(e.Where + ": ")
	}
	b.WriteString(e.Message)
	return b.String()
}

// LoadErrors is everything that is wrong with the rules, in the order of files and lines. Load returns nothing else as
// an error.
type LoadErrors []LoadError

func (e LoadErrors) Error() string {
	lines := make([]string, len(e))
	for i, l := range e {
		lines[i] = l.String()
	}
	return strings.Join(lines, "\n")
}

func (e LoadErrors) sort() {
	slices.SortStableFunc(e, func(a, b LoadError) int {
		if c := strings.Compare(a.File, b.File); c != 0 {
			return c
		}
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return a.Column - b.Column
	})
}

// didYouMean completes a message with the known word nearest to got, where one is near enough to be a slip.
func didYouMean(got string, known []string) string {
	nearest := spell.Nearest(got, slices.Sorted(slices.Values(known)), max(1, len(got)/3))
	if nearest == "" || nearest == got {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", nearest)
}
