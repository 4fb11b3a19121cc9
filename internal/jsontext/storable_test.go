package jsontext

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"sluice.example/sluice/internal/jsontext/hostile"
	"sluice.example/sluice/internal/pgtest"
)

// TestStorableMeansStorable holds the scanner against PostgreSQL: what it calls storable, jsonb takes and returns
// equal, with every digit; what it does not pass, jsonb does not take. Only the depth and the digits of a number are
// our own limits. Printed predicts the length of what jsonb prints.
func TestStorableMeansStorable(t *testing.T) {
	ctx := context.Background()
	pool := pgtest.New(t)
	conn, err := pool.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()

	const seed = 20261130
	r := rand.New(rand.NewPCG(seed, 0))
	texts := make([][]byte, 0, 6000)
	for _, text := range hostile.Texts {
		if len(text) < 20_000 || text[0] != '[' && text[0] != '{' { // the deep ones would need more of PostgreSQL's stack
			texts = append(texts, []byte(text))
		}
	}
	short := len(texts)
	for i := 0; len(texts) < 5000; i++ {
		if text := texts[i%short]; len(text) < 2000 {
			texts = append(texts, mutate(r, mutate(r, text)), []byte(`{"a\\u0000":[`+string(text)+`,"é"],"n":-1.50e-3}`))
		}
	}
	for _, text := range sampleEvents(200) {
		texts = append(texts, mutate(r, []byte(text)))
	}

	if _, err := conn.Exec(ctx, `
		create function pg_temp.as_jsonb(raw bytea) returns text language plpgsql as $$
		begin
			return convert_from(raw, 'UTF8')::jsonb::text;
		exception when data_exception or statement_too_complex or program_limit_exceeded then
			return null;
		end $$`); err != nil {
		t.Fatal(err)
	}
	stored := make([]*string, len(texts))
	batch := &pgx.Batch{}
	for i, text := range texts {
		batch.Queue(`select pg_temp.as_jsonb($1)`, text).QueryRow(func(row pgx.Row) error { return row.Scan(&stored[i]) })
	}
	if err := conn.SendBatch(ctx, batch).Close(); err != nil {
		var pg *pgconn.PgError
		if errors.As(err, &pg) {
			t.Fatalf("%v: %s", err, pg.Where)
		}
		t.Fatal(err)
	}
	taken := 0
	for i, text := range texts {
		s := scanWhole(text, 1_000_000)
		storable := s.Fault == "" && s.Flaw == FlawNone
		if !storable && stored[i] != nil && largestExponent.Match(text) {
			continue
		}
		if storable != (stored[i] != nil) {
			t.Errorf("%.300q: error %q, flaw %d; PostgreSQL stored it: %v", text, s.Fault, s.Flaw, stored[i] != nil)
			continue
		}
		if !storable {
			continue
		}
		taken++
		if got, want := plain(t, []byte(*stored[i])), plain(t, text); !reflect.DeepEqual(got, want) {
			t.Errorf("%.300q came back as %.300q", text, *stored[i])
		}
		if got, least := Printed(text), len(*stored[i]); got < least || got > len(text)+len(text)/2+s.Grown {
			t.Errorf("%.300q: Printed = %d; PostgreSQL prints %d bytes, and more than %d are not explained",
				text, got, least, len(text)+len(text)/2+s.Grown)
		}
	}
	if taken < 500 || taken > len(texts)-500 {
		t.Errorf("%d of %d texts were storable; want a good part of both kinds", taken, len(texts))
	}
}

// largestExponent is in what PostgreSQL 16 and newer take, one more than 14 and 15. Nobody needs it, and an event that
// was stored can be moved to an older server.
var largestExponent = regexp.MustCompile(`[eE]\+?0*1073741823\b`)

// plain decodes JSON with its numbers as exact texts in one form: sign, digits without leading or trailing zeros, and
// the power of ten of the last one. Of members with one name it keeps the last, as jsonb does.
func plain(t *testing.T, text []byte) any {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(string(text)))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		t.Fatalf("%.300q: %v", text, err)
	}
	return exact(v)
}

func exact(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, m := range v {
			v[k] = exact(m)
		}
	case []any:
		for i, m := range v {
			v[i] = exact(m)
		}
	case json.Number:
		return exactNumber(string(v))
	}
	return v
}

func exactNumber(n string) [3]any {
	negative := strings.HasPrefix(n, "-")
	mantissa, exponent, _ := strings.Cut(strings.ToLower(strings.TrimPrefix(n, "-")), "e")
	power := 0
	for _, c := range strings.TrimLeft(exponent, "+-") {
		power = power*10 + int(c-'0')
	}
	if strings.HasPrefix(exponent, "-") {
		power = -power
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	power -= len(fraction)
	digits := strings.TrimLeft(whole+fraction, "0")
	short := strings.TrimRight(digits, "0")
	if short == "" {
		return [3]any{false, "0", 0}
	}
	return [3]any{negative, short, power + len(digits) - len(short)}
}

// mutate changes a text a little, in ways that JSON parsers find hard.
func mutate(r *rand.Rand, text []byte) []byte {
	text = slices.Clone(text)
	pieces := []string{
		`\u0000`, `\\u0000`, `\ud83d`, `\ude00`, "\xff", "\xc3\xa9", "\x00", "\n", `"`, `\`, `{`, `}`,
		`[`, `]`, `,`, `:`, `1e400`, `-`, `0`, `9`, `.`, `e`, `E+`, ` `, `null`, `true`,
	}
	for range 1 + r.IntN(3) {
		at := 0
		if len(text) > 0 {
			at = r.IntN(len(text))
		}
		switch r.IntN(4) {
		case 0:
			text = slices.Insert(text, at, []byte(pieces[r.IntN(len(pieces))])...)
		case 1:
			if len(text) > 0 {
				text = slices.Delete(text, at, min(len(text), at+1+r.IntN(3)))
			}
		case 2:
			if len(text) > 0 {
				text[at] = byte(r.IntN(256))
			}
		case 3:
			if len(text) > 0 {
				end := min(len(text), at+1+r.IntN(8))
				text = slices.Insert(text, end, text[at:end]...)
			}
		}
	}
	return text
}
