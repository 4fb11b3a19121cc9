// Package spell finds what somebody probably meant by a word that is not known, for "did you mean" in error messages.
package spell

import (
	"fmt"
	"slices"
	"strings"
)

// DidYouMean completes a message about an unknown word: `; did you mean "match"?`, or nothing where no known word is
// near enough to be a slip. A third of the word may differ, and one character at least. Of equally near words the first
// in alphabetical order is taken.
func DidYouMean(got string, known []string) string {
	nearest := Nearest(got, slices.Sorted(slices.Values(known)), max(1, len(got)/3))
	if nearest == "" || nearest == got {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", nearest)
}

// Nearest returns the known word that is nearest to got, whatever its case, or "" where none is within most slips: a
// character put in, left out, changed, or swapped with its neighbour. Of equally near words the first wins.
func Nearest(got string, known []string, most int) string {
	nearest, best := "", most+1
	for _, word := range known {
		if d := distance(strings.ToLower(got), strings.ToLower(word)); d < best {
			nearest, best = word, d
		}
	}
	return nearest
}

// distance is the optimal string alignment distance, in bytes.
func distance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			slip := 1
			if a[i-1] == b[j-1] {
				slip = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+slip)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
