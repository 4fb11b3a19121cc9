package bench

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/pipeline"
)

// slots is after how many events their content repeats; only the id is every event's own. A round of requests of any
// size is a divisor of it.
const slots = 2000

// Events makes the input of a run: page views of about 450 bytes, as a browser's collector sends them. The same Shape
// makes the same events, with other times and ids. Safe for concurrent use.
type Events struct {
	shape   Shape
	run     uint64 // 22 bits that tell this run's ids from those of others
	ms      uint64 // of the first id
	bodies  [][]byte
	offsets [][]int // of each event's id in its body
	rows    []byte  // slots rows as a binary COPY stream
	rowIDs  []int
	values  [][]any      // slots rows in Go's types
	next    atomic.Int64 // request
	base    atomic.Int64 // event from which on retries may repeat
}

// Shape is what the input looks like.
type Shape struct {
	// PerRequest is a divisor of 2000.
	PerRequest int `json:"events_per_request"`
	// Matching is the share of events that match one rule each, Retries that of events sent a second time.
	Matching float64 `json:"matching"`
	Retries  float64 `json:"retries"`
	// Days is over how many days, today and before, the events are spread; 0 is 1.
	Days int `json:"days,omitempty"`
}

// matchingEvent is the name of the events that match.
const matchingEvent = "checkout_started"

// NewEvents prepares the input.
func NewEvents(s Shape) (*Events, error) {
	if s.PerRequest < 1 || slots%s.PerRequest != 0 {
		return nil, fmt.Errorf("bench: %d events a request: give a divisor of %d", s.PerRequest, slots)
	}
	now := time.Now().UTC().Truncate(time.Second)
	e := &Events{shape: s, run: rand.Uint64N(1 << 22), ms: uint64(now.UnixMilli())}
	rng := rand.New(rand.NewPCG(1, 2))
	var body bytes.Buffer
	var offsets []int
	for slot := range slots {
		if slot%s.PerRequest == 0 {
			body.WriteByte('[')
		}
		offsets = append(offsets, e.write(&body, rng, slot, now))
		if slot%s.PerRequest < s.PerRequest-1 {
			body.WriteByte(',')
			continue
		}
		body.WriteByte(']')
		e.bodies, e.offsets = append(e.bodies, bytes.Clone(body.Bytes())), append(e.offsets, offsets)
		body.Reset()
		offsets = nil
	}
	return e, nil
}

func (s Shape) matches(slot int) bool {
	return int(float64(slot+1)*s.Matching+1e-9) > int(float64(slot)*s.Matching+1e-9)
}

func (e *Events) write(w *bytes.Buffer, rng *rand.Rand, slot int, now time.Time) (offset int) {
	s, name := e.shape, "page_viewed"
	if e.shape.matches(slot) {
		name = matchingEvent
	}
	lane := int(float64(slot)*e.shape.Matching+1e-9) % matchingRules
	visitor := rng.IntN(20_000)
	w.WriteString(`{"event_id":"`)
	offset = w.Len()
	fmt.Fprintf(w,
		`%s","event_name":"%s","occurred_at":"%s","anonymous_id":"a-%06d","user_id":"u-%06d","session_id":"s-%08d",`+
			`"page_url":"https://shop.example/products/%d","referrer":"https://search.example/",`+
			`"user_agent":"Mozilla/5.0 (X11; Linux x86_64)",`+
			`"properties":{"sku":"SKU-%05d","price_cents":%d,"currency":"EUR","position":%d,"lane":%d,`+
			`"variant":"blue/large","in_stock":true}}`,
		e.id(int64(slot)), name, now.AddDate(0, 0, -(slot%max(1, s.Days))).Add(time.Duration(slot)*time.Microsecond).Format(
			"2006-01-02T15:04:05.000000Z"),
		visitor, visitor, visitor*7+slot%3, rng.IntN(5000), rng.IntN(5000), rng.IntN(90_000), rng.IntN(40), lane)
	return offset
}

// scramble is odd, so multiplying by it permutes 62-bit numbers, and unscramble takes it back.
const (
	idBits     = 1<<62 - 1
	scramble   = 0x1E3779B97F4A7C15
	unscramble = 0x31DE83E19937733D
)

// id is the UUIDv7 of event i: 20 events a millisecond, and a tail that looks random as those of many clients do.
func (e *Events) id(i int64) (u pipeline.UUID) {
	ms := e.ms + uint64(i)/20
	binary.BigEndian.PutUint64(u[:], ms<<16|0x7000|e.run&0xfff)
	binary.BigEndian.PutUint64(u[8:], 1<<63|(e.run<<40|uint64(i))*scramble&idBits)
	return u
}

