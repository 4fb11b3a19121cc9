package bench

import (
	"context"
	"fmt"
	"strings"

	"sluice.example/sluice/operate/books"
)

// Books compares what was acknowledged to the generator with what is there.
type Books struct {
	Sent         int64 `json:"sent"`
	Acknowledged int64 `json:"acknowledged"`
	Refused      int64 `json:"refused"`
	// Lost were acknowledged but are not there; Doubled are there more than once.
	Lost    int64 `json:"lost"`
	Doubled int64 `json:"doubled"`
	// Faults are all other differences, in words.
	Faults []string `json:"faults,omitempty"`
}

func (b *Books) fault(bad bool, format string, args ...any) {
	if bad {
		b.Faults = append(b.Faults, fmt.Sprintf(format, args...))
	}
}

func (b *Books) merge(o Books) {
	b.Sent += o.Sent
	b.Acknowledged += o.Acknowledged
	b.Refused += o.Refused
	b.Lost += o.Lost
	b.Doubled += o.Doubled
	b.Faults = append(b.Faults, o.Faults...)
}

// Err is what does not add up, or nil.
func (b *Books) Err() error {
	if b.Lost == 0 && b.Doubled == 0 && len(b.Faults) == 0 {
		return nil
	}
	return fmt.Errorf("lost %d, doubled %d of %d acknowledged events; %s", b.Lost, b.Doubled, b.Acknowledged,
		strings.Join(b.Faults, "; "))
}

// reconcile compares a round with the database and with the program's own books. before is what they said when the
// round began, with nothing stored.
func reconcile(ctx context.Context, db *Database, p *Program, before *books.Answer, t *tally) (Books, error) {
	b := Books{Sent: t.sent, Acknowledged: t.acknowledged(), Refused: t.refused}
	rows, ids, err := db.stored(ctx)
	if err != nil {
		return b, fmt.Errorf("bench: %w", err)
	}
	b.Lost, b.Doubled = max(0, t.stored-ids), rows-ids
	b.fault(t.refused == 0 && ids > t.stored, "%d more events are stored than the answers reported", ids-t.stored)
	b.fault(t.rejected > 0, "%d events were rejected", t.rejected)
	b.fault(t.refused > 0, "%d events were refused: %s", t.refused, t.refusal)
	b.fault(t.refused == 0 && t.duplicate != t.repeats, "%d events were sent twice and %d answered as duplicates",
		t.repeats, t.duplicate)
	after, err := p.books(ctx, before.Mark)
	if err != nil {
		return b, err
	}
	stored := storedBy(after) - storedBy(before)
	b.fault(stored != rows, "the program counted %d events as stored, the database has %d", stored, rows)
	for _, tenant := range after.Tenants {
		for _, d := range tenant.Differences.NotZero() {
			b.fault(true, "books of tenant %d: %s differ by %d", tenant.Tenant, d.What, d.By)
		}
	}
	return b, nil
}

// storedBy counts what a program stored, of all tenants.
func storedBy(a *books.Answer) (n int64) {
	for _, t := range a.Tenants {
		n += t.Process.Stored
	}
	return n
}
