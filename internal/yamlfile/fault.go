package yamlfile

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Fault is one mistake in a file, for the person who wrote it.
type Fault struct {
	File string
	// Line and Column count from 1; Line is 0 where the mistake is the file itself.
	Line, Column int
	// Where names the place in words, like rules[big-purchase].match; it may be empty.
	Where   string
	Message string
}

// String is "file:line:column: where: message".
func (f Fault) String() string {
	var b strings.Builder
	b.WriteString(f.File)
	if f.Line > 0 {
		fmt.Fprintf(&b, ":%d:%d", f.Line, f.Column)
	}
	if b.Len() > 0 {
		b.WriteString(": ")
	}
	if f.Where != "" {
		b.WriteString(f.Where + ": ")
	}
	b.WriteString(f.Message)
	return b.String()
}

// Faults is everything that is wrong with some files. As an error it has one line for each.
type Faults []Fault

func (fs Faults) Error() string {
	lines := make([]string, len(fs))
	for i, f := range fs {
		lines[i] = f.String()
	}
	return strings.Join(lines, "\n")
}

// Err is the faults as an error, in the order of files, lines and columns; nil without faults.
func (fs Faults) Err() error {
	if len(fs) == 0 {
		return nil
	}
	fs.Sort()
	return fs
}

// Sort puts the faults in the order of files, lines and columns. Those of one place keep their order.
func (fs Faults) Sort() {
	slices.SortStableFunc(fs, func(a, b Fault) int {
		return cmp.Or(strings.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
}