// index finds the event that an id was made for, and reports whether it is one of this run's.
func (e *Events) index(u pipeline.UUID) (int64, bool) {
	n := binary.BigEndian.Uint64(u[8:]) & idBits * unscramble & idBits
	return int64(n & (1<<40 - 1)), n>>40 == e.run
}

// begin starts a round: nothing that was sent before is sent again.
func (e *Events) begin() { e.base.Store(e.next.Load() * int64(e.shape.PerRequest)) }

// take reserves n requests and returns the number of the first.
func (e *Events) take(n int64) int64 { return e.next.Add(n) - n }

// body appends request r to b and returns how many of its events are repeats of earlier ones.
func (e *Events) body(b []byte, r int64) (_ []byte, repeats int64) {
	template := int(r % int64(len(e.bodies)))
	at := len(b)
	b = append(b, e.bodies[template]...)
	for n, offset := range e.offsets[template] {
		i := r*int64(e.shape.PerRequest) + int64(n)
		if original := i - slots; e.repeats(i) && !e.repeats(original) && original >= e.base.Load() {
			i = original // same slot, so the same event to the byte
			repeats++
		}
		writeID(b[at+offset:], e.id(i))
	}
	return b, repeats
}

func (e *Events) repeats(i int64) bool {
	return e.shape.Retries > 0 && float64(uint64(i)*scramble>>40&0xffff) < e.shape.Retries*0x10000
}

func writeID(b []byte, u pipeline.UUID) {
	hex.Encode(b, u[:4])
	hex.Encode(b[9:], u[4:6])
	hex.Encode(b[14:], u[6:8])
	hex.Encode(b[19:], u[8:10])
	hex.Encode(b[24:], u[10:16])
}

var copyEventsColumns = strings.Split(pipeline.EventColumns, ", ")

const copyEventsSQL = "copy events (" + pipeline.EventColumns + ") from stdin (format binary)"

// prepareRows gets the rows that the events become from PostgreSQL itself: as a binary COPY stream, so that playing it
// costs no encoding at all, and in Go's types.
func (e *Events) prepareRows(ctx context.Context, db *Database) error {
	conn, err := pgx.Connect(ctx, db.URL)
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, `create temporary table request (n int, body jsonb)`); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	if _, err = conn.CopyFrom(ctx, pgx.Identifier{"request"}, []string{"n", "body"},
		pgx.CopyFromSlice(len(e.bodies), func(i int) ([]any, error) {
			return []any{i, string(e.bodies[i])}, nil
		})); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	const rowsSQL = `
		select e.event_id, 1, e.event_name, e.occurred_at, e.anonymous_id, e.user_id, e.session_id, e.page_url, e.referrer,
			e.user_agent, e.properties, now(), null::text
		from request, jsonb_to_recordset(body) as e (event_id uuid, event_name text, occurred_at timestamptz,
			anonymous_id text,
			user_id text, session_id text, page_url text, referrer text, user_agent text, properties jsonb)
		order by n`
	var stream bytes.Buffer
	if _, err := conn.PgConn().CopyTo(ctx, &stream, "copy ("+rowsSQL+") to stdout (format binary)"); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	rows, _ := conn.Query(ctx, rowsSQL) // rows carries the error
	if e.values, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) ([]any,
		error) {
		return row.Values()
	}); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	properties := slices.Index(copyEventsColumns, "properties")
	for i := range e.values { // as text, since a map would have to be marshalled, which is not COPY's cost
		raw, err := json.Marshal(e.values[i][properties])
		if err != nil {
			return fmt.Errorf("bench: %w", err)
		}
		e.values[i][properties] = raw
	}
	e.rows = stream.Bytes()
	at := 11 + 4 + 4 // signature, flags, length of the extension (none)
	for range slots {
		fields := int(binary.BigEndian.Uint16(e.rows[at:]))
		at += 2
		e.rowIDs = append(e.rowIDs, at+4)
		for range fields {
			if n := int32(binary.BigEndian.Uint32(e.rows[at:])); n > 0 {
				at += int(n)
			}
			at += 4
		}
	}
	return nil
}

// stream appends the rows of a block of slots events to b.
func (e *Events) stream(b []byte, block int64) []byte {
	at := len(b)
	b = append(b, e.rows...)
	for n, offset := range e.rowIDs {
		id := e.id(block*slots + int64(n))
		copy(b[at+offset:], id[:])
	}
	return b
}
