package schema

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/jackc/pgx/v5"
)

const (
	createVersionTableSQL = `
create table schema_version (
    version        integer     primary key,
    name           text        not null,
    applied_at     timestamptz not null default now(),
    checksum       text        not null,
    -- Programs that know this version of the schema can run on the database as it is after this migration.
    oldest_program integer     not null
)`
	// The column came with version 15: without it a row takes programs that know its own version.
	versionsSQL = `
select version, name, checksum, coalesce((to_jsonb(v) ->> 'oldest_program')::integer, version) as oldest_program
from schema_version v order by version`
)

// stored is a row of schema_version.
type stored struct {
	Version       int
	Name          string
	Checksum      string
	OldestProgram int
}

// pending compares the database with the program and returns the next migration to apply, nil where there is none.
func pending(ctx context.Context, db querier, all []migration, log *slog.Logger) (*migration, error) {
	exists, err := checkVersionTable(ctx, db)
	if err != nil {
		return nil, err
	}
	if !exists {
		if err := checkNames(ctx, db, all); err != nil {
			return nil, err
		}
		if _, err := db.Exec(ctx, createVersionTableSQL); err != nil {
			return nil, fmt.Errorf("create table schema_version: %w", err)
		}
	}
	rows, err := db.Query(ctx, versionsSQL)
	if err != nil {
		return nil, err
	}
	have, err := pgx.CollectRows(rows, pgx.RowToStructByName[stored])
	if err != nil {
		return nil, err
	}
	if err := compare(have, all); err != nil {
		return nil, err
	}
	if n := len(have); n >= len(all) {
		if n > len(all) {
			log.InfoContext(ctx, "schema: the database is newer than this program, and takes it",
				"database_version", n, "program_version", len(all), "oldest_program", oldestProgram(have))
		}
		return nil, nil
	}
	missing := all[len(have):]
	return &missing[0], checkNames(ctx, db, missing)
}

// compare finds why a program with these migrations can't run on a database that has those.
func compare(have []stored, all []migration) error {
	var faults []error
	for i, a := range have {
		if a.Version != i+1 {
			return fmt.Errorf("schema_version has no row for version %d but one for %d: the table was edited by hand",
				i+1, a.Version)
		}
		if i < len(all) && a.Checksum != all[i].checksum {
			faults = append(faults, fmt.Errorf("%s was edited after it had been applied (as %s): "+
				"restore the file and put the change into a new migration", all[i].file(), fileOf(a.Version, a.Name)))
		}
	}
	if len(faults) > 0 || len(have) <= len(all) {
		return errors.Join(faults...)
	}
	if oldest := oldestProgram(have); oldest > len(all) {
		last := have[len(have)-1]
		return fmt.Errorf("the database is at version %d (%s) and takes programs that know version %d; this program "+
			"knows versions up to %d: run a newer program, or restore the backup of before the upgrade",
			last.Version, last.Name, oldest, len(all))
	}
	return nil
}

// oldestProgram is the lowest version that a program has to know to run on the database.
func oldestProgram(have []stored) int {
	return slices.MaxFunc(have, func(a, b stored) int { return a.OldestProgram - b.OldestProgram }).OldestProgram
}

const (
	hasOldestProgramSQL = `
select exists (select from pg_attribute
    where attrelid = 'schema_version'::regclass and attname = 'oldest_program' and not attisdropped)`
	recordSQL       = `insert into schema_version (version, name, checksum) values ($1, $2, $3)`
	recordOldestSQL = `insert into schema_version (version, name, checksum, oldest_program) values ($1, $2, $3, $4)`
)

// record notes that m has been applied.
func record(ctx context.Context, db querier, m *migration) error {
	var hasOldest bool
	err := db.QueryRow(ctx, hasOldestProgramSQL).Scan(&hasOldest)
	switch {
	case err != nil:
	case hasOldest:
		_, err = db.Exec(ctx, recordOldestSQL, m.version, m.name, m.checksum, m.oldestProgram)
	default: // a database of before version 15, on its way there
		_, err = db.Exec(ctx, recordSQL, m.version, m.name, m.checksum)
	}
	if err != nil {
		return fmt.Errorf("%s: record: %w", m.file(), err)
	}
	return nil
}
