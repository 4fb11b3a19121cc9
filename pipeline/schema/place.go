package schema

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// checkSearchPath reports a search_path of the connection string that did not arrive. Without it the tables would be
// made a second time, in a schema where nobody wants them.
func checkSearchPath(ctx context.Context, conn *pgx.Conn) error {
	want := conn.Config().RuntimeParams["search_path"]
	if want == "" {
		return nil
	}
	var got string
	if err := conn.QueryRow(ctx, `select current_setting('search_path')`).Scan(&got); err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("database-url asks for search_path %q and the session has %q: a pooler in between drops it; "+
			"have it pass search_path on, or set it for the role (alter role ... set search_path = %s) "+
			"and take it out of database-url", want, got, want)
	}
	return nil
}

// checkEncoding reports a database that does not hold Unicode. Every event is UTF-8: such a database would take some
// and not others, and SQL_ASCII would take bytes that nobody can read back.
func checkEncoding(ctx context.Context, conn *pgx.Conn) error {
	var encoding, name string
	const encodingSQL = `select current_setting('server_encoding'), current_database()`
	if err := conn.QueryRow(ctx, encodingSQL).Scan(&encoding, &name); err != nil {
		return err
	}
	if encoding != "UTF8" {
		return fmt.Errorf("database %s has encoding %s, and UTF8 is needed: make another one "+
			"(create database ... encoding 'UTF8' template template0), and move the data with pg_dump", name, encoding)
	}
	return nil
}

const (
	// The first column is null where no schema of search_path exists.
	placeSQL = `
select current_schema()::text as schema, current_setting('search_path') as path,
    n.nspname::text as found_in, pg_get_userbyid(c.relowner)::text as owner,
    (select array_agg(attname::text) from pg_attribute
        where attrelid = c.oid and attnum > 0 and not attisdropped) as columns
from (select) one
left join (pg_class c join pg_namespace n on n.oid = c.relnamespace) on c.oid = to_regclass('schema_version')`
	namesSQL = `
select c.oid::regclass::text as name, pg_get_userbyid(c.relowner)::text as owner
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname = current_schema() and c.relname = any ($1)
order by c.relname`
)

// checkVersionTable reports whether the database has our schema_version, and what is wrong with the place.
func checkVersionTable(ctx context.Context, db querier) (exists bool, err error) {
	rows, err := db.Query(ctx, placeSQL)
	if err != nil {
		return false, err
	}
	type place struct {
		Schema, FoundIn, Owner *string
		Path                   string
		Columns                []string
	}
	p, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[place])
	switch {
	case err != nil:
		return false, err
	case p.Schema == nil:
		return false, fmt.Errorf("search_path is %s, and none of these schemas exists for this role: "+
			"create one (create schema ...), or correct search_path in database-url", p.Path)
	case p.FoundIn == nil:
		return false, nil
	}
	for _, column := range []string{"version", "name", "applied_at", "checksum"} {
		if !slices.Contains(p.Columns, column) {
			return false, notOurs(p.Path, []foreign{{*p.FoundIn + ".schema_version", *p.Owner}})
		}
	}
	if *p.FoundIn != *p.Schema {
		return false, fmt.Errorf("our tables are in schema %s, and search_path (%s) would have new ones made in %s: "+
			"put %s first, with search_path in database-url", *p.FoundIn, p.Path, *p.Schema, *p.FoundIn)
	}
	return true, nil
}

// foreign is a table that is not ours.
type foreign struct{ Name, Owner string }

func notOurs(searchPath string, tables []foreign) error {
	var faults []error
	for _, f := range tables {
		faults = append(faults, fmt.Errorf("%s exists, belongs to %s and is not this program's", f.Name, f.Owner))
	}
	return fmt.Errorf("%w: give the pipeline a schema of its own (create schema sluice) and add search_path=sluice to "+
		"database-url; search_path is %s now", errors.Join(faults...), searchPath)
}

var createRelation = regexp.MustCompile(`(?mi)^create (?:table|view|materialized view) (\w+)`)

// checkNames finds relations in our place that have the names of those that the migrations would make.
func checkNames(ctx context.Context, db querier, missing []migration) error {
	var names []string
	for _, m := range missing {
		for _, match := range createRelation.FindAllStringSubmatch(m.sql, -1) {
			names = append(names, strings.ToLower(match[1]))
		}
	}
	rows, err := db.Query(ctx, namesSQL, names)
	if err != nil {
		return err
	}
	taken, err := pgx.CollectRows(rows, pgx.RowToStructByName[foreign])
	if err != nil || len(taken) == 0 {
		return err
	}
	var path string
	if err := db.QueryRow(ctx, `select current_setting('search_path')`).Scan(&path); err != nil {
		return err
	}
	return notOurs(path, taken)
}
