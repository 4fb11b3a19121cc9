package schema_test

import (
	"testing"

	"sluice.example/sluice/pipeline/schema"
)

// A program runs on a newer database that takes programs of its age, and changes nothing in it.
func TestRollBackToAnOlderProgram(t *testing.T) {
	t.Parallel()
	conn := empty(t)()
	const one, two = "create table a ();\n", "-- B can be ignored.\n-- oldest program: 1\ncreate table b ();\n"
	const three = "-- oldest program: 2\ndrop table a;\n"
	mustMigrate(t, conn, files("0001_a.sql", one, "0002_b.sql", two), 2)
	mustMigrate(t, conn, files("0001_a.sql", one), 0)
	mustRefuse(t, conn, files("0001_a.sql", one+"-- another"), "0001_a.sql was edited")

	mustMigrate(t, conn, files("0001_a.sql", one, "0002_b.sql", two, "0003_c.sql", three), 1)
	mustMigrate(t, conn, files("0001_a.sql", one, "0002_b.sql", two), 0)
	mustRefuse(t, conn, files("0001_a.sql", one),
		"at version 3 (c)", "programs that know version 2", "versions up to 1", "newer program")

	// What was once given up stays given up, whatever comes later.
	const four = "-- oldest program: 1\ncreate table d ();\n"
	mustMigrate(t, conn, files("0001_a.sql", one, "0002_b.sql", two, "0003_c.sql", three, "0004_d.sql", four), 1)
	mustRefuse(t, conn, files("0001_a.sql", one), "programs that know version 2")
}

func TestOldestProgramIsANumberUpToTheOwn(t *testing.T) {
	t.Parallel()
	conn := empty(t)()
	for _, line := range []string{"2", "0", "one", ""} {
		mustRefuse(t, conn, files("0001_a.sql", "-- oldest program: "+line+"\n"), "0001_a.sql: oldest program", "1 to 1")
	}
}

// A database of before the floor was stored gets it, and refuses programs that do not know its versions, as ever.
func TestFloorOfADatabaseThatHadNone(t *testing.T) {
	t.Parallel()
	conn := empty(t)()
	const olderSQL = `
create table schema_version (
    version    integer     primary key,
    name       text        not null,
    applied_at timestamptz not null default now(),
    checksum   text        not null
)`
	if _, err := conn.Exec(t.Context(), olderSQL); err != nil {
		t.Fatal(err)
	}
	f := files("0001_a.sql", "create table a ();\n", "0002_b.sql", "create table b ();\n")
	mustMigrate(t, conn, f, 2)
	mustRefuse(t, conn, files("0001_a.sql", "create table a ();\n"), "programs that know version 2")
	f["0003_floor.sql"] = files("x", "-- oldest program: 2\n"+
		"alter table schema_version add column oldest_program integer not null default 0;\n"+
		"update schema_version set oldest_program = version;\n")["x"]
	mustMigrate(t, conn, f, 1)
	delete(f, "0003_floor.sql")
	mustMigrate(t, conn, f, 0)
}

// The floor of the program's own migrations is what their files have.
func TestFloorIsStored(t *testing.T) {
	t.Parallel()
	conn := empty(t)()
	if n, err := schema.Migrate(t.Context(), conn, discard); err != nil || n != schema.Version() {
		t.Fatalf("Migrate = %d, %v; want the %d migrations of this program", n, err, schema.Version())
	}
	var below int
	const belowSQL = `select count(*) from schema_version where oldest_program > version or oldest_program < 1`
	if err := conn.QueryRow(t.Context(), belowSQL).Scan(&below); err != nil || below != 0 {
		t.Fatalf("%d rows of schema_version have an oldest program outside of 1 and their own version, %v", below, err)
	}
}
