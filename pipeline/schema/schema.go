// Package schema brings a database to the layout that this program needs.
//
// The layout is a row of numbered files, NNNN_name.sql, embedded in the program. Migrate applies those that the
// database does not have yet, each in a transaction of its own together with the row in schema_version that says so;
// a crash in between leaves the database at a whole version, and the next Migrate goes on from there. Any number of
// programs may migrate at the same time: one does the work, the others wait for it.
//
// A file whose first line is "-- no transaction" holds one statement that PostgreSQL refuses inside a transaction. It
// may run twice after a crash, so it has to be repeatable ("if not exists").
//
// A line "-- oldest program: 15" in a file means that programs whose last migration is number 15 can run on the
// database with this migration in it, beside newer ones or after a roll-back. Without the line only programs that have
// the migration can.
package schema

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strconv"
	"strings"
)

//go:embed *.sql
var files embed.FS

type migration struct {
	version       int
	name          string // without number and suffix
	sql           string
	checksum      string
	noTransaction bool
	oldestProgram int // the version that a program has to know to run with this migration applied
}

var (
	fileName          = regexp.MustCompile(`^([0-9]{4})_([a-z0-9_]+)\.sql$`)
	oldestProgramLine = regexp.MustCompile(`(?m)^-- oldest program: (.*)$`)
)

// Version is the number of the last migration that this program knows.
func Version() int {
	names, err := fs.Glob(files, "*.sql")
	if err != nil {
		panic(err) // the pattern is a constant
	}
	return len(names)
}

// load reads the migrations and reports everything that is wrong with their numbering. The result is in order: version
// 1 first, no gaps.
func load(files fs.FS) ([]migration, error) {
	names, err := fs.Glob(files, "*.sql") // sorted by name, so by number
	if err != nil {
		return nil, err
	}
	var (
		all    []migration
		faults []error
	)
	last := 0
	for _, name := range names {
		parts := fileName.FindStringSubmatch(name)
		if parts == nil {
			faults = append(faults, fmt.Errorf("%s: the name has to look like 0001_name.sql", name))
			continue
		}
		version, _ := strconv.Atoi(parts[1])
		switch {
		case version == last:
			faults = append(faults, fmt.Errorf("%s: number %04d is taken by another file", name, version))
		case version != last+1:
			faults = append(faults, fmt.Errorf("%s: number %04d is missing before it", name, last+1))
		}
		last = version
		text, err := fs.ReadFile(files, name)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		// A checkout with other line ends is the same migration.
		sql := strings.ReplaceAll(string(text), "\r\n", "\n")
		sum := sha256.Sum256([]byte(sql))
		firstLine, _, _ := strings.Cut(sql, "\n")
		oldest := version
		if line := oldestProgramLine.FindStringSubmatch(sql); line != nil {
			oldest, err = strconv.Atoi(line[1])
			if err != nil || oldest < 1 || oldest > version {
				faults = append(faults, fmt.Errorf("%s: oldest program: %q: give a number from 1 to %d", name, line[1], version))
			}
		}
		all = append(all, migration{
			version:       version,
			name:          parts[2],
			sql:           sql,
			checksum:      hex.EncodeToString(sum[:]),
			noTransaction: strings.TrimSpace(firstLine) == "-- no transaction",
			oldestProgram: oldest,
		})
	}
	return all, errors.Join(faults...)
}

func (m migration) file() string { return fileOf(m.version, m.name) }

func fileOf(version int, name string) string { return fmt.Sprintf("%04d_%s.sql", version, name) }
