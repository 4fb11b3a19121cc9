package bench

import (
	"encoding/binary"
	"testing"
	"time"

	"sluice.example/sluice/pipeline"
)

// The benchmark of ordered deliveries notices a message that comes after a later one of its subject, and no other.
func TestSequenceFindsWhatCrossed(t *testing.T) {
	s := &sequence{last: map[int64]int64{}, subjects: 2}
	for _, number := range []uint64{1, 2, 4, 3, 6, 5, 9, 7, 8, 8} {
		var id pipeline.UUID
		binary.BigEndian.PutUint64(id[8:], 0x8000<<48|number)
		s.arrived(id, time.Now())
	}
	if s.crossed != 1 {
		t.Errorf("%d messages crossed a later one of their subject; want that of number 7", s.crossed)
	}
}

// Everything arrives once and in order, where nothing is wrong.
func TestOrderedRun(t *testing.T) {
	l := testLab(t, Options{Quick: true})
	results, err := l.ordered(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		if err := r.Books.Err(); err != nil || r.Books.Acknowledged == 0 || r.Rate.Median <= 0 {
			t.Errorf("%s: %.0f a second, %d acknowledged, %v", r.Name, r.Rate.Median, r.Books.Acknowledged, err)
		}
		t.Logf("%s: %.0f a second, CPU %+v", r.Name, r.Rate.Median, r.CPU)
	}
}
