package schema_test

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline/schema"
)

func mustExec(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// mustRefuseHere is mustRefuse with the program's own migrations.
func mustRefuseHere(t *testing.T, conn *pgx.Conn, parts ...string) {
	t.Helper()
	n, err := schema.Migrate(t.Context(), conn, discard)
	if err == nil {
		t.Fatalf("migrate = %d; want an error with %q", n, parts)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error = %q; want it to hold %q", err, part)
		}
	}
}

// Tables of somebody else's that have our names are named, with their owner and the way out, and nothing is changed.
func TestTablesThatAreNotOurs(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		theirs string
		want   []string
	}{
		"a table of versions": {"create table schema_version (installed_rank integer, version text, checksum text)",
			[]string{"fresh.schema_version exists"}},
		"events and outbox": {"create table events (id bigint); create table outbox (id bigint)",
			[]string{"events exists", "outbox exists"}},
		"a view": {"create view outbox_all_attempts as select 1 as one", []string{"outbox_all_attempts exists"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := empty(t)()
			mustExec(t, conn, c.theirs)
			mustRefuseHere(t, conn, append(c.want, "belongs to "+conn.Config().User, "is not this program's",
				"create schema sluice", "search_path=sluice", "search_path is fresh now")...)
			if exists(t, conn, "quarantine") {
				t.Error("a refusal changed the database")
			}
		})
	}
}

// A later migration's name may be taken as well.
func TestTableOfALaterMigrationIsNotOurs(t *testing.T) {
	t.Parallel()
	conn := empty(t)()
	mustMigrate(t, conn, files("0001_a.sql", "create table a ();"), 1)
	mustExec(t, conn, "create table b (theirs integer)")
	mustRefuse(t, conn, files("0001_a.sql", "create table a ();", "0002_b.sql", "create table b ();"),
		"b exists, belongs to", "search_path=sluice")
}

func TestSearchPathThatDoesNotFit(t *testing.T) {
	t.Parallel()
	connect := empty(t)
	conn := connect()
	mustMigrate(t, conn, files("0001_a.sql", "create table a ();"), 1)
	mustExec(t, conn, "create schema other")
	for path, want := range map[string][]string{
		"other, fresh": {"our tables are in schema fresh", "new ones made in other", "put fresh first"},
		"nowhere":      {"search_path is nowhere", "create schema"},
	} {
		cfg := conn.Config()
		cfg.RuntimeParams["search_path"] = path
		conn, err := pgx.ConnectConfig(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(context.Background())
		mustRefuse(t, conn, files("0001_a.sql", "create table a ();"), want...)
	}
}

// A pooler that drops search_path from the start of a session would have all tables made again, in another schema.
func TestPoolerThatDropsTheSearchPath(t *testing.T) {
	t.Parallel()
	direct := pgtest.New(t)
	if _, err := direct.Exec(t.Context(), `create schema sluice`); err != nil {
		t.Fatal(err)
	}
	proxy := pgtest.NewProxy(t, direct.Config().ConnString())
	drop := false
	proxy.OnMessage(func(m pgtest.Message) pgtest.Action {
		if drop && m.FromClient && m.Type == 0 {
			// Of the same length, and without effect: a setting with a dot in its name is anybody's own.
			copy(m.Body, bytes.Replace(m.Body, []byte("\x00search_path\x00"), []byte("\x00pooler.drop\x00"), 1))
		}
		return pgtest.Pass
	})
	for _, drop = range []bool{true, false} {
		conn, err := pgx.Connect(t.Context(), proxy.URL()+"&search_path=sluice")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(context.Background())
		if drop {
			mustRefuseHere(t, conn, `asks for search_path "sluice"`, "the session has", "pooler", "alter role")
		} else if n, err := schema.Migrate(t.Context(), conn, discard); err != nil || n == 0 {
			t.Fatalf("Migrate with a pooler that passes search_path on = %d, %v", n, err)
		}
	}
}

// Events are UTF-8. A database in another encoding is refused at the start, and not event by event.
func TestDatabaseThatIsNotUTF8(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	for _, encoding := range []string{"SQL_ASCII", "LATIN1"} {
		name := pool.Config().ConnConfig.Database + "_" + strings.ToLower(encoding)
		if _, err := pool.Exec(t.Context(), `create database `+name+
			` encoding '`+encoding+`' template template0 lc_collate 'C' lc_ctype 'C'`); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if _, err := pool.Exec(context.Background(), `drop database `+name+` with (force)`); err != nil {
				t.Error(err)
			}
		})
		cfg := pool.Config().ConnConfig.Copy()
		cfg.Database = name
		conn, err := pgx.ConnectConfig(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(context.Background())
		mustRefuseHere(t, conn, name+" has encoding "+encoding, "UTF8 is needed", "create database")
		if exists(t, conn, "schema_version") {
			t.Error("a refusal changed the database")
		}
	}
}
