package evaluate

import (
	"fmt"
	"slices"
	"strings"
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
	best, dist := "", max(1, len(got)/3)+1
	for _, k := range slices.Sorted(slices.Values(known)) {
		if d := editDistance(strings.ToLower(got), strings.ToLower(k)); d < dist {
			best, dist = k, d
		}
	}
	if best == "" || best == got {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", best)
}

// editDistance is the number of insertions, deletions, replacements and swaps of neighbours between a and b (the
// optimal string alignment distance).
func editDistance(a, b string) int {
	rows := [3][]int{make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)}
	for j := range rows[1] {
		rows[1][j] = j
	}
	for i := 1; i <= len(a); i++ {
		before, last, cur := rows[(i+2)%3], rows[i%3], rows[(i+1)%3]
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			cur[j] = min(last[j]+1, cur[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], before[j-2]+1)
			}
		}
	}
	return rows[(len(a)+1)%3][len(b)]
}
