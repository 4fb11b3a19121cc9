package pgcopy_test

import (
	"bytes"
	"reflect"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/internal/pgcopy"
	"sluice.example/sluice/internal/pgtest"
)

// What is written comes back from PostgreSQL as it was, NULLs and extremes included.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	type row struct {
		N    *int32
		S    *string
		B    []byte
		U    *[16]byte
		At   *time.Time
		J    *string
		Last string
	}
	pointer := func(n int32) *int32 { return &n }
	text := func(s string) *string { return &s }
	at := func(s string) *time.Time {
		v, err := time.Parse(time.RFC3339Nano, s)
		if err != nil {
			t.Fatal(err)
		}
		return &v
	}
	want := []row{
		{
			pointer(-1 << 31), text("žluťoučký 🐎"), []byte{0, 255}, &[16]byte{1, 15: 255},
			at("1999-12-31T23:59:59.999999Z"), text(`{"a": 1}`), "first",
		},
		{pointer(1<<31 - 1), text(""), []byte{}, &[16]byte{}, at("9999-12-31T23:59:59.000001Z"), text(`[]`), "second"},
		{Last: "nothing"},
	}
	b := []byte(pgcopy.Header)
	for _, r := range want {
		b = pgcopy.Row(b, 7)
		if r.N == nil {
			for range 6 {
				b = pgcopy.Null(b)
			}
		} else {
			b = pgcopy.Text(pgcopy.Text(pgcopy.Int32(b, *r.N), *r.S), r.B)
			b = pgcopy.JSONB(pgcopy.Time(pgcopy.UUID(b, *r.U), *r.At), []byte(*r.J))
		}
		b = pgcopy.Text(b, r.Last)
	}
	b = append(b, pgcopy.Trailer...)

	ctx := t.Context()
	conn, err := pool.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(ctx, `
create temporary table copied (n integer, s text, b bytea, u uuid, at timestamptz, j jsonb, last text)`); err != nil {
		t.Fatal(err)
	}
	tag, err := conn.Conn().PgConn().CopyFrom(ctx, bytes.NewReader(b), `copy copied from stdin (format binary)`)
	if err != nil || tag.RowsAffected() != int64(len(want)) {
		t.Fatalf("COPY = %s, %v; want %d rows", tag, err, len(want))
	}
	rows, _ := conn.Query(ctx, `select n, s, b, u, at, j::text as j, last from copied`)
	got, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	if err != nil {
		t.Fatal(err)
	}
	same := func(a, b row) bool {
		if a.At != nil && b.At != nil && a.At.Equal(*b.At) {
			a.At = b.At
		}
		return reflect.DeepEqual(a, b)
	}
	for i := range want {
		if !same(got[i], want[i]) {
			t.Errorf("row %d came back as %+v, want %+v", i, got[i], want[i])
		}
	}
}
